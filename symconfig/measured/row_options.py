"""What a measured row states of how it ran, and what its source's assumption gives where it does not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.strict import PositiveInt
from symconfig.errors import InputError
from symconfig.frameworks.megatron.behaviour import MEGATRON, MEGATRON_LOCAL
from symconfig.frameworks.megatron.options import (
    by_destination,
    instances,
    kernels,
    recomputed,
    weight_shards,
    zero_stage,
)
from symconfig.frameworks.megatron.releases import MEGATRON_VOCAB_MULTIPLE
from symconfig.measured.assumptions import KINDS, Assumption
from symconfig.measured.row_cluster import cluster_of, network_stated, unread_network
from symconfig.plans.configuration import ZeroStage
from symconfig.units import MIB

# Words of `features`, as Megatron's recipes for mixtures of experts spell them -> options. CG: CUDA graphs.
_FEATURES: Mapping[str, dict[str, Any]] = {
    "full CG": {"graphed": "all"},
    "partial CG": {"graphed": "outside experts"},
    "router/preprocess CG": {"graphed": "router"},
    "DeepEP": {"dispatcher": "deepep"},
    "HybridEP": {"dispatcher": "hybridep"},
    "EP overlap": {"moe_a2a": True},
    "offload": {"activation_offload": True},
    "BF16 baseline": {},  # as the precision says
    "MXFP8": {},
}
# Names and values of options as sources spell them -> as they are here; no values: any, as it is; None: says nothing.
_SPELLED: Mapping[str, tuple[str, Mapping[Any, Any]]] = {
    "cp_comm_type": ("cp_comm", {"p2p": "p2p", "megatron_cp_algo": "p2p", "a2a": "a2a", "all_gather": "all_gather"}),
    "grad_accumulation_dtype": ("gradient_bytes", {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}),
    "moe_dispatcher": ("dispatcher", {}),
    "cuda_graph": ("graphed", {True: "all", False: "none"}),
    "fp8_params": ("quantised_weights", {}),
    "chunked_loss": ("loss", {True: "fused", False: None}),  # in fp32 chunk by chunk; backward keeps all logits in bf16
    "cross_entropy_fusion": ("loss", {"te": "fused", "native": "parallel", True: "parallel", False: None}),
    "fused_rmsnorm": ("fused_norm", {}),
}
# Options of rows alone, by name -> their types.
_KINDS: Mapping[str, Any] = {
    **KINDS,
    **dict.fromkeys(("activation_offload", "async_tp", "moe_a2a", "packed_single_sample", "torch_compile"), bool),
    **dict.fromkeys(("embedding_counts_as_layer", "loss_counts_as_layer", "optimizer_offload", "param_offload"), bool),
    **dict.fromkeys(("etp", "first_layers", "fsdp_degree", "last_layers"), PositiveInt),
    "zero1_group": int,  # -1: all ranks
    **dict.fromkeys(("fsdp_mixed_precision", "layout", "recompute_method", "transformer_impl"), str),
    "ends_as_layers": tuple[int, int],
    "recompute_modules": tuple[str, ...],
    "reshard_after_forward": bool,
}
# What says again what another option says, or in these words what is predicted.
_SAID_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "megatron_args": (),
    "transformer_impl": (),
    "pipeline_schedule": (),
    "precision_setting": (),
    "method": (),  # of mapping experts: the degrees say it
    "fp8_scope": ("linear",),
}


# Overlaps of rows -> Megatron-LM's destinations, each off unless it is given.
_OVERLAPS = {"grad_reduce": "overlap_grad_reduce", "param_gather": "overlap_param_gather", "tp_comm": "tp_comm_overlap"}


class RowOptions:
    """Options of a row, then of its source's assumption; keeps what was assumed."""

    def __init__(self, row: Row, assumption: Assumption, cluster: ClusterDescriptor | None = None) -> None:
        """Read the options of a row: those of its Megatron arguments (if any), overridden by its own; records an
        assumed GPU, and an assumed network if the run spans nodes (of 8 GPUs unless stated) or has an unknown number of
        GPUs. cluster: replaces the row's. Raises InputError for an option not understood or a GPU unknown.
        """
        self.row, self.assumption = row, assumption
        self.cluster = cluster or cluster_of(row, assumption)
        own, self._unread = _spelled(row.options.model_dump(exclude_none=True))
        given = _from_arguments(row) | {"deferred_gradients": _deferred(row)} if own.get("megatron_args") else {}
        self.stated, self._unused = given | own, set(own)
        self.taken: dict[str, str] = {}
        self.documented: dict[str, str] = {}
        self.guess("gpu", assumption.gpu, row.cluster.gpu is None)
        nodes = row.cluster.gpus is None or row.cluster.gpus > (row.cluster.gpus_per_node or 8)
        self.guess("network", assumption.network, nodes and network_stated(row) is None)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return as `name: value` the row's own options that `option` has not been asked for so far, words that are not
        understood, and link speeds that cannot be read. Options that are False, repeat another option, or have the
        value that is predicted anyway, are left out.
        """
        values = ((name, self.stated[name]) for name in sorted(self._unused))
        values = (each for each in values if not _as_predicted(*each))
        return (
            *(f"{name}: {value}" for name, value in values if value is not False),
            *self._unread,
            *unread_network(self.row),
        )

    def guess(self, name: str, value: object, matters: bool) -> None:
        """Record an assumed value as text if it matters and is not None: in `documented` if the source documents this
        name for its rows, else in `taken`. A later value of a name replaces the earlier.
        """
        if matters and value is not None:
            into = self.documented if name in self.assumption.documented else self.taken
            into[name] = str(value).lower() if isinstance(value, bool) else str(value)

    def option(self, name: str, default: Any, matters: bool = True) -> Any:
        """Return the row's value of an option, else its source's, else the default. Marks the option as read. A value
        that the row does not state, also the default, is recorded by `guess` if it matters.
        """
        self._unused.discard(name)
        if name in self.stated:
            return self.stated[name]
        value = self.assumption.options.get(name, default)
        self.guess(name, value, matters)
        return value

    def get(self, name: str, default: Any = None, matters: bool = True) -> Any:
        """Return the same as `option`, but do not record the default."""
        return self.option(name, default, matters and name in self.assumption.options)

    def overlap(self, matters: bool) -> dict[str, bool]:
        """Return {communication: whether it overlaps}: the row's entries over the source's; what neither has is left
        out. Marks the option as read; the source's entries are recorded if it matters.
        """
        self._unused.discard("overlap")
        stated, usual = self.stated.get("overlap") or {}, self.assumption.options.get("overlap", {})
        rest = {name: default for name, default in usual.items() if name not in stated}
        self.guess("overlap", rest, matters and bool(rest))
        return {**rest, **stated}

    def batch(self, name: str) -> int:
        """Return `micro` or `seq_length`: stated, else assumed, else micro from global batch // (dp x assumed gradient
        accumulation), at least 1. Records an assumed value. Raises InputError if there is none.
        """
        value = getattr(self.row.batch, name)
        if value is not None:
            return int(value)
        value = getattr(self.assumption.batch, name)
        if name == "micro" and value is None and self.assumption.batch.grad_accum:
            p, whole = self.row.parallel, self.row.batch.global_ or 0
            value = max(1, whole // (p.get("dp", 1) * self.assumption.batch.grad_accum))
        if value is None:
            raise InputError("is not stated, and nothing is assumed for this source", field=f"batch.{name}")
        self.tuned(name, int(value), self.assumption.tuned.micro if name == "micro" else (), True)
        return int(value)

    def tuned(self, name: str, value: int, others: Sequence[int], matters: bool) -> None:
        """Record an assumed value, as "the best of …" if the source ran the best of several."""
        self.guess(name, f"the best of {', '.join(map(str, (value, *others)))}" if others else value, matters)

    def zero(self, replicated: bool) -> ZeroStage:
        """Return the ZeRO stage: stated; else 1 or 0 by the distributed optimizer if that is stated or assumed; else 3
        for FSDP; else the source's, else 0, recorded if `replicated`. A stated or assumed stage 3 counts as 1 if
        reshard_after_forward is false.
        """
        shards, fsdp = self.get("distributed_optimizer"), self.get("fsdp")
        if "zero_stage" not in self.stated and shards is not None:
            return 1 if shards else 0
        if fsdp and "zero_stage" not in self.stated:
            return 3
        stage: ZeroStage = self.option("zero_stage", 0, replicated)
        # FSDP that keeps gathered weights and whole gradients until the last microbatch cuts up states only.
        return stage if self.get("reshard_after_forward", True) or stage < 3 else 1


def _spelled(options: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a row's options under symconfig's names and types, and words not understood as `name: value`. Words are
    compared without case. `features` is split at ";" into options; unknown words of it, and a `loss` that is only true
    or false, are listed as not understood; values that say nothing are dropped. If only one of embedding and loss
    counts as a layer is stated, both count alike. Raises InputError for a value that an option does not have.
    """
    spelled, unread = dict(options), list[str]()
    for words in filter(None, map(str.strip, str(spelled.pop("features", "")).split(";"))):
        known = known_word(words, _FEATURES)
        spelled |= {} if known is None else _FEATURES[known]
        unread += [f"features: {words}"] if known is None else []
    if isinstance(spelled.get("loss"), bool):  # which kernel is not said
        unread.append(f"loss: {spelled.pop('loss')}")
    for theirs, (ours, meanings) in _SPELLED.items():
        if theirs in spelled:
            word = spelled.pop(theirs)
            known = known_word(word, meanings)
            if meanings and known is None:
                raise _not_understood(theirs, word, meanings)
            meant = meanings[known] if meanings else word
            spelled |= {} if meant is None else {ours: meant}
    for name in spelled.keys() & _KINDS.keys():
        kind, value = _KINDS[name], spelled[name]
        allowed = get_args(kind) if get_origin(kind) is Literal else ()
        try:
            spelled[name] = TypeAdapter(kind).validate_python(known_word(value, allowed) or value, strict=kind is bool)
        except ValidationError:
            raise _not_understood(name, value, allowed or (getattr(kind, "__name__", str(kind)),)) from None
    ends = [spelled.pop(f"{end}_counts_as_layer", None) for end in ("embedding", "loss")]
    if any(end is not None for end in ends):  # a source that speaks of one end counts both alike
        first, last = (next(end for end in order if end is not None) for order in (ends, ends[::-1]))
        spelled["ends_as_layers"] = (int(first), int(last))
    return spelled, tuple(unread)


def _as_predicted(name: str, value: Any) -> bool:
    """Return whether an unread option repeats another one or has the value that is predicted anyway."""
    words = _SAID_ELSEWHERE.get(name)
    return words == () or (words is not None and known_word(value, words) is not None)


def known_word(word: object, words: Iterable[Any]) -> Any:
    """Return the entry of `words` that equals `word` but for case, or None."""
    return next((each for each in words if str(each).lower() == str(word).lower()), None)


def _not_understood(name: str, value: object, words: Iterable[Any]) -> InputError:
    need = ", ".join(map(str, words))
    return InputError("is not understood", field=f"options.{name}", got=str(value), need=need)


def _from_arguments(row: Row) -> dict[str, Any]:
    """Return the options that the row's Megatron-LM arguments state, Megatron's defaults included.

    Only if they apply: zero_stage (Megatron FSDP), cp_comm (all_gather and a2a), recompute_modules (selective),
    recompute_method and recompute_layers (full), attention_kernel (deterministic mode; local layers without flash),
    ends_as_layers. first_layers, last_layers: None if not given.
    """
    names = by_destination(row.options.megatron_args or {})
    local, added_apart = names.get("transformer_impl") == "local", names.get("gradient_accumulation_fusion") is False
    result: dict[str, Any] = {
        "loss": "parallel",
        **dict(kernels(names, MEGATRON, row.model.attention == "mla", bool(names.get("num_experts")))),
        "transformer_impl": "local" if local else "transformer_engine",
        "accumulated_bytes": MEGATRON_LOCAL.accumulated_bytes if added_apart else 0.0,
        "quantised_weights": bool(names.get("fp8_param_gather")),
        "vocab_multiple": names.get("make_vocab_size_divisible_by") or MEGATRON_VOCAB_MULTIPLE,
        "layout": names.get("pipeline_model_parallel_layout") or "",
        "sequence_parallel": bool(names.get("sequence_parallel")),
        "overlap": {name: bool(names.get(dest)) for name, dest in _OVERLAPS.items()},
        "moe_a2a": bool(names.get("overlap_moe_expert_parallel_comm")),
        "activation_offload": bool(names.get("fine_grained_activation_offloading")),
        "etp": names.get("expert_tensor_parallel_size") or names.get("tensor_model_parallel_size") or 1,
        "microbatch_group": names.get("microbatch_group_size_per_vp_stage") or 0,
        "optimizer_instances": instances(names),
        "gtp": weight_shards(names),
    }
    if names.get("use_megatron_fsdp"):
        result["zero_stage"] = zero_stage(names)
    result |= recomputed(names)
    if names.get("deterministic_mode"):  # wants CUBLAS_WORKSPACE_CONFIG=:4096:8, eight buffers of 4 MiB
        result |= {"torch_workspace": 32 * MIB, "attention_kernel": "deterministic"}
    if local and not names.get("use_flash_attn"):
        fused = names.get("masked_softmax_fusion") is not False
        result["attention_kernel"] = "fused-softmax" if fused else "torch-unfused"
    kind = re.findall(r"p2p|all_gather|a2a\+p2p|a2a", str(names.get("cp_comm_type", "")))
    if kind and kind[0] in ("all_gather", "a2a"):
        result["cp_comm"] = kind[0]
    ends = [f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
    if any(names.get(end) for end in ends):
        result["ends_as_layers"] = [int(bool(names.get(end))) for end in ends]
    for end in ("first", "last"):
        result[f"{end}_layers"] = names.get(f"decoder_{end}_pipeline_num_layers")
    return result


def _deferred(row: Row) -> int:
    """Return the number of microbatches whose embedding weight gradient is deferred: the limit (all without one), at
    most all but one; 0 without the option. A batch or dp that is not stated counts as 1.
    """
    arguments, batch = row.options.megatron_args or {}, row.batch
    if not arguments.get("defer-embedding-wgrad-compute"):
        return 0
    ran = (batch.global_ or 1) // ((batch.micro or 1) * row.parallel.get("dp", 1))
    return min(int(arguments.get("wgrad-deferral-limit") or ran), ran - 1)
