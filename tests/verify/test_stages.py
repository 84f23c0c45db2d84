"""Every layer is present: the plan's stages against those that the real Megatron builds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import symconfig
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.plans.plan import Plan
from symconfig.verify import megatron, megatron_agreement, megatron_session
from symconfig.verify.megatron_session import Result
from tests.verify.megatron_support import LIMIT_S, rendered, source

UNEVEN = "Ett|(tt|)*15(t*3|)*15t*3L"
GLM = Path(__file__).parent / "models" / "glm-4.5-air.yaml"


@dataclass(frozen=True, slots=True)
class Case:
    """What is planned, and words of how its stages are then told."""

    model: str
    layers: int
    gpus: int
    batch: int
    pins: dict[str, str]
    said: str
    version: str = "core_v0.19.0"
    cluster: str = "h100"
    change: dict[str, int] = field(default_factory=dict)


CASES = {
    "DeepSeek-V3 on 2,048 GPUs": Case(
        "deepseek-v3",
        61,
        2048,
        8192,
        {"pp": "16", "vpp": "1", "tp": "1", "ep": "64", "cp": "1"},
        "1 layer on the last",
        cluster="h200",  # in the memory of an h100 the first stages get fewer layers than those after them
    ),
    "DeepSeek-V3 with an empty chunk": Case("deepseek-v3", 61, 2048, 8192,
        {"tp": "1", "ep": "64", "cp": "1", "layout": "Et*3|(tt|)*29,|mL"}, "Et*3|(tt|)*29|mL"),
    "GLM-4.5-Air on PP4": Case(str(GLM), 46, 64, 512, {"pp": "4", "vpp": "1", "ep": "8"}, "on the first stage"),
    "30 layers on PP4": Case("llama3.1-8b", 30, 32, 256, {"pp": "4", "vpp": "1"}, "", change={"num_hidden_layers": 30}),
    "30 layers on PP4, without layout strings": Case(
        "llama3.1-8b", 30, 32, 256, {"pp": "4", "vpp": "1"}, "", "core_v0.12.1", change={"num_hidden_layers": 30}
    ),
    "80 layers on PP16 VPP2": Case("llama3.1-70b", 80, 256, 1024, {"pp": "16", "vpp": "2", "layout": UNEVEN}, UNEVEN),
    "12 layers with chunks of no layer": Case(
        "llama3.1-8b", 12, 32, 256, {"layout": "E|t*3||(tt|)*4tL"}, "E|t*3||(tt|)*4tL", change={"num_hidden_layers": 12}
    ),
}  # fmt: skip


def planned(case: Case) -> Plan:
    model: ModelDescriptor = load_model(case.model).model_copy(update=case.change)
    return symconfig.plan(
        model=model, cluster=case.cluster, gpus=case.gpus, global_batch_size=case.batch, seq_length=4096,
        pins=case.pins, megatron_version=case.version, top=1,
    ).plan  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: planned(case) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def results(plans: dict[str, Plan]) -> dict[str, Result]:
    """Megatron's word on each plan's arguments, for those of old versions as well: it still has their options."""
    return megatron_session.run(
        source(), megatron.session_jobs({name: rendered(plan) for name, plan in plans.items()}, source()), LIMIT_S
    )


@pytest.mark.parametrize("name", CASES)
def test_megatron_builds_layers_where_the_plan_has_them(
    name: str, plans: dict[str, Plan], results: dict[str, Result]
) -> None:
    case, plan, result = CASES[name], plans[name], results[name]
    assert result.error is None
    assert case.said in plan.best.configuration.stage_layout
    assert list(megatron_agreement.stages(plan, result, "file")) == []
    assert sum(count for stage in result.stages for _, count, _ in stage) == case.layers
    assert len(result.stages) == plan.best.configuration.pp
    assert {len(stage) for stage in result.stages} == {plan.best.configuration.vpp}


def test_a_layer_that_is_lost_doubled_or_elsewhere_is_named(plans: dict[str, Plan], results: dict[str, Result]) -> None:
    plan, result = plans["GLM-4.5-Air on PP4"], results["GLM-4.5-Air on PP4"]
    ((first, count, more),) = result.stages[-1]

    def said(*last: int) -> str:
        stages = (*result.stages[:-1], (last,))
        return " ".join(map(str, megatron_agreement.stages(plan, replace(result, stages=stages), "file")))

    assert said(first, count, more) == ""
    assert "45 layers, without 45" in said(first, count - 1, more)
    assert f"twice {first - 1}" in said(first - 1, count + 1, more)
    assert "multi-token prediction" in said(first, count, 0)


def test_megatron_builds_the_layers_of_each_kind_of_two() -> None:
    pins = {"tp": "1", "pp": "4", "mbs": "1", "recompute": "none"}
    mixed = symconfig.plan_mixed("llama2-13b", "h100*16 + a100-80gb*16", 64, pins=pins, top=1).plan
    told = {host.share.cluster.name: mixed.of(host) for host in mixed.best.hosts}
    results = megatron_session.run(
        source(), megatron.session_jobs({name: rendered(plan) for name, plan in told.items()}, source()), LIMIT_S
    )
    for name, plan in told.items():
        assert results[name].error is None
        assert list(megatron_agreement.stages(plan, results[name], "file")) == []
        built = [count for stage in results[name].stages for _, count, _ in stage]
        assert built == [count for host in mixed.best.hosts for count in host.layers]
    assert len({tuple(result.stages) for result in results.values()}) == 1
