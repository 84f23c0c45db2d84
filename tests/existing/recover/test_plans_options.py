"""What a plan switches on beside its degrees, rendered and recovered: the plan's options, and a framework with them."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.training import Optimizer
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run, Supplied
from symconfig.frameworks.extras import NAMES, in_effect, on
from symconfig.frameworks.megatron.flags import flags
from symconfig.frameworks.megatron.options import optimizer
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from tests.sample_plans import sample_plan, with_optimizer
from tests.verify.structures import granite_4

DENSE = {"model": "llama2-13b", "cluster": "h100", "tp": 4, "pp": 1, "dp": 2, "overlap_pp_p2p": False}
STAGED = DENSE | {"pp": 4, "pipeline_layout": None}
PARTS = {"model": granite_4(), "cluster": "h100", "tp": 1, "pp": 1, "ep": 2, "dp": 2, "overlap_pp_p2p": False}
CHUNKS = {"pp": 4, "vpp": 2, "dp": 8, "global_batch": 64}
EXPERTS = DENSE | {"model": "qwen3-30b-a3b", "tp": 1, "ep": 8, "dp": 8}
FLEX = EXPERTS | {"moe_dispatcher": "flex"}
PLANS: dict[str, dict[str, Any]] = {
    "user buffers": DENSE | {"overlap_tp_comm": True},
    "graphs of layers": DENSE | {"cuda_graphs": "all"},
    "graphs of layers, before modules": DENSE | {"cuda_graphs": "all", "version": "core_v0.15.0"},
    "graphs of the router": EXPERTS | {"cuda_graphs": "router"},
    "graphs outside experts": EXPERTS | {"cuda_graphs": "outside experts", "version": "core_v0.17.1"},
    "one graph": DENSE | {"cuda_graphs": "full iteration"},
    "one graph, before its own kind": DENSE | {"cuda_graphs": "full iteration", "version": "core_v0.16.1"},
    "one graph, before modules": DENSE | {"cuda_graphs": "full iteration", "version": "core_v0.15.0"},
    "one graph with experts": FLEX
    | {"moe_flex_backend": "hybridep", "cuda_graphs": "full iteration", "expert_capacity": 1.3, "paged_stash": True},
    "weights in fp8": DENSE | {"precision": "fp8", "fp8_param_gather": True},
    "weights in mxfp8": DENSE | {"cluster": "b200", "precision": "mxfp8", "fp8_param_gather": True},
    "fused loss": DENSE | {"fused_loss": True, "version": "core_v0.17.1"},
    "gradients in bf16": DENSE | {"grad_bytes": 2},
    "weight shards": DENSE | {"gtp": 2},
    "deepep": FLEX | {"moe_flex_backend": "deepep"},
    "deepep, before backends": FLEX | {"moe_flex_backend": "deepep", "version": "core_v0.14.0"},
    "hybridep": FLEX | {"moe_flex_backend": "hybridep"},
    "all-to-all": EXPERTS,
    "FSDP of gradients": DENSE | {"zero_stage": 2},
    "FSDP of weights": DENSE | {"zero_stage": 3},
    "FSDP, before its new name": DENSE | {"zero_stage": 2, "version": "core_v0.13.0"},
    "FSDP, by its new name": DENSE | {"zero_stage": 3, "version": "core_v0.14.0"},
    "no ZeRO": DENSE | {"zero_stage": 0, "overlap_param_gather": False},
    "nothing overlapped": DENSE | {"overlap_grad_reduce": False, "overlap_param_gather": False},
    "offloaded optimizer": DENSE | {"optimizer_offload": 0.25},
    "offloaded activations": DENSE | {"activation_offload": True},
    "fp16": DENSE | {"precision": "fp16", "cluster": "v100-16gb", "grad_bytes": 4},
    "nvfp4": DENSE | {"cluster": "b200", "precision": "nvfp4"},
    "full recompute": DENSE | {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    "recompute of layers in two parts": PARTS
    | {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    "recompute of the first layers": DENSE | {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
    "recomputed modules": EXPERTS | {"recompute": "selective", "recompute_modules": ("core_attn", "moe_act")},
    "Ulysses": DENSE | {"cp": 2, "cp_comm": "a2a"},
    "expert tensor": EXPERTS | {"ep": 4, "etp": 2, "tp": 2, "dp": 4},
    "chunks": DENSE
    | {"pp": 4, "vpp": 2, "dp": 8, "microbatch_group_size": 8, "global_batch": 64, "overlap_pp_p2p": True},
    "counts of the ends": STAGED | {"first_stage_layers": 12, "last_stage_layers": 8},
    "ends as layers": STAGED | {"pp": 6, "account_for_embedding": True, "account_for_loss": True},
    "layout": STAGED | {"pipeline_layout": "Et*9|t*11|t*11|t*9L"},
}


def recovered(plan: Plan) -> Run:
    names = Namespace(settings(render.arguments(plan), "launch.sh"), flags(plan.best.target.version))
    supplied = Supplied(
        model=plan.model, seq_length=plan.best.configuration.seq_length, vocab_size=plan.model.vocab_size
    )
    return run(names, plan.best.configuration.world_size, plan.cluster, supplied)


@pytest.mark.parametrize("name", PLANS)
def test_rendered_options_are_recovered(name: str) -> None:
    plan = sample_plan(**PLANS[name])
    found = recovered(plan)
    assert found.configuration.plain == in_effect(plan.best.configuration)
    # What it saves, and kernels that it fuses, are not counted.
    unpriced = {"--reuse-grad-buf-for-mxfp8-param-ag", "--use-transformer-engine-op-fuser"}
    assert {item.value for item in found.assumed} <= unpriced


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(name="muon", momentum=0.9, nesterov=False, ns_steps=4, scale_mode="unit_rms_norm"),
        Optimizer(name="sgd", momentum=0.8),
        Optimizer(main_params="fp16", exp_avg="bf16", exp_avg_sq="bf16"),
    ],
    ids=str,
)
def test_an_optimizer_is_recovered(optimizer: Optimizer) -> None:
    assert recovered(with_optimizer(sample_plan(**DENSE), optimizer)).optimizer == optimizer


@pytest.mark.parametrize(("version", "mode"), [("core_v0.19.0", "blockwise"), ("main", "duplicated")])
def test_muon_shares_a_matrix_as_its_release_does_by_default(version: str, mode: str) -> None:
    found = optimizer(Namespace(settings(["--optimizer", "muon"], "launch.sh"), flags(version)))
    assert found is not None
    assert found.tp_mode == mode


def test_every_option_has_a_plan() -> None:
    used = {name for given in PLANS.values() for name in on(in_effect(sample_plan(**given).best.configuration))}
    assert used == {*NAMES} - {
        "overlap_moe_a2a",
        "instances",
        "fp8_attention",
    }  # of FSDP and Megatron-Bridge alone: tests/existing has its own
