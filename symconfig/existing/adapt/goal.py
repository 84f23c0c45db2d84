"""What a plan wants of Megatron-LM's options, and in which a configuration differs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Self

from symconfig.errors import InputError
from symconfig.existing.adapt.outcome import Unplaced
from symconfig.existing.launch.reading import Reading, Setting, settings
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run, Supplied
from symconfig.formats.megatron_run import DECIDED, FAMILIES, Family
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron

# Options that no plan decides and that a layout may refuse or ask for: how a run is carried out and saved, never what
# is trained. Of them only what an audit names is touched, and what `adapt.megatron` asks for.
COMPANIONS = Family("", """
    ckpt_format auto_detect_ckpt_format ckpt_fully_parallel_save ckpt_fully_parallel_load
    dist_ckpt_optim_fully_reshardable distrib_optim_fully_reshardable_mem_efficient async_save
    use_persistent_ckpt_worker use_gloo_process_groups enable_gloo_process_groups fake_process_group
    overlap_param_gather_with_optimizer_step align_grad_reduce align_param_gather nccl_ub ddp_bucket_size
    ddp_num_buckets ddp_average_in_collective num_distributed_optimizer_instances use_torch_fsdp2
    torch_fsdp2_reshard_after_forward fsdp_double_buffer fsdp_manual_registration
    keep_fp8_transpose_cache_when_using_custom_fsdp main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype
    overlap_cpu_optimizer_d2h_h2d use_torch_optimizer_for_cpu_offload optimizer_cuda_graph tp_comm_overlap_cfg
    tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_bulk_dgrad tp_comm_bulk_wgrad
    tp_comm_split_ag tp_comm_split_rs tp_comm_bootstrap_backend overlap_p2p_comm_warmup_flush use_ring_exchange_p2p
    delay_wgrad_compute defer_embedding_wgrad_compute wgrad_deferral_limit distribute_saved_activations
    cpu_offloading_num_layers delay_offload_until_cuda_graph delta_offload_bytes_across_pp_ranks
    activation_offload_fraction moe_shared_expert_overlap moe_permute_fusion_into_hybridep
    overlap_dispatch_backward_with_experts_wgrad ep_overlap_early_attn_memory_release mtp_standalone
    hierarchical_context_parallel_sizes hybrid_context_parallel tensor_parallel_num_weight_shards
    expert_tensor_parallel_num_weight_shards fp4_param_gather attention_backend transformer_impl
""")  # fmt: skip
TOUCHED = DECIDED.union(COMPANIONS.dests)
# Decided destinations whose values in a configuration are not known, each with what to do about it by hand.
Hidden = tuple[tuple[str, Unplaced], ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """An option and the values that it should have; (): a switch, None: it should be removed. dest: the parser's
    destination.
    """

    dest: str
    option: str
    values: tuple[str, ...] | None

    @property
    def now(self) -> str | None:
        return None if self.values is None else " ".join(self.values)


def wishes(now: Namespace, wanted: Namespace, families: Collection[Family]) -> list[Wish]:
    """Return the options to set in these families: first those given with another value, then those missing, then those
    to remove.

    In this order a new option is inserted beside the old one of its family before the old one is removed.
    """
    needed = [wish for family in FAMILIES if family in families for wish in _wishes(now, wanted, family)]
    return sorted(needed, key=lambda wish: (wish.values is None, having(now, wish.dest) is None))


def lacks(now: Namespace, wanted: Namespace, family: Family) -> bool:
    """Return whether an option that the plan sets differs, in a family that no field of a plan describes (such as
    kernels).
    """
    return not family.fields and any(_wishes(now, wanted, family))


def unequal(now: Namespace, wanted: Namespace) -> list[Family]:
    """Return the families with any option whose value differs, even if it would mean the same."""
    return [family for family in FAMILIES if any(_wishes(now, wanted, family))]


def having(names: Namespace, dest: str) -> Setting | None:
    """Return the last option given for this destination, even if its value could not be read; None if there is none."""
    flags = names.table.flags
    return names.setting(dest) or next(
        (setting for setting in reversed(names.settings) if setting.name in flags and flags[setting.name].dest == dest),
        None,
    )


def _wishes(now: Namespace, wanted: Namespace, family: Family) -> Iterator[Wish]:
    """Yield the options to set, change or remove so that one family has the values of `wanted`.

    An option that `wanted` does not give is removed only in families that fields of a plan describe.
    """
    for dest in family.dests:
        if now[dest] == wanted[dest]:
            continue
        goal, have = wanted.setting(dest), having(now, dest)
        if goal is not None:
            yield Wish(dest, goal.name, goal.texts)
        elif have is not None and family.fields:
            yield Wish(dest, have.name, None)


def neighbours(dest: str) -> tuple[str, ...]:
    """Return all other destinations, nearest first: of the same family, then of families before it, then of those
    after.

    Raises StopIteration for a destination that no family has.
    """
    families = (*FAMILIES, COMPANIONS)
    at = next(index for index, family in enumerate(families) if dest in family.dests)
    mine = families[at].dests
    own = mine.index(dest)
    before = [name for family in reversed(families[:at]) for name in reversed(family.dests)]
    after = [name for family in families[at + 1 :] for name in family.dests]
    return (*reversed(mine[:own]), *mine[own + 1 :], *before, *after)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a plan wants of Megatron-LM's options. table: the options of its release. settings: the options that the
    plan renders.
    """

    plan: Plan
    table: flags.FlagTable
    settings: tuple[Setting, ...]

    @classmethod
    def of(cls, plan: Plan, reading: Reading) -> Self:
        table = flags.flags(megatron.version(plan))
        words = [word for group in megatron.groups(plan) for option in group.options for word in option]
        return cls(plan, table, settings(words, "plan.json"))

    @property
    def wanted(self) -> Namespace:
        return Namespace(self.settings, self.table)

    @property
    def gpus(self) -> int:
        return self.plan.best.parallel.world_size

    def names(self, reading: Reading) -> Namespace:
        return Namespace(reading.settings, self.table)

    def dest(self, setting: Setting) -> str | None:
        flag = self.table.flags.get(setting.name)
        return None if flag is None else flag.dest

    def known(self, reading: Reading, hidden: Hidden) -> Namespace:
        """Return the configuration's options, with the plan's own in place of the hidden ones."""
        dests = {dest for dest, _ in hidden}
        mine = [setting for setting in reading.settings if self.dest(setting) not in dests]
        return Namespace([*mine, *(each for each in self.settings if self.dest(each) in dests)], self.table)

    def hidden(self, reading: Reading) -> Hidden:
        """Return the decided destinations whose value cannot be read, each with what is to be set by hand and why.

        These are options with an unknown value or one cut off by unread text, and options that unread text may give as
        well.
        """
        hidden = []
        for setting in reading.settings:
            flag = self.table.flags.get(setting.name)
            if flag is None or flag.dest not in DECIDED:
                continue
            why = setting.unknown
            if why is None and flag.kind == "store" and (not setting.values or flag.nargs in ("+", "*")):
                why = _cut_off(setting, reading)
            if why is not None:
                hidden.append(self._hidden(flag.dest, setting.name, f"its value {why}", setting.place))
        for item in reading.unread:
            hidden += [
                self._hidden(self.table.flags[name].dest, name, f"what gives it here {item.why}", item.place)
                for name in (item.what.replace("=", " ").split() if item.matters else ())
                if name in self.table.flags and self.table.flags[name].dest in DECIDED
            ]
        return tuple(hidden)

    def _hidden(self, dest: str, name: str, why: str, place: Place) -> tuple[str, Unplaced]:
        goal = self.wanted.setting(dest)
        if goal is None:
            return dest, Unplaced(name, None, why, place)
        return dest, Unplaced(goal.name, goal.text, why, place)

    def differing(self, names: Namespace, gpus: int) -> list[Family]:
        """Return the families whose meaning differs from the plan's.

        If the options are invalid together, return those with other values. Families with two exclusive options on, and
        kernels that the plan has and the configuration lacks, count as differing.
        """
        goal = self.meaning(self.wanted, self.gpus)
        try:
            have = self.meaning(names, gpus)
        except InputError:
            return unequal(names, self.wanted)
        return [
            family
            for family in FAMILIES
            if family.meaning(have) != family.meaning(goal)
            or sum(names[dest] is True for dest in family.exclusive.split()) > 1
            or lacks(names, self.wanted, family)
        ]

    def meaning(self, names: Namespace, gpus: int) -> Run:
        stated = Supplied(
            model=self.plan.model, seq_length=self.plan.best.batch.seq_length, vocab_size=self.plan.model.vocab_size
        )
        return run(names, gpus, self.plan.cluster, stated)


def _cut_off(setting: Setting, reading: Reading) -> str | None:
    """Return why the text right after the option was not read, since values of it may stand there.

    Return None if all was read.
    """
    text = next((text for text in reading.texts if text.file == setting.place.file), None)
    for item in reading.unread if text is not None else ():
        behind = item.place.file == setting.place.file and item.place.start >= setting.place.end
        if item.matters and behind and text is not None:
            between = text.data[setting.place.end : item.place.start]
            if not between.replace(b"\\", b"").strip(b" \t\r\n\"'"):
                return item.why
    return None
