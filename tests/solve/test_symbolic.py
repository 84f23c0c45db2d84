"""A plan's costs as expressions: they give the planner's numbers, elsewhere too, and their derivatives are its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import sympy as sp

import symconfig
from symconfig.api.planning import PlanResult
from symconfig.cost.machine import Machine
from symconfig.errors import InputError
from symconfig.solve.costed import costed, sizes
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect
from symconfig.solve.symbolic import Symbolic, traced

JOBS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama3.1-8b", "cluster": "h100", "gpus": 8, "global_batch_size": 64},
    "pipeline": {"model": "llama3.1-70b", "cluster": "h100", "gpus": 64, "global_batch_size": 256},
    "1f1b": {
        "model": "llama2-13b",
        "cluster": "a100-80gb",
        "gpus": 16,
        "global_batch_size": 64,
        "pins": {"pp": 4, "vpp": 1},
    },
    "experts": {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 16, "global_batch_size": 64},
    "adapters": {"model": "llama3.1-8b", "cluster": "h100", "gpus": 8, "global_batch_size": 64, "task": "lora"},
    **{
        f"zero-{stage}": {
            "model": "llama2-13b",
            "cluster": "a100-80gb",
            "gpus": 16,
            "global_batch_size": 64,
            "backend": "deepspeed",
            "pins": {"zero": stage, "tp": 1, "pp": 1},
        }
        for stage in (1, 2, 3)
    },
}
CLOSE = 1e-9
DRAWS = 8


@cache
def planned(job: str) -> PlanResult:
    return symconfig.plan(**JOBS[job])


def founds(job: str) -> Iterator[Prospect]:
    plan = planned(job).plan
    for candidate in plan.ranked:
        yield restore(plan, candidate)


def value(term: Any) -> float:
    return float(getattr(term, "value", term))


@pytest.mark.parametrize("job", JOBS)
def test_expressions_give_the_numbers_of_the_plan(job: str) -> None:
    plan = planned(job).plan
    for number, candidate in enumerate(plan.ranked, start=1):
        found = planned(job).symbolic(number)
        assert found.step_s == pytest.approx(candidate.predicted.step_s, rel=CLOSE)
        for name, seconds in candidate.predicted.time.items():
            assert value(found.seconds[name]) == pytest.approx(seconds, abs=CLOSE * candidate.predicted.step_s)
        for stage, held in zip(candidate.stages, found.bytes, strict=True):
            assert sum(map(value, held.values())) == pytest.approx(stage.peak_bytes, rel=CLOSE)


def varied(found: Prospect, draw: random.Random) -> Prospect:
    """Another batch, other replicas and so other GPUs."""
    p, times = found.configuration, draw.choice((1, 2, 4, 8))
    degrees, turns = replace(p, dp=p.dp * times), draw.choice((1, 2, 3, 8))
    round_of = p.micro * degrees.dp * p.pp
    batch = turns * round_of
    request = found.request.having(dp=degrees.world_size, global_batch=batch)
    return replace(found, request=request, configuration=replace(degrees, global_batch=batch))


def scaled(of: Machine, factors: dict[str, Any]) -> Machine:
    levels = {name: number * factors["levels"] for name, number in of.levels.items() if name.endswith("bytes_per_s")}
    own = {name: getattr(of, name) * factor for name, factor in factors.items() if name != "levels"}
    return replace(of, **own, levels={**of.levels, **levels})


def numbers(found: Prospect) -> dict[str, Any]:
    of = found.machine
    names = ("efficiency", "hbm_bytes_per_s", "attention_flops", "launch_s")
    levels = {name: number for name, number in of.levels.items() if name.endswith("bytes_per_s")}
    return {
        "gpus": float(found.request.gpus),
        "global_batch_size": float(found.request.global_batch),
        **{name: getattr(of, name) for name in names},
        **levels,
        # The formula's own parts: what the simulation makes of them holds for one plan.
        "simulated_pipeline": 1.0,
        "simulated_exchange": 1.0,
    }


def agreeing(found: Prospect, formulas: Symbolic, draw: random.Random) -> int:
    """Count the plans of one batch at which formulas hold; their costs must be the planner's."""
    other, rng = varied(found, draw), np.random.default_rng(draw.randrange(2**32))
    names = ("efficiency", "hbm_bytes_per_s", "attention_flops", "launch_s", "levels")
    other = replace(other, machine=scaled(other.machine, {name: rng.uniform(0.7, 1.3, DRAWS) for name in names}))
    cost = costed(other, sizes(other, DRAWS)).cost
    at = formulas.at({name: number for name, number in numbers(other).items() if name in formulas.formulas.symbols})
    holds = np.broadcast_to(at.holds, DRAWS)
    step = np.broadcast_to(at.step_s, DRAWS)
    np.testing.assert_allclose(step[holds], np.broadcast_to(cost.step_s[0, 0], DRAWS)[holds], rtol=CLOSE)
    for stage, held in enumerate(at.memory):
        peak = np.broadcast_to(sum(held.values()), DRAWS)
        mine = np.broadcast_to(cost.stage_bytes[stage, 0, 0], DRAWS)
        np.testing.assert_allclose(peak[holds], mine[holds], rtol=CLOSE)
    return int(holds.sum())


def test_expressions_equal_the_planner_s_numbers_over_a_thousand_plans() -> None:
    draw, compared = random.Random(7), 0
    for job in JOBS:
        mine = 0
        for found in founds(job):
            formulas = traced(found)
            if "simulated_exchange_s" not in formulas.tape.inputs:
                mine += sum(agreeing(found, formulas, draw) for _ in range(10))
        assert mine > 20, job
        compared += mine
    assert compared >= 1000


@pytest.mark.parametrize("job", ["dense", "experts", "zero-3"])
def test_derivatives_are_those_of_the_planner_s_own_cost(job: str) -> None:
    found = next(founds(job))
    formulas = traced(found)
    slopes = formulas.tape.slopes(formulas.whole.line)
    ratio = formulas.tape.nodes[formulas.tape.inputs["simulated_pipeline"]].value if found.configuration.pp > 1 else 1.0
    assert ratio == pytest.approx(1.0, abs=0.1)
    for name in ("efficiency", "hbm_bytes_per_s", "launch_s"):
        now, little = getattr(found.machine, name), 1e-5
        near = [
            costed(replace(found, machine=replace(found.machine, **{name: now * factor}))).cost.step_s[0, 0, 0]
            for factor in (1 + little, 1 - little)
        ]
        expected = (near[0] - near[1]) / (2 * little * now)
        # With a pipeline the formula's slope is scaled as the simulation scales its step.
        assert slopes[name] == pytest.approx(
            expected, rel=1e-5 if found.configuration.pp == 1 else abs(ratio - 1) + 0.01
        )


def test_sympy_evaluates_the_definitions_to_the_plan_s_numbers() -> None:
    result = planned("dense")
    found = result.symbolic()
    values: dict[Any, float] = dict(found.numbers)
    for symbol, expression in found.definitions.items():
        free = sorted(expression.free_symbols, key=str)
        values[symbol] = float(sp.lambdify(free, expression, modules="math")(*(values[each] for each in free)))
    step = sum(float(part) if isinstance(part, float) else float(part.subs(values)) for part in found.time.values())
    assert step == pytest.approx(result.best.predicted.step_s, rel=CLOSE)


def test_the_batch_s_elasticity_is_that_of_a_step_of_two_batches() -> None:
    found = planned("dense").symbolic()
    by_name = {one.name: one for one in found.known}
    batch, step_s = by_name["global_batch_size"], found.step_s
    more = float(found.at({"global_batch_size": 2 * batch.value}).step_s)
    assert more / step_s - 1 == pytest.approx(batch.elasticity, rel=1e-6)
    assert [abs(one.elasticity) for one in found.movers] == sorted(
        (abs(one.elasticity) for one in found.movers), reverse=True
    )


def test_a_name_that_is_no_symbol_is_refused() -> None:
    with pytest.raises(InputError, match="is no symbol of this plan"):
        planned("dense").symbolic().at({"colour": 1.0})
    with pytest.raises(InputError, match="out of range"):
        planned("dense").symbolic(99)
