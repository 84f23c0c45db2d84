"""What a plan decides of Megatron-LM's options: families that say one thing together, and where they differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from symconfig.existing.launch.reading import Setting
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run


@dataclass(frozen=True, slots=True)
class Family:
    """fields: of a Run, what the options mean; none: kernels, which are added where the plan has them. dests: of
    Megatron's parser, the options that can say it.

    section: where options of one file with sections stand together, as Megatron-Bridge and NeMo 2 have them; None:
    there they are said in another way, as precision is by one name. exclusive: switches of which the parser takes one.
    """

    fields: tuple[str, ...]
    dests: tuple[str, ...]
    section: str | None = "model"
    exclusive: tuple[str, ...] = ()

    def meaning(self, run: Run) -> tuple[object, ...]:
        return tuple(attrgetter(field)(run) for field in self.fields)


def each(text: str) -> tuple[str, ...]:
    """Return the words of a text, in their order."""
    return tuple(text.split())


# Options that say which layers a pipeline's stages have.
STAGES = each(
    """
    pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
    pipeline_model_parallel_layout decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split
    """
)

# In the order in which a person would look for them, which is also where a new option goes: after the options of its
# own family, or of the nearest one before it.
FAMILIES = (
    Family(("configuration.micro",), ("micro_batch_size", "batch_size"), "train"),
    Family(("configuration.global_batch",), ("global_batch_size",), "train"),
    Family(
        ("options.precision",),
        ("bf16", "fp16", "fp8", "fp8_recipe", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp4", "fp4_recipe"),
        None,
        exclusive=("bf16", "fp16"),
    ),
    Family(
        ("options.grad_bytes",),
        ("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16", "megatron_fsdp_main_grads_dtype"),
        None,
    ),
    Family(("options.fp8_param_gather",), ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"), None),
    Family(("options.fused_loss",), ("cross_entropy_loss_fusion", "cross_entropy_fusion_impl")),
    Family(("configuration.degrees.tp",), ("tensor_model_parallel_size", "model_parallel_size")),
    Family(("options.sequence_parallel",), ("sequence_parallel",)),
    Family(("options.overlap.tp_comm",), ("tp_comm_overlap",), "comm_overlap"),
    Family(
        each(
            """
            configuration.degrees.pp configuration.degrees.vpp options.pipeline_layout options.first_stage_layers
            options.last_stage_layers options.account_for_embedding options.account_for_loss
            """
        ),
        STAGES,
    ),
    Family(("options.microbatch_group_size",), ("microbatch_group_size_per_vp_stage",)),
    Family(("options.overlap.pp_p2p",), ("overlap_p2p_comm",)),
    Family(("configuration.degrees.cp", "options.cp_comm"), ("context_parallel_size", "cp_comm_type")),
    Family(("configuration.degrees.ep",), ("expert_model_parallel_size",)),
    Family(("configuration.degrees.etp",), ("expert_tensor_parallel_size",)),
    Family(
        ("options.moe_dispatcher", "options.moe_flex_backend"),
        ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep"),
    ),
    Family((), ("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")),
    Family(("options.overlap.moe_a2a",), ("overlap_moe_expert_parallel_comm",), "comm_overlap"),
    Family(
        ("options.zero_stage",),
        each(
            """
            use_distributed_optimizer use_megatron_fsdp use_custom_fsdp data_parallel_sharding_strategy
            gradient_accumulation_fusion init_model_with_meta_device
            """
        ),
        "ddp",
    ),
    Family(("options.overlap.grad_reduce",), ("overlap_grad_reduce",), "ddp"),
    Family(("options.overlap.param_gather",), ("overlap_param_gather",), "ddp"),
    Family(
        ("options.optimizer_offload",),
        ("optimizer_cpu_offload", "optimizer_offload_fraction", "use_precision_aware_optimizer"),
        "optimizer",
    ),
    Family(
        ("options.recompute",),
        each(
            """
            recompute_granularity recompute_method recompute_num_layers recompute_modules recompute_activations
            moe_layer_recompute
            """
        ),
    ),
    Family(("options.activation_offload",), ("fine_grained_activation_offloading", "offload_modules")),
    Family(
        ("options.cuda_graphs",),
        each(
            """
            cuda_graph_impl cuda_graph_modules cuda_graph_scope cuda_graph_scope_deprecated enable_cuda_graph
            external_cuda_graph te_rng_tracker
            """
        ),
    ),
)
BY_RANK, BY_LAYERS = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
UNEVEN = ("--decoder-first-", "--decoder-last-", "--account-for-")
DECIDED = frozenset(dest for family in FAMILIES for dest in family.dests)


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


def in_their_way(wanted: Sequence[Setting], now: Namespace) -> tuple[Setting, ...]:
    """Return the plan's options with the virtual stages said as this configuration says them: by their layers, where it
    counts those and they are whole.
    """
    named = {setting.name: setting for setting in wanted}
    stages = named.get(BY_RANK)
    layers, pp = now["num_layers"], named.get("--pipeline-model-parallel-size")
    if stages is None or pp is None or not now.given("num_layers_per_virtual_pipeline_stage"):
        return tuple(wanted)
    if not isinstance(layers, int) or any(name.startswith(UNEVEN) for name in named):
        return tuple(wanted)
    each, rest = divmod(layers, int(stages.values[0].text) * int(pp.values[0].text))
    if rest:
        return tuple(wanted)
    own = replace(stages.like(BY_LAYERS, str(each)), spelled=BY_LAYERS)
    return tuple(own if setting is stages else setting for setting in wanted)
