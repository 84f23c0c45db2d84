"""The search over rewritten programs against all programs that the rules reach; what its answer never is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the samples of rewrites are computed with torch")

from symconfig.errors import InputError
from symconfig.graph.program.program import Program
from symconfig.solve.partition import rewritten
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.rewritten import rewritten_partition
from symconfig.solve.partition.run import Ask, Programs, Solver, partition
from tests.graph.program.rewritten_programs import SAMPLES, drawn, reached, sample
from tests.solve.partition.test_run import CLUSTER, MESH

ASK = Ask(MESH, CLUSTER, inf, solver=Solver.ADAPTIVE)
FEW = [name for name in SAMPLES if name != "layers"]
LARGE = {"b": 512, "s": 64, "s2": 64, "h": 1024, "h2": 1024, "f": 4096, "r": 16, "a": 16, "g": 4, "g2": 4, "c": 64}
SMALL = LARGE | {"b": 16, "s": 16, "s2": 16}  # of few tokens, so that launches and narrow products count


def alone(program: Program) -> Programs:
    return cache(lambda turns: program)


@pytest.mark.parametrize("sizes", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize(
    "of", ["three products of one input", "heads that share keys", "an adapter", "sums of products", 5]
)
def test_the_search_finds_the_best_of_all_programs_that_the_rules_reach(
    of: str | int, sizes: dict[str, int], tmp_path: Path
) -> None:
    program = sample(tmp_path, of if isinstance(of, str) else drawn(of), **sizes)
    every = [partition(alone(one), ASK).cost for one, _ in reached(program, 400)]
    assert len(every) < 400
    found = rewritten_partition(alone(program), ASK)
    assert found.exhausted
    assert found.partition.cost == pytest.approx(min(every), rel=1e-9)
    assert found.before.cost == every[0]
    assert bool(found.taken) == (min(every) < every[0] * (1 - 1e-9))


@pytest.mark.parametrize("of", ["a gated unit", "an adapter", "heads that share keys", "elementwise operators"])
def test_the_answer_is_never_slower_and_rewrites_no_further(of: str, tmp_path: Path) -> None:
    program = sample(tmp_path, of, **LARGE)
    first = rewritten_partition(alone(program), ASK)
    assert first.partition.cost <= first.before.cost
    assert first.partition.cost == partition(first.programs, ASK).cost
    again = rewritten_partition(first.programs, ASK)
    assert again.taken == ()
    assert again.partition.cost == first.partition.cost


@pytest.mark.parametrize("of", FEW)
def test_the_order_of_independent_operators_does_not_matter(of: str, tmp_path: Path) -> None:
    """Nor which of equal choices the adaptive solver meets first, to its own precision."""
    found, turned = (rewritten_partition(alone(sample(tmp_path, of, way, **LARGE)), ASK) for way in (False, True))
    assert turned.partition.cost == pytest.approx(found.partition.cost, rel=1e-9)
    assert sorted(one.rewrite.rule for one in turned.taken) == sorted(one.rewrite.rule for one in found.taken)


def test_a_low_rank_update_goes_through_a_program_that_is_slower(tmp_path: Path) -> None:
    """x·(W + A·B) = x·W + x·(A·B), which takes longer, = x·W + (x·A)·B. In one of fewer columns the sum takes less."""
    assert not rewritten_partition(alone(sample(tmp_path, "an adapter", **LARGE)), ASK).taken
    wide = LARGE | {"h": 8192, "h2": 8192}
    found = rewritten_partition(alone(sample(tmp_path, "an adapter", **wide)), ASK)
    rules, costs = zip(*((one.rewrite.rule, one.cost) for one in found.taken), strict=True)
    assert rules[:2] == ("distribute", "associate")
    assert costs[0] > found.before.cost > costs[1]


def test_a_product_of_weights_is_made_first_where_there_are_few_ranks_of_many_tokens(tmp_path: Path) -> None:
    """(x·A)·B of 32,768 tokens, 1,024 wide and 4,096 in between, costs more than x·(A·B)."""
    lines = "t[b,s,f] = x * one; y[b,s,h2] = t * two"
    program = sample(
        tmp_path, (lines, "one: {dims: [h,f], frozen: true}, two: {dims: [f,h2], frozen: true}", "y"), **LARGE
    )
    found = rewritten_partition(alone(program), ASK)
    assert [one.rewrite.rule for one in found.taken] == ["associate"]
    assert found.taken[0].rewrite.words == "one times two first, then times x"


def test_microbatches_are_rewritten_alike(tmp_path: Path) -> None:
    @cache
    def programs(turns: int) -> Program:
        return sample(tmp_path, "a gated unit", **LARGE | {"b": LARGE["b"] // turns})

    limit = 0.6 * partition(programs, ASK).memory
    found = rewritten_partition(programs, replace(ASK, turns=(1, 2, 4), memory_limit=limit))
    assert found.partition.costs.training.turns > 1
    assert sorted(one.rewrite.rule for one in found.taken) == ["fuse", "merge"]
    cost, memory = price(found.partition.costs, np.array(found.partition.rows))
    assert cost == pytest.approx(found.partition.cost)
    assert memory <= limit


def test_a_graph_of_too_many_operators_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats count once: three layers of six operators, and one before and behind."""
    programs = alone(sample(tmp_path, "layers"))
    monkeypatch.setattr(rewritten, "MOST_OPERATORS", 8)
    assert rewritten_partition(programs, ASK, most=2).solved == 2
    monkeypatch.setattr(rewritten, "MOST_OPERATORS", 7)
    with pytest.raises(
        InputError, match=r"too many operators to be rewritten, repeats counted once \(got 8, need <= 7"
    ):
        rewritten_partition(programs, ASK)


def test_a_search_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the best of the programs that were solved for until then."""
    programs, now = alone(sample(tmp_path, "a gated unit", **LARGE)), iter(range(0, 1000, 20))
    monkeypatch.setattr(rewritten, "monotonic", lambda: next(now))
    some = rewritten_partition(programs, ASK)
    assert (some.solved, some.exhausted) == (2, False)
    now = iter(range(0, 1000, 20))
    assert rewritten_partition(programs, replace(ASK, limit_s=50)).solved == 3
