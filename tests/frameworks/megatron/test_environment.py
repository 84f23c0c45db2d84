"""Which environment variables a plan needs, by GPU, release and what the plan switches on."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.megatron import environment
from symconfig.frameworks.megatron.flags import versions
from tests.sample_plans import sample_plan


def variables(*given: Any, **overrides: Any) -> dict[str, str]:
    plan = sample_plan(*given, **overrides)
    return {row.name: row.value for row in environment.variables(plan, plan.best.target.version)}


@pytest.mark.parametrize(
    ("cluster", "overrides", "value"),
    [
        ("h100", {}, "1"),
        ("h100", {"tp": 1, "cp": 2}, "1"),
        ("h100", {"tp": 1}, None),
        ("b200", {}, None),
        ("b200", {"version": "core_v0.12.1"}, "1"),  # a slip in that release's condition
        ("h100", {"zero_stage": 3, "pp": 1}, "8"),
        ("b200", {"zero_stage": 2, "pp": 1}, "8"),
        ("a100-80gb", {"zero_stage": 1}, "1"),
        ("mi300x", {}, "1"),
    ],
)
def test_device_connections_follow_the_gpu_and_the_plan(
    cluster: str, overrides: dict[str, Any], value: str | None
) -> None:
    assert variables("llama2-13b", cluster, **overrides).get("CUDA_DEVICE_MAX_CONNECTIONS") == value


def test_every_variable_has_a_reason_a_source_and_versions_of_the_table() -> None:
    for row in environment.table():
        assert row.reason[0].isupper()
        assert row.source.startswith(("Megatron-LM", "Transformer Engine"))
        assert {row.since, row.until} - {None} <= set(versions())


def test_variables_for_activation_offload_and_for_other_makers() -> None:
    assert variables("llama2-13b", "h100", activation_offload=True)["NVTE_CPU_OFFLOAD_V1"] == "1"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in variables("llama2-13b", "mi300x")


EXPERTS = {"tp": 1, "ep": 8, "dp": 8}


@pytest.mark.parametrize(
    ("cluster", "ep", "near", "joined", "rack"),
    [("h100", 16, 8, 8, 0), ("h100", 4, 4, 8, 0), ("gb200-nvl72", 16, 16, 72, 1)],
)
def test_hybridep_is_told_which_ranks_are_near(cluster: str, ep: int, near: int, joined: int, rack: int) -> None:
    hybridep = {"ep": ep, "dp": 16, "tp": 1, "moe_dispatcher": "flex", "moe_flex_backend": "hybridep"}
    found = variables("qwen3-30b-a3b", load_cluster(cluster), **hybridep)
    assert found["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == str(near)
    assert (found["NVLINK_DOMAIN_SIZE"], found["USE_MNNVL"]) == (str(joined), str(rack))
    assert "USE_MNNVL" not in variables("qwen3-30b-a3b", "h100", ep=ep, dp=16, tp=1)


@pytest.mark.parametrize(
    ("overrides", "value"),
    [
        ({**EXPERTS, "overlap_moe_a2a": True}, "32"),
        ({**EXPERTS, "overlap_moe_a2a": True, "version": "core_v0.14.0"}, "32"),
        ({**EXPERTS, "overlap_moe_a2a": True, "version": "core_v0.13.0"}, None),
        ({**EXPERTS, "overlap_moe_a2a": True, "zero_stage": 2}, "8"),  # Megatron-FSDP refuses 1 alone
        ({**EXPERTS, "overlap_moe_a2a": True, "ep": 1}, None),
        (EXPERTS, None),
    ],
)
def test_hidden_all_to_all_has_many_queues_from_the_release_that_can_hide_it(
    overrides: dict[str, Any], value: str | None
) -> None:
    assert variables("mixtral-8x7b", "h100", **overrides).get("CUDA_DEVICE_MAX_CONNECTIONS") == value
