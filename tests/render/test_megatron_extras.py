"""Options beside the degrees, in the words of each release, and what other formats make of them."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.frameworks.megatron.flags import versions
from symconfig.plans.plan import Plan
from symconfig.render import megatron, ms_swift, targets
from tests.sample_plans import sample_plan

Case = tuple[str, str, dict[str, Any]]
DEEPEP: dict[str, Any] = {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"}
HYBRIDEP = DEEPEP | {"moe_flex_backend": "hybridep"}
CASES: dict[str, Case] = {
    "deepep": ("mixtral-8x7b", "h100", DEEPEP),
    "hybridep": ("mixtral-8x7b", "h100", HYBRIDEP),
    "router": ("mixtral-8x7b", "h100", {"cuda_graphs": "router"}),
    "outside experts": ("mixtral-8x7b", "h100", {"cuda_graphs": "outside experts"}),
    "all": ("llama2-13b", "h100", {"cuda_graphs": "all"}),
    "one graph": ("llama2-13b", "h100", {"cuda_graphs": "full iteration"}),
    "capacity": ("mixtral-8x7b", "h100", HYBRIDEP | {"expert_capacity": 1.5, "paged_stash": True}),
    "fp8": ("llama2-13b", "h100", {"precision": "fp8", "fp8_param_gather": True}),
    "mxfp8": ("llama2-13b", "b200", {"precision": "mxfp8", "fp8_param_gather": True}),
    "fsdp": ("llama2-13b", "b200", {"precision": "mxfp8", "fp8_param_gather": True, "zero_stage": 3, "pp": 1}),
    "fused loss": ("llama2-13b", "h100", {"fused_loss": True}),
    "bf16 gradients": ("llama2-13b", "h100", {"grad_bytes": 2}),
    "user buffers": ("llama2-13b", "h100", {"overlap_tp_comm": True}),
    "weight shards": ("llama2-13b", "h100", {"gtp": 2}),
}
FLEX = "--moe-token-dispatcher-type flex"
FP32 = "--moe-router-dtype fp32"
GRAPHS = ("--cuda-graph-warmup-steps 3", "--te-rng-tracker")
LOCAL, NO_CHECK = "--cuda-graph-impl local", "--no-check-for-nan-in-loss-and-grad"
IMPL = "--cuda-graph-impl transformer_engine"
# Per case, what is written from a release on; nothing: it is refused.
WRITTEN: dict[str, dict[str, tuple[str, ...]]] = {
    "deepep": {
        "core_v0.12.1": (FLEX, "--moe-enable-deepep", FP32),
        "core_v0.16.1": (FLEX, "--moe-flex-dispatcher-backend deepep", FP32),
    },
    "hybridep": {"core_v0.12.1": (), "core_v0.16.1": (FLEX, "--moe-flex-dispatcher-backend hybridep", FP32)},
    "router": {
        "core_v0.12.1": (),
        "core_v0.16.1": (IMPL, "--cuda-graph-scope moe_router moe_preprocess", *GRAPHS),
        "core_v0.18.2": (IMPL, "--cuda-graph-modules moe_router moe_preprocess", *GRAPHS),
    },
    "outside experts": {
        "core_v0.12.1": (),
        "core_v0.16.1": (IMPL, "--cuda-graph-scope attn moe_router moe_preprocess", *GRAPHS),
        "core_v0.18.2": (IMPL, "--cuda-graph-modules attn moe_router moe_preprocess", *GRAPHS),
    },
    "all": {
        "core_v0.12.1": ("--external-cuda-graph", "--cuda-graph-scope full", *GRAPHS),
        "core_v0.15.0": (IMPL, "--cuda-graph-scope full", *GRAPHS),
        "core_v0.16.1": (IMPL, "--cuda-graph-scope attn mlp", *GRAPHS),
        "core_v0.18.2": (IMPL, "--cuda-graph-modules attn mlp", *GRAPHS),
    },
    "one graph": {
        "core_v0.12.1": (),
        "core_v0.15.0": (LOCAL, "--cuda-graph-scope full_iteration", NO_CHECK, *GRAPHS),
        "core_v0.18.2": ("--cuda-graph-impl full_iteration", NO_CHECK, *GRAPHS),
    },
    "capacity": {
        "core_v0.12.1": (),
        "core_v0.18.2": (
            FLEX,
            "--moe-flex-dispatcher-backend hybridep",
            FP32,
            "--moe-expert-rank-capacity-factor 1.5",
            "--use-transformer-engine-op-fuser",
            "--moe-paged-stash",
        ),
    },
    "fp8": {"core_v0.12.1": ("--fp8-param-gather",)},
    "mxfp8": {"core_v0.12.1": (), "core_v0.14.0": ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag")},
    "fused loss": {
        "core_v0.12.1": ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te"),
        "core_v0.18.2": (),
    },
    "bf16 gradients": {"core_v0.12.1": ("--grad-reduce-in-bf16",)},
    "user buffers": {"core_v0.12.1": ("--tp-comm-overlap",)},
    "weight shards": {"core_v0.12.1": (), "core_v0.19.0": ("--tensor-parallel-num-weight-shards 8",)},
}
# Per case, the pin that leaves it out.
OFF = {
    "deepep": "dispatcher=alltoall", "hybridep": "dispatcher=alltoall", "router": "cuda_graphs=none",
    "outside experts": "cuda_graphs=none", "all": "cuda_graphs=none", "fp8": "fp8_param_gather=off",
    "mxfp8": "fp8_param_gather=off", "fused loss": "fused_loss=off", "bf16 gradients": "grad_dtype=fp32",
    "user buffers": "user_buffers=off", "weight shards": "gtp=1",
    "one graph": "cuda_graphs=none", "capacity": "expert_capacity=none",
}  # fmt: skip


def planned(name: str, **more: Any) -> Plan:
    model, cluster, overrides = CASES[name]
    return sample_plan(model, cluster, **overrides, **more)


def lines(plan: Plan) -> list[str]:
    return [" ".join(option) for group in megatron.groups(plan) for option in group.options]


def wanted(name: str, version: str) -> tuple[str, ...]:
    order = versions()
    since = [first for first in WRITTEN[name] if order.index(first) <= order.index(version)]
    return WRITTEN[name][since[-1]]


@pytest.mark.parametrize("version", versions()[1:])
@pytest.mark.parametrize("name", WRITTEN)
def test_an_option_is_said_as_its_release_says_it_or_refused(name: str, version: str) -> None:
    plan = planned(name, version=version)
    if not wanted(name, version):
        problems = targets()["megatron"].refusals(plan)
        assert OFF[name] in {pin for problem in problems for pin in problem.pins}
        assert len(problems) == 1 or name == "capacity"  # whose dispatcher is refused, too
        return
    model, cluster, overrides = CASES[name]
    plain = {key: value for key, value in overrides.items() if key == "precision"}
    without = lines(sample_plan(model, cluster, version=version, **plain))
    added = [line for line in lines(plan) if line not in without]
    assert sorted(added) == sorted(wanted(name, version))
    assert {line for line in without if line not in lines(plan)} <= {"--moe-token-dispatcher-type alltoall"}


# Of ms-swift, what is refused of the cases, each with the pin that leaves it out.
REFUSED = (
    "one graph",
    "capacity",
    "router",
    "outside experts",
    "all",
    "mxfp8",
    "bf16 gradients",
    "user buffers",
    "fused loss",
    "weight shards",
)


@pytest.mark.parametrize("name", OFF)
def test_ms_swift_says_an_option_or_refuses_it_with_the_pin_that_leaves_it_out(name: str) -> None:
    problems = targets()["ms-swift"].refusals(planned(name))
    assert (OFF[name] in {pin for problem in problems for pin in problem.pins}) == (name in REFUSED)


def test_ms_swift_says_the_rest_in_its_own_words() -> None:
    def said(plan: Plan) -> dict[str, Any]:
        return {key: value for section in ms_swift.sections(plan).values() for key, value in section.items()}

    experts = said(sample_plan("qwen3-30b-a3b", "h100", **HYBRIDEP))
    assert (experts["moe_token_dispatcher_type"], experts["moe_router_dtype"]) == ("flex", "fp32")
    assert experts["megatron_extra_kwargs"]["moe_flex_dispatcher_backend"] == "hybridep"
    assert said(planned("fp8"))["fp8_param_gather"] is True
    assert (experts["manual_gc"], experts["manual_gc_steps"]) == (True, 100)
    old = said(planned("fused loss", version="core_v0.17.1"))
    assert (old["cross_entropy_loss_fusion"], old["cross_entropy_fusion_impl"]) == (True, "te")
