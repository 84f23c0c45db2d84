"""Megatron's own parser takes each option beside the degrees as the plan has it, and a changed one is found."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.verify import megatron, megatron_session
from symconfig.verify.checks import Check
from symconfig.verify.megatron import Rendered
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import LIMIT_S, rendered, replaced, source

DEEPEP: dict[str, Any] = {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"}
GATHER: dict[str, Any] = {"fp8_param_gather": True}
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepep": ("mixtral-8x7b", "h100", DEEPEP),
    "hybridep": ("mixtral-8x7b", "b200", {**DEEPEP, "moe_flex_backend": "hybridep"}),
    "router": ("mixtral-8x7b", "h100", {"cuda_graphs": "router"}),
    "outside experts": ("mixtral-8x7b", "h100", {"cuda_graphs": "outside experts", **DEEPEP}),
    "all": ("llama2-13b", "h100", {"cuda_graphs": "all"}),
    "fp8": ("llama2-13b", "h100", {"precision": "fp8", **GATHER}),
    "mxfp8": ("llama2-13b", "b200", {"precision": "mxfp8", **GATHER}),
    "fsdp": ("llama2-13b", "b200", {"precision": "mxfp8", "zero_stage": 3, "pp": 1, **GATHER}),
    "bf16 gradients": ("llama2-13b", "h100", {"grad_bytes": 2}),
    "bf16 gradients of fsdp": ("llama2-13b", "h100", {"grad_bytes": 2, "zero_stage": 2, "pp": 1}),
    "user buffers": ("llama2-13b", "a100-80gb", {"overlap_tp_comm": True}),
}
# What somebody changed in a list: its plan, the option, its values, and the field that then differs.
EDITS: dict[str, tuple[str, str, list[str], str]] = {
    "other modules": ("router", "--cuda-graph-modules", ["attn", "moe_router", "moe_preprocess"], "cuda_graphs"),
    "half a layer": ("all", "--cuda-graph-modules", ["mlp"], "cuda_graphs"),
    "no graphs": ("all", "--cuda-graph-impl", ["none"], "cuda_graphs"),
    "another backend": ("deepep", "--moe-flex-dispatcher-backend", ["hybridep"], "moe_flex_backend"),
    "no user buffers": ("user buffers", "--tp-comm-overlap", [], "overlap.tp_comm"),
    "wide gradients": ("bf16 gradients", "--grad-reduce-in-bf16", [], "grad_bytes"),
    "wide gradients of fsdp": (
        "bf16 gradients of fsdp",
        "--grad-reduce-in-bf16",
        ["--megatron-fsdp-main-grads-dtype", "fp32"],
        "grad_bytes",
    ),
    "whole weights": ("fp8", "--fp8-param-gather", [], "fp8_param_gather"),
}


def planned(name: str) -> Rendered:
    model, cluster, overrides = PLANS[name]
    return rendered(sample_plan(model, load_cluster(cluster), **overrides))


@cache
def real() -> dict[str, list[Check]]:
    items = {name: planned(name) for name in PLANS}
    items |= {name: replaced(planned(plan), option, *values) for name, (plan, option, values, _) in EDITS.items()}
    return megatron.check_many(items, source(), LIMIT_S)


@pytest.mark.parametrize("name", PLANS)
def test_megatron_resolves_each_option_to_the_plan(name: str) -> None:
    assert [str(check) for check in real()[name] if check.status != "passed"] == []


@pytest.mark.parametrize("name", EDITS)
def test_an_option_that_was_changed_is_found(name: str) -> None:
    field = EDITS[name][3]
    failed = " ".join(check.detail for check in real()[name] if check.status == "failed")
    assert f"options.{field}: Megatron resolves" in failed


def test_graphs_beside_expanding_segments_stop_without_the_exported_variable() -> None:
    item = planned("router")
    assert item.env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    env = {name: value for name, value in item.env.items() if name != "NCCL_GRAPH_REGISTER"}
    found = megatron_session.run(
        source(), megatron.session_jobs({"": Rendered(item.plan, item.args, env)}, source()), LIMIT_S
    )
    assert "NCCL_GRAPH_REGISTER=0" in str(found[""].error)


def test_ranks_are_built_without_the_kernels_and_that_is_said() -> None:
    found = megatron.check_many({name: planned(name) for name in ("outside experts", "fp8")}, source(), 60, build=True)
    for name, words in (
        ("outside experts", "DeepEP's kernels for the experts' tokens, CUDA graphs"),
        ("fp8", "8 bits"),
    ):
        built = [check for check in found[name] if ": rank " in check.name]
        assert built
        assert all(check.status == "passed" for check in built), built
        assert all(words in check.detail for check in built)
