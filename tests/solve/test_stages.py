"""The stage solver against every cut, priced block by block; and what it may choose is what can be said to Megatron."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, combinations_with_replacement, pairwise

import numpy as np
import pytest

from symconfig.graph.parts import is_layer
from symconfig.solve.choice import fewest_recomputed
from symconfig.solve.split import plainest
from symconfig.solve.stages import Blocks, Chunks, Layouts, StageProblem, family, fastest_cut
from tests.sample_models import sample_model
from tests.solve.naive import limits_of

INFINITE = float("inf")
ANY = Layouts(any_cut=True, empty_ends=True)
SEQUENCE = ("embedding", "dense", "dense", "moe", "moe", "moe", "moe", "mtp", "head")


def blocks(pick: random.Random, kinds: tuple[str, ...], limit_bytes: float) -> Blocks:
    """Return random costs by kind: recomputed, a block takes longer and keeps less."""
    plain = {kind: np.array([pick.uniform(*span) for span in ((1, 5), (1, 4), (0, 2), (0, 2))]) for kind in set(kinds)}
    again = {kind: value * [1.3, 1.0, 0.1, 1.5] if is_layer(kind) else value for kind, value in plain.items()}
    both = np.array([[each[kind] for kind in kinds] for each in (plain, again)])  # [2, blocks, 4]
    return Blocks(
        seconds=both[..., 0],
        fixed_bytes=both[..., 1],
        kept_bytes=both[..., 2],
        working_bytes=both[..., 3],
        limit_bytes=limit_bytes,
    )


def sample(seed: int, vpp: int = 1, layouts: Layouts = ANY) -> StageProblem:
    """Return a small problem, on one kind of GPUs or two, with little memory or ample."""
    pick = random.Random(seed)
    pp = pick.choice((2, 3)) if vpp > 1 else pick.choice((2, 3, 4))
    limits = [pick.choice((INFINITE, pick.uniform(9, 22))) for _ in range(2)]
    held = [np.array([[pp - stage + k * pick.randint(0, 1) for k in range(vpp)]]) for stage in range(pp)]
    return StageProblem(
        sequence=SEQUENCE,
        pp=pp,
        vpp=vpp,
        layouts=layouts,
        blocks=tuple(blocks(pick, SEQUENCE, limit) for limit in limits),
        on=tuple(int(stage >= pick.randint(1, pp)) for stage in range(pp)),
        wait_s=np.array([pick.uniform(0, 1) for _ in range(pp)]),
        held=tuple(each.astype(float) for each in held),
        first=pick.choice((0, 0, 1, 2)),
    )


def cuts(problem: StageProblem) -> Iterator[Chunks]:
    """Yield every contiguous cut with the embedding in the first chunk, the head in the last, and no empty chunk."""
    size, count = len(problem.sequence), problem.pp * problem.vpp
    for ends in combinations_with_replacement(range(1, size), count - 1):
        chunks = tuple(problem.sequence[a:b] for a, b in pairwise((0, *ends, size)))
        if all(chunks) and ("mtp" in chunks[-1] or not problem.layouts.mtp_with_head):
            yield chunks


def judge(problem: StageProblem, chunks: Chunks) -> tuple[list[float], list[float]]:
    """Return the seconds and the bytes of every stage, block by block."""
    seconds, peaks, place = [0.0] * problem.pp, [0.0] * problem.pp, 0
    kept = [[0.0] * problem.vpp for _ in range(problem.pp)]
    working = [0.0] * problem.pp
    for number, chunk in enumerate(chunks):
        stage, left = number % problem.pp, problem.first
        own = problem.blocks[problem.on[stage]]
        seconds[stage] += float(problem.wait_s[stage]) / problem.vpp
        for kind in chunk:
            row = int(is_layer(kind) and left > 0)
            left -= row
            seconds[stage] += own.seconds[row, place]
            peaks[stage] += own.fixed_bytes[row, place]
            kept[stage][number // problem.pp] += own.kept_bytes[row, place]
            most = own.working_bytes[:, place].max() if problem.first else own.working_bytes[0, place]
            working[stage] = max(working[stage], most)
            place += 1
    for stage in range(problem.pp):
        peaks[stage] += working[stage] + float((problem.held[stage] @ kept[stage]).max())
    return seconds, peaks


def fits(problem: StageProblem, chunks: Chunks) -> bool:
    limits = [problem.blocks[kind].limit_bytes for kind in problem.on]
    return all(peak <= limit * (1 + 1e-9) for peak, limit in zip(judge(problem, chunks)[1], limits, strict=True))


def least_slowest_s(problem: StageProblem) -> float:
    """Return the slowest stage's seconds in the best of all cuts that fit; infinite where none does."""
    return min((max(judge(problem, one)[0]) for one in cuts(problem) if fits(problem, one)), default=INFINITE)


@pytest.mark.parametrize("seed", range(80))
def test_no_cut_of_one_chunk_a_stage_has_a_faster_slowest_stage(seed: int) -> None:
    problem = sample(seed, layouts=replace(ANY, mtp_with_head=seed % 3 > 0))
    found, least = fastest_cut(problem), least_slowest_s(problem)
    assert (found is None) == (least == INFINITE)
    if found is not None:
        assert fits(problem, found)
        assert max(judge(problem, found)[0]) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(30))
def test_no_fewer_first_layers_recomputed_fit(seed: int) -> None:
    most = len(SEQUENCE)
    found = fewest_recomputed(replace(sample(seed), first=most)).first
    able = [n for n in range(most + 1) if fastest_cut(replace(sample(seed), first=n)) is not None]
    assert found == min(able, default=most)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_a_family_is_taken_where_a_target_says_no_other_cuts(seed: int) -> None:
    rules = Layouts(any_cut=False, first_last=True, account=True)
    problem = sample(seed, layouts=rules)
    every = [one for one in family(problem.sequence, problem.pp, 1, rules) if fits(problem, one)]
    found = fastest_cut(problem)
    assert (found is None) == (not every)
    if found is not None:
        assert max(judge(problem, found)[0]) == pytest.approx(min(max(judge(problem, one)[0]) for one in every))


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_of_two_chunks_a_stage_has_two_and_is_found_where_one_fits(seed: int) -> None:
    problem = sample(seed, vpp=2)
    every = [one for one in family(problem.sequence, problem.pp, 2, ANY) if fits(problem, one)]
    found = fastest_cut(problem)
    assert (found is None) == (not every)
    assert found is None or found in every


SHAPES = ((3, 2, 1), (5, 2, 2), (4, 4, 1), (7, 3, 1), (6, 3, 2), (4, 2, 3))


def every_cut(problem: StageProblem) -> Iterator[Chunks]:
    sequence = problem.sequence
    for places in combinations_with_replacement(range(len(sequence) + 1), problem.pp * problem.vpp - 1):
        yield tuple(sequence[start:end] for start, end in pairwise((0, *places, len(sequence))))


def allowed(problem: StageProblem, chunks: Chunks) -> bool:
    ends = np.array([*accumulate(map(len, chunks), initial=0)])
    return bool(problem.allowed(np.arange(len(chunks)), ends[:-1], ends[1:]).all())


@pytest.mark.parametrize("version", ["core_v0.12.1", "core_v0.13.0", "core_v0.14.0", "core_v0.19.0", "main"])
@pytest.mark.parametrize("predictions", [0, 1])
@pytest.mark.parametrize(("layers", "pp", "vpp"), SHAPES)
def test_the_solver_chooses_what_can_be_said(version: str, predictions: int, layers: int, pp: int, vpp: int) -> None:
    model = sample_model("deepseek-v3", num_nextn_predict_layers=predictions)
    problem = replace(
        sample(0),
        pp=pp,
        vpp=vpp,
        layouts=limits_of("megatron", version, model).layouts,
        sequence=("embedding", *("dense",) * layers, *("mtp",) * predictions, "head"),
    )
    free = problem.layouts.any_cut and vpp == 1
    families = set() if free else set(family(problem.sequence, pp, vpp, problem.layouts))
    for chunks in every_cut(problem):
        can, sayable = (
            allowed(problem, chunks) if free else chunks in families,
            plainest(pp, chunks, problem.layouts) is not None,
        )
        assert sayable if can else not sayable or vpp > 1 or not all(chunks), chunks
