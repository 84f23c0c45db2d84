"""Options beside the degrees are written into a script where a plan has them, and taken out where it has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symconfig.existing.adapt.files import adapted
from symconfig.plans.plan import Plan
from tests.existing.adapt.scripts import array, options, written
from tests.sample_plans import sample_plan

DENSE: dict[str, Any] = {"model": "llama2-13b", "cluster": "h100", "tp": 4, "pp": 2, "dp": 2, "global_batch": 32}
EXPERTS = DENSE | {"model": "mixtral-8x7b", "tp": 2, "ep": 4, "dp": 4, "overlap_tp_comm": False}
FLEX = {"moe_dispatcher": "flex", "moe_flex_backend": "hybridep"}
GRAPHS = {"--cuda-graph-impl": "transformer_engine", "--te-rng-tracker": ""}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "graphs": (DENSE, {"cuda_graphs": "all"}, GRAPHS | {"--cuda-graph-modules": "attn mlp"}),
    "the router's graphs": (
        EXPERTS,
        {"cuda_graphs": "router"},
        GRAPHS | {"--cuda-graph-modules": "moe_router moe_preprocess"},
    ),
    "weights in 8 bits": (DENSE | {"precision": "fp8"}, {"fp8_param_gather": True}, {"--fp8-param-gather": ""}),
    "weight shards": (DENSE, {"gtp": 2}, {"--tensor-parallel-num-weight-shards": "8"}),
    "fused loss": (
        DENSE | {"version": "core_v0.17.1"},
        {"fused_loss": True},
        {"--cross-entropy-loss-fusion": "", "--cross-entropy-fusion-impl": "te"},
    ),
    "hybridep": (
        EXPERTS,
        FLEX,
        {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "hybridep"},
    ),
}


def script(plan: Plan) -> str:
    return array(plan, options(plan))


@pytest.mark.parametrize("name", CASES)
def test_an_option_is_put_in_and_taken_out(tmp_path: Path, name: str) -> None:
    base, more, said = CASES[name]
    without, having = sample_plan(**base), sample_plan(**base, **more)
    put = adapted(written(tmp_path, script(without)), having, {})
    assert {change.option: change.now for change in put.changes if change.option.startswith("--")} == said
    assert not put.unplaced
    out = adapted(written(tmp_path, script(having)), without, {})
    assert said.keys() - {"--moe-token-dispatcher-type"} <= {change.option for change in out.changes}
    assert not out.unplaced


@pytest.mark.parametrize(
    ("base", "more", "line"),
    [
        (DENSE, {"cuda_graphs": "all"}, "--cuda-graph-impl local"),
        (DENSE, {}, "--cuda-graph-impl local\n    --cuda-graph-modules attn"),  # of which nothing is predicted
        (DENSE, {}, "--cross-entropy-loss-fusion"),
        (EXPERTS, {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"}, "--moe-enable-deepep"),
    ],
)
def test_what_is_said_in_another_way_stays(
    tmp_path: Path, base: dict[str, Any], more: dict[str, Any], line: str
) -> None:
    goal = sample_plan(**base, **more)
    mine = [option for option in options(goal) if not option.startswith(("--cuda-graph", "--moe-flex"))]
    outcome = adapted(written(tmp_path, array(goal, [*mine, line])), goal, {})
    assert (outcome.changes, outcome.unplaced) == ((), ())
