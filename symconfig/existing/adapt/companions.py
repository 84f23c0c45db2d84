"""Options of Megatron-LM that no plan decides and that a layout may refuse or ask for: how a run is carried out and
saved, never what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.existing.adapt.families import DECIDED, STAGES, Family, Wish, each, having
from symconfig.existing.recover.namespace import Namespace

# Families without a meaning of their own in a plan: of them only what an audit names is touched, and what `demanded`
# says.
COMPANIONS = (
    Family(
        (),
        each(
            """
            ckpt_format auto_detect_ckpt_format ckpt_fully_parallel_save ckpt_fully_parallel_load
            dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient async_save
            use_persistent_ckpt_worker
            """
        ),
        "checkpoint",
    ),
    Family((), ("use_gloo_process_groups", "enable_gloo_process_groups", "fake_process_group"), "dist"),
    Family(
        (),
        each(
            """
            overlap_param_gather_with_optimizer_step align_grad_reduce align_param_gather ddp_average_in_collective
            ddp_bucket_size ddp_num_buckets nccl_ub num_distributed_optimizer_instances use_torch_fsdp2
            torch_fsdp2_reshard_after_forward fsdp_double_buffer fsdp_manual_registration
            keep_fp8_transpose_cache_when_using_custom_fsdp
            """
        ),
        "ddp",
    ),
    Family(
        (),
        each(
            """
            main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype overlap_cpu_optimizer_d2h_h2d
            use_torch_optimizer_for_cpu_offload optimizer_cuda_graph
            """
        ),
        "optimizer",
    ),
    Family(
        (),
        each(
            """
            tp_comm_overlap_cfg tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_bulk_dgrad
            tp_comm_bulk_wgrad tp_comm_split_ag tp_comm_split_rs tp_comm_bootstrap_backend
            """
        ),
        "comm_overlap",
    ),
    Family(
        (),
        each(
            """
            overlap_p2p_comm_warmup_flush use_ring_exchange_p2p delay_wgrad_compute defer_embedding_wgrad_compute
            wgrad_deferral_limit distribute_saved_activations cpu_offloading_num_layers delay_offload_until_cuda_graph
            delta_offload_bytes_across_pp_ranks activation_offload_fraction moe_shared_expert_overlap
            moe_permute_fusion_into_hybridep overlap_dispatch_backward_with_experts_wgrad
            ep_overlap_early_attn_memory_release mtp_standalone hierarchical_context_parallel_sizes
            hybrid_context_parallel tensor_parallel_num_weight_shards expert_tensor_parallel_num_weight_shards
            fp4_param_gather attention_backend transformer_impl
            """
        ),
    ),
)
TOUCHED = DECIDED | {dest for family in COMPANIONS for dest in family.dests}
# What a checkpoint's files are cut by: another value of one of these, and files by rank cannot be read.
LAYOUT = ("tensor_model_parallel_size", *STAGES, "expert_model_parallel_size", "expert_tensor_parallel_size")
FORMAT, SHARDS_SAVED = "ckpt_format", "ckpt_fully_parallel_save"


@dataclass(frozen=True, slots=True)
class Demand:
    """An option that another layout asks for. why: a clause, told beside the change."""

    wish: Wish
    why: str


def demanded(before: Namespace, now: Namespace) -> Iterator[Demand]:
    """Yield what a run needs so that checkpoints can be read in another layout than they were written in, where the
    layout is another one now and the run saves or loads any."""
    if all(before[dest] == now[dest] for dest in LAYOUT) or not (now.given("save") or now.given("load")):
        return
    setting = having(now, FORMAT)
    if setting is not None and now[FORMAT] == "torch" and not now["use_megatron_fsdp"]:
        why = "the format torch has a file for every rank of one layout, and torch_dist is read in any"
        yield Demand(Wish(FORMAT, setting.name, ("torch_dist",)), why)
    saved = having(now, SHARDS_SAVED)
    if saved is not None and now[SHARDS_SAVED] is False and now["use_distributed_optimizer"]:
        why = "without parallel saving the distributed optimizer's state cannot be read in another layout"
        yield Demand(Wish(SHARDS_SAVED, saved.name, None), why)
