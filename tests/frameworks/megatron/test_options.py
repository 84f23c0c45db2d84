"""What options of Megatron-LM mean to a run, by hand from arguments.py, transformer_config.py and the optimizer's."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON, MEGATRON_LOCAL
from symconfig.frameworks.megatron.options import (
    behaviour,
    gradient_bytes,
    graphed,
    overlap,
    precision,
    recomputed,
    zero_stage,
)
from symconfig.graph.implementation import ExpertKernels, Kernel, LossKernel, RotationKernel
from symconfig.graph.operator import Leg
from symconfig.plans.configuration import Configuration
from symconfig.schedule.timeline import Start

Names = dict[str, Any]
FSDP = {"use_megatron_fsdp": True}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({}, None),
        ({"bf16": True}, "bf16"),
        ({"fp16": True}, "fp16"),
        ({"bf16": True, "fp8": "hybrid"}, "fp8"),
        ({"bf16": True, "fp8_format": "e4m3"}, "fp8"),
        ({"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"}, "mxfp8"),
        ({"bf16": True, "fp4": "e2m1", "fp8_recipe": "mxfp8"}, "nvfp4"),
        ({"bf16": True, "fp4_format": "e2m1"}, "nvfp4"),
    ],
)
def test_precision(names: Names, found: str | None) -> None:
    assert precision(names) == found


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({}, 0),
        ({"use_distributed_optimizer": True}, 1),
        ({**FSDP, "data_parallel_sharding_strategy": "optim"}, 1),
        ({**FSDP, "data_parallel_sharding_strategy": "optim_grads"}, 2),
        ({**FSDP, "data_parallel_sharding_strategy": "optim_grads_params"}, 3),
        ({"use_custom_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}, 3),
        ({**FSDP, "data_parallel_sharding_strategy": "no_shard", "use_distributed_optimizer": True}, 0),
    ],
)
def test_zero_stage(names: Names, found: int) -> None:
    assert zero_stage(names) == found


@pytest.mark.parametrize(
    ("names", "zero", "found"),
    [
        ({"bf16": True}, 1, 4),  # accumulate_allreduce_grads_in_fp32 is set for bf16
        ({"fp16": True}, 1, 2),
        ({"fp16": True, "accumulate_allreduce_grads_in_fp32": True}, 1, 4),
        ({"fp16": True, "bf16": True}, 1, 4),
        ({"bf16": True, "grad_reduce_in_bf16": True}, 1, 2),
        ({"bf16": True, "main_grads_dtype": "bf16"}, 1, 2),
        ({"bf16": True, "main_grads_dtype": "fp32"}, 1, 4),
        ({"bf16": True, "megatron_fsdp_main_grads_dtype": "bf16"}, 1, 4),  # of Megatron-FSDP alone
        ({"bf16": True, "megatron_fsdp_main_grads_dtype": "bf16"}, 2, 2),
        ({"bf16": True, "megatron_fsdp_main_grads_dtype": "fp32"}, 3, 4),
        ({"bf16": True, "grad_reduce_in_bf16": True, "megatron_fsdp_main_grads_dtype": "fp32"}, 2, 4),
    ],
)
def test_bytes_of_a_gradient(names: Names, zero: int, found: int) -> None:
    assert gradient_bytes(names, zero) == found


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({}, {"recompute": "none"}),
        ({"recompute_activations": True}, {"recompute": "selective", "recompute_modules": ("core_attn",)}),
        ({"recompute_granularity": "selective"}, {"recompute": "selective", "recompute_modules": ("core_attn",)}),
        (
            {"recompute_granularity": "selective", "recompute_modules": "['moe_act', 'mlp']"},
            {"recompute": "selective", "recompute_modules": ("mlp", "moe_act")},
        ),
        ({"moe_layer_recompute": True}, {"recompute": "selective", "recompute_modules": ("core_attn", "moe")}),
        (
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
            {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
        ),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
            {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
        ),
        ({"checkpoint_activations": True}, {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}),
        (
            {"recompute_granularity": "full", "recompute_num_layers": 0},
            {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
        ),
        (
            {"recompute_granularity": "full", "recompute_activations": True},
            {"recompute": "selective", "recompute_modules": ("core_attn",)},
        ),
    ],
)
def test_recompute(names: Names, found: dict[str, Any]) -> None:
    assert recomputed(names) == found


@pytest.mark.parametrize(
    ("names", "zero", "pp", "vpp", "runs"),
    [
        ({}, 1, 1, 1, set()),
        ({}, 2, 1, 1, {"grad_reduce"}),  # Megatron-FSDP switches these on
        ({}, 3, 1, 1, {"grad_reduce", "param_gather"}),
        ({"overlap_grad_reduce": True}, 1, 2, 1, {"grad_reduce"}),
        ({"overlap_param_gather": True, "tp_comm_overlap": True}, 1, 2, 1, {"param_gather", "tp_comm"}),
        ({}, 1, 2, 2, {"pp_p2p"}),
        ({"overlap_p2p_comm": False}, 1, 2, 2, set()),
        ({"overlap_p2p_comm": True}, 1, 2, 1, set()),
        ({"overlap_moe_expert_parallel_comm": True}, 1, 1, 2, {"moe_a2a"}),
    ],
)
def test_what_runs_beside_work(names: Names, zero: int, pp: int, vpp: int, runs: set[str]) -> None:
    found = overlap(names, zero, pp, vpp)
    every = ("grad_reduce", "param_gather", "tp_comm", "pp_p2p", "moe_a2a")
    assert {name for name in every if found[f"overlap_{name}"]} == runs


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({}, None),
        ({"cuda_graph_impl": "none"}, None),
        ({"enable_cuda_graph": True}, "all"),
        ({"external_cuda_graph": True, "cuda_graph_scope": "full"}, "all"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",)}, "full iteration"),
        ({"cuda_graph_impl": "full_iteration", "num_experts": 8}, "full iteration"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "attn"}, None),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "attn,mlp"}, "all"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "attn,mlp", "num_experts": 8}, None),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("attn", "moe"), "num_experts": 8}, "all"),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("attn", "moe_router"), "num_experts": 8},
         "outside experts"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope_deprecated": "moe_router", "num_experts": 8}, "router"),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("moe_router",)}, None),
    ],
)  # fmt: skip
def test_what_graphs_replay(names: Names, found: str | None) -> None:
    assert graphed(names, "num_experts" in names) == found


def test_scopes_of_graphs_grow() -> None:
    assert GRAPHED["none"] < GRAPHED["router"] < GRAPHED["outside experts"] < GRAPHED["all"]
    assert GRAPHED["all"] == GRAPHED["full iteration"]
    assert GRAPHED["router"] == {Leg.CHOICE}
    assert Leg.APART in GRAPHED["outside experts"]


def run(names: Names, zero: Any = 1, *, pp: int = 1, vpp: int = 1, replicas: int = 8, **given: bool) -> Any:
    configuration = Configuration(
        pp=pp,
        vpp=vpp,
        dp=replicas,
        micro=1,
        global_batch=64,
        seq_length=4096,
        zero_stage=zero,
        **overlap(names, zero, pp, vpp),
        microbatch_group_size=names.get("microbatch_group_size_per_vp_stage") if vpp > 1 else None,
        moe_dispatcher="alltoall" if given.get("experts") else None,
    )
    return behaviour(names, "hopper", configuration, given.get("latent", False))


BESIDE = {"overlap_grad_reduce": True, "overlap_param_gather": True}


def test_a_run_with_the_usual_options_is_as_usual() -> None:
    assert run({**BESIDE, "moe_grouped_gemm": True}) == usual("megatron", "hopper")
    own = run({**BESIDE, "transformer_impl": "local", "gradient_accumulation_fusion": False})
    assert own == MEGATRON_LOCAL


@pytest.mark.parametrize(
    ("names", "given", "start"),
    [
        (BESIDE, {}, Start.AHEAD),
        (BESIDE, {"pp": 4}, Start.ON_DEMAND),
        (BESIDE, {"pp": 4, "vpp": 2}, Start.AHEAD),
        ({"overlap_grad_reduce": True}, {}, Start.APART),
        ({"overlap_grad_reduce": True}, {"pp": 4}, Start.AHEAD),
        ({"overlap_grad_reduce": True}, {"replicas": 1}, Start.AHEAD),
        ({"overlap_grad_reduce": True}, {"zero": 0}, Start.AHEAD),
        ({"overlap_param_gather": True}, {}, Start.AHEAD),
    ],
)
def test_when_weights_are_gathered(names: Names, given: dict[str, Any], start: Start) -> None:
    assert run(names, **given).gathers is start


def test_what_is_not_beside_work_is_not_hidden() -> None:
    assert run({}).hide.data == 0.0 < run(BESIDE).hide.data
    assert run({}, replicas=1).hide.data == MEGATRON.hide.data
    assert run({**BESIDE, "overlap_p2p_comm": False}, pp=2, vpp=2).hide.pp == 0.0 < run(BESIDE, pp=2, vpp=2).hide.pp
    assert run({**BESIDE, "tp_comm_overlap": True}).hide.tp_pieces == 4
    assert run({**BESIDE, "overlap_moe_expert_parallel_comm": True}).hide.experts == 0.9
    assert run(BESIDE).hide.experts == 0.0


def test_sums_of_gradients_without_the_fused_kernel() -> None:
    apart = {**BESIDE, "gradient_accumulation_fusion": False}
    assert (run(BESIDE).accumulated_bytes, run(BESIDE).kept_gradient_buffers) == (0.0, True)
    assert (run(apart).accumulated_bytes, run(apart).kept_gradient_buffers) == (10.0, False)
    assert run(apart, zero=2).accumulated_bytes == 0.0  # Megatron-FSDP adds none where it is summed


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({}, 12.0),
        ({"main_params_dtype": "fp16"}, 12.0),
        # Transformer Engine keeps of a master weight in fp32 the 16 bits that the bf16 weight lacks: 2, not 4 bytes
        # (store_param_remainders), but not beside MXFP8, nor on the host.
        ({"use_precision_aware_optimizer": True}, 10.0),
        ({"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}, 12.0),
        ({"use_precision_aware_optimizer": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"}, 12.0),
        ({"use_precision_aware_optimizer": True, "main_params_dtype": "fp16"}, 10.0),
        ({"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "torch.bfloat16"}, 6.0),
        ({"use_precision_aware_optimizer": True, "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}, 4.0),
    ],
)
def test_bytes_of_the_optimizer(names: Names, found: float) -> None:
    assert run({**BESIDE, **names}).bytes.optimizer == found


def test_numbers_of_the_schedule_and_of_the_optimizer() -> None:
    group = {**BESIDE, "microbatch_group_size_per_vp_stage": 8}
    assert run(group, pp=4, vpp=2).microbatch_group == 8
    assert run(group, pp=8, vpp=2).microbatch_group == 0  # as without it
    assert run(group, pp=4, vpp=1).microbatch_group == 0
    assert run(BESIDE).optimizer_instances == 1
    assert run({**BESIDE, "num_distributed_optimizer_instances": 2}).optimizer_instances == 2
    assert run({**BESIDE, "num_distributed_optimizer_instances": 0}).optimizer_instances == 1
    assert run({**BESIDE, "fp8_param_gather": True}).quantised_weights
    assert not run(BESIDE).quantised_weights


def test_deferred_gradients_of_the_head() -> None:
    defers = {**BESIDE, "defer_embedding_wgrad_compute": True}  # 8 microbatches
    for limit, deferred in ((0, 7), (3, 3), (9, 7)):
        assert run({**defers, "wgrad_deferral_limit": limit}).implementation.loss.deferred_gradients == deferred


def test_deterministic_kernels() -> None:
    found = run({**BESIDE, "deterministic_mode": True})
    assert (found.torch_workspace, found.attention_rate) == (8 * 4 * 2**20, 1.0)


def test_kernels() -> None:
    def how(experts: bool = False, **names: Any) -> Any:
        return run({**BESIDE, **names}, experts=experts).implementation

    assert how(attention_backend="unfused").attention.kernel is Kernel.FUSED_SOFTMAX
    assert how(attention_backend="flash").attention.kernel is Kernel.FLASH
    assert how(use_flash_attn=True, transformer_impl="local").attention.kernel is Kernel.FLASH
    assert how(transformer_impl="local").attention.kernel is Kernel.MASKED
    assert how(transformer_impl="local", masked_softmax_fusion=False).attention.kernel is Kernel.IN_TURN
    assert how().loss.kernel is LossKernel.WIDE_IN_PLACE
    # core/fusions/fused_cross_entropy.py saves exp_logits, in fp32, as tensor_parallel/cross_entropy.py does.
    assert how(cross_entropy_loss_fusion=True).loss.kernel is LossKernel.WIDE_IN_PLACE
    fused = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
    assert how(**fused).loss.kernel is LossKernel.IN_PLACE
    assert how(apply_rope_fusion=False).rotation.kernel is RotationKernel.EAGER
    latent = run({**BESIDE, "apply_rope_fusion": False}, latent=True).implementation
    assert latent.rotation.kernel is RotationKernel.FUSED
    assert not how(bias_swiglu_fusion=False).fused_activation
    assert how().fused_activation
    assert how(experts=True).experts.kernels is ExpertKernels.IN_TURN
    assert how(experts=True, moe_grouped_gemm=True).experts.kernels is ExpertKernels.GROUPED
    dispatch = [
        how(experts=True, moe_token_dispatcher_type=kind, moe_flex_dispatcher_backend=backend).experts.dispatch
        for kind, backend in (("alltoall", None), ("allgather", None), ("flex", "deepep"), ("flex", "hybridep"))
    ]
    assert len(set(dispatch)) == 4
    assert dispatch[0] is MEGATRON.implementation.experts.dispatch
    # The parser's default says nothing of a model without experts.
    assert how(moe_token_dispatcher_type="allgather").experts.dispatch is dispatch[0]
