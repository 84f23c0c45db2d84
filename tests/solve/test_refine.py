"""Refinement against brute force: floors are below every layout, and what is proved is the best of all tried."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.model import sequence
from symconfig.solve.assign import Layout, Open, by_block, slowest_s
from symconfig.solve.costed import costed, detailed
from symconfig.solve.floor import Floors, waiting
from symconfig.solve.kinds import ROUNDING
from symconfig.solve.run import run, weigh_all
from symconfig.solve.search import resolved, search
from symconfig.solve.split import Split, plainest
from symconfig.solve.stages.problem import Chunks
from symconfig.solve.timeline import refined_s
from tests.solve.naive import job, tight, tiny

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 384, "norm_topk_prob": True}
CASES: dict[str, tuple[ModelDescriptor, float, Job]] = {
    "dense": (tiny(num_hidden_layers=7), 1.0, job(4, 8, 4096, pins={"optimizer_offload": "0"})),
    "unequal layers": (
        tiny(
            "deepseek-v3",
            experts={**EXPERTS, "shared_expert_intermediate_size": 256, "first_k_dense_replace": 1},
            latent={
                "q_lora_rank": 128,
                "kv_lora_rank": 64,
                "qk_nope_head_dim": 32,
                "qk_rope_head_dim": 32,
                "v_head_dim": 64,
            },
            num_key_value_heads=8,
            num_hidden_layers=5,
        ),
        0.8,
        job(4, 8, pins={"cp": "1", "etp": "1", "optimizer_offload": "0", "activation_offload": "0"}),
    ),
    "tied": (
        tiny("qwen2.5-7b", tie_word_embeddings=True, num_hidden_layers=6),
        0.6,
        job(4, 16, pins={"optimizer_offload": "0", "cp": "1"}),
    ),
}


def all_floors(name: str) -> list[Floors]:
    model, gib, asked = CASES[name]
    cluster = tight(model, gib)
    weighed = weigh_all(model, cluster, resolved(model, cluster, asked), 1)
    found: list[Floors] = []
    for piece in weighed.pieces:
        left, mine = waiting(piece, np.inf), list[Floors]()
        while left is not None:
            some, left = left.floors(np.inf)
            mine += some
        # One order whatever was worked out together: layouts are drawn in it.
        found += sorted(mine, key=lambda floors: (floors.setting.pp, floors.setting.zero, floors.setting.vpp))
    return found


def cut(model: ModelDescriptor, chunks: int, random: np.random.Generator) -> Chunks:
    """A layout drawn at random: the ends where they must be, empty chunks and all."""
    blocks = sequence(model)
    head = next(place for place, kind in enumerate(blocks) if kind in ("mtp", "head"))
    borders = sorted(int(place) for place in random.integers(1, head + 1, chunks - 1))
    ends = [0, *borders, len(blocks)]
    return tuple(blocks[a:b] for a, b in pairwise(ends))


def layouts(floors: Floors, model: ModelDescriptor, random: np.random.Generator, count: int) -> list[Split]:
    pp, vpp = floors.setting.pp, floors.setting.vpp
    allowed = floors.piece.request.limits.layouts
    made = [plainest(pp, cut(model, pp * vpp, random), allowed) for _ in range(count)]
    return [split for split in made if split is not None and any(len(chunk) > 1 for chunk in split.chunks)]


@pytest.mark.parametrize("name", CASES)
def test_no_layout_is_faster_than_its_floor_or_leaner_than_may_fit(name: str) -> None:
    """Floors, a layout's own bound, its slowest stage and its peak: all against the whole cost of that layout."""
    model, random = CASES[name][0], np.random.default_rng(1)
    tried = 0
    for floors in all_floors(name):
        for split in layouts(floors, model, random, 3):
            r, n = (int(random.integers(size)) for size in (floors.step_s.shape[0] - 1, floors.step_s.shape[2]))
            o = int(random.integers(floors.step_s.shape[1]))
            candidate = Open(0.0, floors, r, o, n)
            found = candidate.prospect(split, 0)
            parts, layout = costed(found), Layout(floors, split, np.array([r]), np.array([n]))
            step, peak = refined_s(found, parts), max(parts.peaks)
            assert layout.peak_bytes[o, 0] == pytest.approx(peak, rel=0.05)  # of an average chunk there
            assert layout.path_s[o, 0] <= layout.step_s[o, 0] <= step * (1 + 1e-9)
            assert detailed(found, candidate.table).cost.step_s == pytest.approx(parts.cost.step_s, rel=1e-12)
            slowest = slowest_s(floors, split)[r, n]
            assert slowest == pytest.approx((layout.passes[0] + layout.passes[1]).sum(axis=1).max(), rel=1e-9)
            assert floors.slowest_s[r, n] <= slowest * (1 + ROUNDING)
            if peak <= floors.piece.budget:
                assert floors.step_s[r, o, n] <= step * (1 + 1e-9)
            tried += 1
    assert tried > 50


@pytest.mark.parametrize("name", ["dense", "tied"])
def test_a_layout_that_recomputes_its_first_layers_is_what_the_whole_cost_says(name: str) -> None:
    model, random = CASES[name][0], np.random.default_rng(2)
    tried = 0
    for floors in all_floors(name):
        for split in layouts(floors, model, random, 2):
            for layout, fits in by_block(floors, split, np.arange(floors.step_s.shape[2])):
                o, q = (int(place[0]) for place in np.nonzero(fits))
                found = Open(0.0, floors, len(floors.choices), o, int(layout.n[q])).prospect(split, layout.first)
                parts = costed(found)
                assert layout.peak_bytes[o, q] == pytest.approx(max(parts.peaks), rel=0.05)
                step = refined_s(found, parts)
                assert max(layout.step_s[o, q], floors.step_s[-1, o, layout.n[q]]) <= step * (1 + 1e-9)
                tried += 1
    assert tried > 10


@pytest.mark.parametrize("name", CASES)
def test_no_layout_of_any_candidate_is_much_faster_than_what_is_proved(name: str) -> None:
    """Beside what the stage solver proposes, layouts are drawn at random for every candidate: none is better."""
    model, gib, asked = CASES[name]
    plan = search(model, tight(model, gib), asked)
    assert plan.search.optimal is (plan.search.gap == 0.0)
    best, random = plan.best.predicted.step_s, np.random.default_rng(3)
    for floors in all_floors(name):
        for split in layouts(floors, model, random, 4):
            r, n = np.nonzero((floors.step_s[:-1] < best).any(axis=1))
            if not r.size:
                continue
            layout = Layout(floors, split, r, n)
            fits = (layout.peak_bytes <= floors.piece.budget) & (layout.step_s < best)
            last = layout.at(np.array([r.size - 1]))
            assert last.step_s == pytest.approx(layout.step_s[:, -1:], rel=1e-12)
            for o, q in np.argwhere(fits):
                found = Open(0.0, floors, int(r[q]), int(o), int(n[q])).prospect(split, 0)
                assert refined_s(found, costed(found)) >= best * (1 - 1e-9)


def test_a_search_that_may_not_simulate_says_what_it_left_out() -> None:
    model, gib, asked = CASES["dense"]
    cluster = tight(model, gib)
    outcome = run(
        model, cluster, resolved(model, cluster, replace_pins(asked, {"pp": "2..4"})), 1, None, 0.0, simulations=0
    )
    assert outcome.bound is not None
    assert outcome.bound.simulated == 0
    assert 0 < outcome.bound.gap(outcome.weighed.ranked()[0].step_s) < 1


def replace_pins(asked: Job, pins: dict[str, str]) -> Job:
    return asked.model_copy(update={"pins": {**asked.pins, **pins}})


def test_the_same_job_is_refined_the_same_way() -> None:
    model, gib, asked = CASES["unequal layers"]
    cluster = tight(model, gib)
    first, second = (run(model, cluster, resolved(model, cluster, asked), 3, None, 0.0) for _ in range(2))
    assert first.bound == second.bound
    ours, theirs = (
        [(found.degrees, found.split, found.step_s) for found in one.weighed.ranked()] for one in (first, second)
    )
    assert ours == theirs
