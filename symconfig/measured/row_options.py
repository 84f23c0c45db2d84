"""What a measured row states of how it ran, and what its source's assumption gives where it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from symconfig.descriptor.amounts import at_rate, gpu_bytes_per_s, with_network
from symconfig.descriptor.cluster import ClusterDescriptor, Level, Quantity
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.strict import PositiveInt
from symconfig.errors import InputError
from symconfig.measured.assumptions import KINDS, Assumption, assumptions
from symconfig.plans.configuration import ZeroStage
from symconfig.units import GIB

# Dynamic power goes with the clock and the square of the voltage, which goes with the clock, too.
CLOCK_OF_POWER = 1 / 3
ACROSS_SOCKETS = "a100-80gb-pcie"  # a cluster of the zoo in whose nodes some GPUs reach each other through processors


def forget_zoo() -> None:
    """Clear the cache of zoo clusters, after a file of the zoo has changed."""
    _zoo_clusters.cache_clear()


@cache
def _zoo_clusters() -> dict[str, ClusterDescriptor]:
    known = [load_cluster(name) for name in zoo_clusters()]
    return {name: cluster for cluster in known for name in (cluster.name, *cluster.aliases)}


def known(name: str) -> bool:
    """Return whether the zoo has a cluster of this name or alias."""
    return name in _zoo_clusters()


def cluster_of(row: Row, assumption: Assumption) -> ClusterDescriptor:
    """Return the row's cluster with its links and network, and with memory, bandwidth and clock (from
    power^CLOCK_OF_POWER) changed as the assumptions list for its GPU. The GPU is the row's, else the source's. Raises
    InputError if no GPU is stated or assumed, or if it is unknown.
    """
    name = row.cluster.gpu or assumption.gpu
    if name is None:
        raise InputError("is not stated", field="cluster.gpu")
    change = next((item for item in assumptions().clusters if item.gpu == name), None)
    base = _zoo_clusters().get(change.base if change else name)
    if base is None:
        raise InputError("is no GPU of the zoo", field="cluster.gpu", got=name)
    base = _connected(base, row, assumption)
    if change is None:
        return base
    gpu = base.gpu
    if change.memory_gib:
        gpu = gpu.model_copy(
            update={"memory_bytes": gpu.memory_bytes.model_copy(update={"value": change.memory_gib * GIB})}
        )
    if change.memory_bandwidth_bytes_per_s:
        rate = gpu.memory_bandwidth_bytes_per_s.model_copy(update={"value": change.memory_bandwidth_bytes_per_s})
        gpu = gpu.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    if change.power_w and gpu.power_w:
        clock = (change.power_w / gpu.power_w.value) ** CLOCK_OF_POWER
        gpu = gpu.model_copy(update={"clock": Quantity(value=clock, source=change.reason)})
    return base.model_copy(update={"gpu": gpu})


def network_stated(row: Row) -> str | None:
    """Return the row's text on the network between nodes, or None if it states no understood speed."""
    return _understood(row.cluster.inter_node, None)


def _understood(text: str | None, alone: str | None) -> str | None:
    """Return the text if a speed can be parsed from it, else None. alone: unit that a bare speed is per."""
    try:
        return text if text and gpu_bytes_per_s(text, 1, alone) else None
    except InputError:
        return None


def _connected(base: ClusterDescriptor, row: Row, assumption: Assumption) -> ClusterDescriptor:
    """Return the cluster with the NVLink domain, GPU links and network of the row, as far as their speeds can be
    parsed.

    A domain counts if larger than 1 and smaller than the cluster's first level; if smaller than a node, a level across
    sockets (of ACROSS_SOCKETS) is added. The source's assumed network is used if the row states none; without either
    the cluster's stays.
    """
    stated, first, between = row.cluster, base.levels[0], tuple[Level, ...]()
    gpus_per_node, domain = stated.gpus_per_node or base.gpus_per_node, stated.nvlink_domain
    if domain is not None and 1 < domain < (first.size or 0):
        first = first.model_copy(update={"size": domain, "mesh": domain < gpus_per_node})
        if domain < gpus_per_node:  # boards without a switch, each with links between its GPUs alone
            (across,) = (level for level in _zoo_clusters()[ACROSS_SOCKETS].levels if level.name == "node")
            between = (across.model_copy(update={"size": gpus_per_node}),)
    if link := _understood(stated.intra_node, "gpu"):
        first = at_rate(first, gpu_bytes_per_s(link, gpus_per_node, "gpu"), link)
    if first is not base.levels[0]:
        base = base.model_copy(update={"levels": (first, *between, *base.levels[1:])})
    network = network_stated(row) or assumption.network
    return with_network(base, network, network, stated.gpus_per_node) if network else base


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
_TYPES: Mapping[str, Any] = {
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
    "pipeline_schedule": (),
    "precision_setting": (),
    "method": (),  # of mapping experts: the degrees say it
    "fp8_scope": ("linear",),
}


class RowOptions:
    """Options of a row, then of its source's assumption; keeps what was assumed."""

    def __init__(self, row: Row, assumption: Assumption, cluster: ClusterDescriptor | None = None) -> None:
        """Read the options of a row; records an assumed GPU, and an assumed network if the run spans nodes (of 8 GPUs
        unless stated) or has an unknown number of GPUs. cluster: replaces the row's. Raises InputError for an option
        not understood or a GPU unknown.
        """
        self.row, self.assumption = row, assumption
        self.cluster = cluster or cluster_of(row, assumption)
        self.stated, self._unread = _spelled(row.options.model_dump(exclude_none=True))
        self._unused = self.stated.keys() - {"megatron_args"}
        self.taken: dict[str, str] = {}
        self.documented: dict[str, str] = {}
        self.guess("gpu", assumption.gpu, row.cluster.gpu is None)
        nodes = row.cluster.gpus is None or row.cluster.gpus > (row.cluster.gpus_per_node or 8)
        self.guess("network", assumption.network, nodes and network_stated(row) is None)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return as `name: value` what the row states and no prediction takes in: options, words, link speeds.

        They are its own options that `option` has not been asked for so far, words that are not understood, and link
        speeds that cannot be read. Options that are False, repeat another option, or have the value that is predicted
        anyway, are left out.
        """
        left = []
        for name in sorted(self._unused):
            value, words = self.stated[name], _SAID_ELSEWHERE.get(name)
            predicted = words is not None and (not words or known_word(value, words) is not None)
            if value is not False and not predicted:
                left.append(f"{name}: {value}")
        stated = self.row.cluster
        links = (("inter_node", stated.inter_node, None), ("intra_node", stated.intra_node, "gpu"))
        speeds = (f"{name}: {text}" for name, text, alone in links if text and not _understood(text, alone))
        return (*left, *self._unread, *speeds)

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
    for name in spelled.keys() & _TYPES.keys():
        kind, value = _TYPES[name], spelled[name]
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


def known_word(word: object, words: Iterable[Any]) -> Any:
    """Return the entry of `words` that equals `word` but for case, or None."""
    return next((each for each in words if str(each).lower() == str(word).lower()), None)


def _not_understood(name: str, value: object, words: Iterable[Any]) -> InputError:
    need = ", ".join(map(str, words))
    return InputError("is not understood", field=f"options.{name}", got=str(value), need=need)


# Spellings of attention kernels in the sources -> (implementation, rate over the newest flash kernel's). Version 2 has
# half of version 3's rate on Hopper (arXiv 2407.08608, section 1: 35 and 75 % of the peak), and is the newest before
# it; version 1 has 0.56 of version 2's (arXiv 2307.08691, section 1: 25-40 and 50-73 %), and its Triton form 1.25 times
# that (section 4.1: version 2 is 1.7 to 3.0 times as fast as version 1, 1.3 to 2.5 times as fast as that form).
_ATTENTION: dict[str, tuple[str, float]] = {
    "flash": ("flash", 1.0),
    "flash2": ("flash", 0.5),
    "flash1": ("flash", 0.28),
    "triton": ("flash", 0.35),
    "fused-softmax": ("fused_softmax", 1.0),
    "unfused": ("fused_softmax", 1.0),
    "not flash": ("fused_softmax", 1.0),
    "torch-unfused": ("torch", 1.0),
    "masked": ("masked", 1.0),
}
_RATE_BEFORE_HOPPER = {"flash2": 1.0, "flash1": 0.56, "triton": 0.7}
_BEFORE_HOPPER = ("volta", "ampere", "ada")


def attention_of(name: str, architecture: str) -> tuple[str, float]:
    """Return (implementation, rate relative to the newest flash kernel) of an attention kernel. name: a source's
    spelling, in any case; InputError if unknown. architecture: the GPU's, which changes some rates.
    """
    spelling = known_word(name, _ATTENTION)
    if spelling is None:
        need = ", ".join(_ATTENTION)
        raise InputError("is not understood", field="options.attention_kernel", got=name, need=need)
    name, (kernel, rate) = spelling, _ATTENTION[spelling]
    return kernel, _RATE_BEFORE_HOPPER.get(name, rate) if architecture in _BEFORE_HOPPER else rate
