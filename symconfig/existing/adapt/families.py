"""Options of Megatron-LM in which a configuration differs from a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from symconfig.existing.launch.reading import Setting
from symconfig.existing.recover.namespace import Namespace
from symconfig.formats.megatron_run import DECIDED, FAMILIES, Family

# Options that no plan decides and that a layout may refuse or ask for: how a run is carried out and saved, never what
# is trained. Of them only what an audit names is touched, and what `adapt.megatron` asks for.
COMPANIONS = (
    Family("", "ckpt_format auto_detect_ckpt_format ckpt_fully_parallel_save ckpt_fully_parallel_load "
           "dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient async_save "
           "use_persistent_ckpt_worker", "checkpoint"),
    Family("", "use_gloo_process_groups enable_gloo_process_groups fake_process_group", "dist"),
    Family("", "overlap_param_gather_with_optimizer_step align_grad_reduce align_param_gather nccl_ub ddp_bucket_size "
           "ddp_num_buckets ddp_average_in_collective num_distributed_optimizer_instances use_torch_fsdp2 "
           "torch_fsdp2_reshard_after_forward fsdp_double_buffer fsdp_manual_registration "
           "keep_fp8_transpose_cache_when_using_custom_fsdp", "ddp"),
    Family("", "main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype overlap_cpu_optimizer_d2h_h2d "
           "use_torch_optimizer_for_cpu_offload optimizer_cuda_graph", "optimizer"),
    Family("", "tp_comm_overlap_cfg tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_bulk_dgrad "
           "tp_comm_bulk_wgrad tp_comm_split_ag tp_comm_split_rs tp_comm_bootstrap_backend", "comm_overlap"),
    Family("", "overlap_p2p_comm_warmup_flush use_ring_exchange_p2p delay_wgrad_compute defer_embedding_wgrad_compute "
           "wgrad_deferral_limit distribute_saved_activations cpu_offloading_num_layers delay_offload_until_cuda_graph "
           "delta_offload_bytes_across_pp_ranks activation_offload_fraction moe_shared_expert_overlap "
           "moe_permute_fusion_into_hybridep overlap_dispatch_backward_with_experts_wgrad "
           "ep_overlap_early_attn_memory_release mtp_standalone hierarchical_context_parallel_sizes "
           "hybrid_context_parallel tensor_parallel_num_weight_shards expert_tensor_parallel_num_weight_shards "
           "fp4_param_gather attention_backend transformer_impl"),
)  # fmt: skip
TOUCHED = DECIDED | {dest for family in COMPANIONS for dest in family.dests}


@dataclass(frozen=True, slots=True)
class Wish:
    """One option to say something. values: as the program should get them; None: the option has to go."""

    dest: str
    option: str
    values: tuple[str, ...] | None

    @property
    def now(self) -> str | None:
        return None if self.values is None else " ".join(self.values)


def wishes(now: Namespace, wanted: Namespace, families: Collection[Family]) -> list[Wish]:
    """Return what these families have to say otherwise: values first, then what is missing, then what has to go.

    So a new option is put beside the old one of its family before that leaves.
    """
    needed = [wish for family in FAMILIES if family in families for wish in _wishes(now, wanted, family)]
    return sorted(needed, key=lambda wish: (wish.values is None, having(now, wish.dest) is None))


def lacks(now: Namespace, wanted: Namespace, family: Family) -> bool:
    """Return whether the plan has kernels that the configuration does not have."""
    return not family.fields and any(_wishes(now, wanted, family))


def unequal(now: Namespace, wanted: Namespace) -> list[Family]:
    """Return the families of which some value differs, whatever it means."""
    return [family for family in FAMILIES if any(_wishes(now, wanted, family))]


def having(names: Namespace, dest: str) -> Setting | None:
    """Return the option that gives it, or that would if its value were one; of several the last."""
    flags = names.table.flags
    return names.setting(dest) or next(
        (setting for setting in reversed(names.settings) if setting.name in flags and flags[setting.name].dest == dest),
        None,
    )


def _wishes(now: Namespace, wanted: Namespace, family: Family) -> Iterator[Wish]:
    for dest in family.dests:
        if now[dest] == wanted[dest]:
            continue
        goal, have = wanted.setting(dest), having(now, dest)
        if goal is not None:
            yield Wish(dest, goal.name, goal.texts)
        elif have is not None and family.fields:
            yield Wish(dest, have.name, None)


def neighbours(dest: str, sections: bool = False, families: Sequence[Family] = FAMILIES) -> tuple[str, ...]:
    """Return the destinations beside which an option of this one belongs, the nearest first: its family's, then those
    of the families before it, then those after; of a file with sections those in the same only. families: all, in
    order.
    """
    at = next(index for index, family in enumerate(families) if dest in family.dests)
    mine = families[at].dests
    own = mine.index(dest)
    section = families[at].section
    if sections and section is None:
        return ()
    others = [family for family in families if not sections or family.section == section]
    before = [name for family in reversed(others) if family in families[:at] for name in reversed(family.dests)]
    after = [name for family in others if family in families[at + 1 :] for name in family.dests]
    return (*reversed(mine[:own]), *mine[own + 1 :], *before, *after)
