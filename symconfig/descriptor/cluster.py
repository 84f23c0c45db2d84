"""The cluster descriptor: GPU, host and network levels, each number with its source and uncertainty; and the names of
clusters with what differs from them; and clusters of two kinds of GPUs.

A job records `h100 with network=4x200Gb/s and gpu_memory=96GB`, and the cluster is made again from that. `--set` adds
to it; `h100@4x200 Gb/s` is short for its network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from symconfig.descriptor.document import Document, plain, shorten
from symconfig.descriptor.strict import PositiveInt, Strict
from symconfig.errors import InputError, Problem, Problems

LONGEST_NAME = 200
# Levels of switches and cables between nodes, which libraries fill otherwise than a node's own links.
NETWORK = frozenset({"rail", "spine"})


class Quantity(Strict):
    """A number, where it comes from, and how far off it may be (relative, one standard deviation)."""

    value: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    source: str = Field(min_length=1, description="datasheet or paper; or 'fitted: COMMAND'; or 'assumed: reason'")
    uncertainty: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0


# Constants of kernels that are shares of a peak: nothing runs faster than that, and a plan from more would be a dream.
SHARES = (
    "gemm_efficiency",
    "gemm_efficiency_low",
    "hbm_efficiency",
    "attention_efficiency",
    "link_efficiency",
    "network_efficiency",
)
# What a machine can have, by the end of a field's name: far beyond any that was built. Outside of it a number is a
# mistake, and a division by it no time.
_RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("_bytes_per_s", 1.0, 1e18, " bytes/s"),
    ("_bytes", 1.0, 1e18, " bytes"),
    ("_s", 0.0, 3600.0, " s"),
    ("", 1e-6, 1e6, ""),
)
_FLOPS = ("", 1.0, 1e21, " FLOP/s")
_MAY_BE_NOTHING = frozenset({"context_bytes", "gemm_k_half"})


class Measured(Strict):
    """A section of a cluster with numbers, each within what a machine can have."""

    @field_validator("*")
    @classmethod
    def _within(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the value unchanged. Raises ValueError for a `Quantity` out of its field's range; other values pass.

        A share of a peak (SHARES) must be above 0 and at most 1. Else the range follows from the end of the field's
        name, that of FLOP/s in Precisions; context_bytes and gemm_k_half may be 0.
        """
        if isinstance(value, Quantity):
            name = str(info.field_name)
            if name in SHARES and not 0 < value.value <= 1:
                raise ValueError(f"value is a share of the peak, above 0 and at most 1, got {value.value:g}")
            ranges = (_FLOPS,) if issubclass(cls, Precisions) else _RANGES
            _, low, high, unit = next(one for one in ranges if name.endswith(one[0]))
            low = 0.0 if name in _MAY_BE_NOTHING else low
            if not low <= value.value <= high:
                raise ValueError(f"value is out of range, got {value.value:g}, need {low:g} to {high:g}{unit}")
        return value


class Level(Measured):
    """One level of the network, innermost first. A group that leaves the level inside it crosses this one."""

    name: Literal["nvlink", "pcie", "xgmi", "hccs", "node", "rail", "spine"]
    size: PositiveInt | None = Field(description="GPUs in one domain of this level; null: the whole cluster")
    bandwidth_bytes_per_s: Quantity = Field(description="per GPU, one direction, as the wire has it")
    latency_s: Quantity = Field(description="of one message between two GPUs across this level")
    oversubscription: Quantity | None = Field(default=None, description="bandwidth below / bandwidth through; 1: none")
    mesh: bool = Field(
        default=False,
        description="links to each peer and no switch: n of `size` GPUs reach (n-1)/(size-1) of the bandwidth",
    )


class Precisions(Measured):
    """Dense peak FLOP/s by precision (no sparsity); absent: the GPU cannot."""

    fp32: Quantity | None = None
    fp16: Quantity
    bf16: Quantity | None = None
    fp8: Quantity | None = None
    mxfp8: Quantity | None = None
    nvfp4: Quantity | None = None


class Kernels(Measured):
    """The shares of the peak that real kernels reach. Few constants a GPU; the shape dependence is in the formulas."""

    gemm_efficiency: Quantity = Field(description="of the peak, for one full wave of tiles and infinite K")
    gemm_efficiency_low: Quantity | None = Field(default=None, description="the same for fp8 and fp4; absent: as above")
    gemm_k_half: Quantity = Field(description="K at which a GEMM reaches half of that: K / (K + this)")
    hbm_efficiency: Quantity = Field(description="of the memory bandwidth, for streaming kernels")
    launch_s: Quantity = Field(description="floor of one kernel, launch included")
    attention_efficiency: Quantity = Field(description="flash attention forward, of the peak, causal FLOPs halved")
    attention_backward_ratio: Quantity = Field(description="backward attention's rate over the forward's")
    link_efficiency: Quantity = Field(description="of the wire's bandwidth, for large collectives")
    network_efficiency: Quantity | None = Field(default=None, description="the same on rail and spine; absent: as it")


class KernelsFile(Kernels):
    """A GPU type's constants in a file of their own, for all clusters that have it. A cluster names the file."""

    schema_: Literal["symconfig.kernels/1"] = Field(alias="schema")

    @property
    def constants(self) -> Kernels:
        return Kernels(**{name: getattr(self, name) for name in Kernels.model_fields})


class Gpu(Measured):
    product: str
    vendor: Literal["nvidia", "amd", "huawei"]
    architecture: str = Field(description="volta, ampere, ada, hopper, blackwell, cdna3, cdna4, davinci")
    compute_units: PositiveInt = Field(description="SMs, CUs or AI cores, for wave quantisation")
    memory_bytes: Quantity = Field(description="what the driver reports as total")
    memory_bandwidth_bytes_per_s: Quantity
    peak_flops: Precisions
    context_bytes: Quantity = Field(description="device context, communication library and other libraries")
    power_w: Quantity | None = None
    clock: Quantity | None = Field(
        default=None,
        description="of matrix products under its power limit, over that of its type at the highest; absent: 1",
    )


class Host(Measured):
    memory_bytes: Quantity = Field(description="per node")
    link_bytes_per_s: Quantity = Field(description="GPU to host, per GPU, one direction")
    launching: Quantity | None = Field(
        default=None, description="a launching thread's time over that of an x86 server's; absent: as long"
    )


class ClusterDescriptor(Strict):
    """A homogeneous cluster."""

    schema_: Literal["symconfig.cluster/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    aliases: tuple[str, ...] = Field(default=(), description="other spellings of this GPU in measurement files")
    source: str
    announced: bool = Field(
        default=False, description="its GPU is announced only: the kernels are another's, and intervals are wider"
    )
    gpus_per_node: PositiveInt
    max_gpus: PositiveInt | None = None
    gpu: Gpu
    host: Host
    levels: tuple[Level, ...] = Field(min_length=1, max_length=4)
    kernels: Kernels

    @property
    def joined_gpus(self) -> int:
        """Return the GPUs in the largest domain below the network: those of a node, or of a rack.

        It is 1 without such a level.
        """
        return max((level.size or 1 for level in self.levels if level.name not in NETWORK), default=1)

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each name that two levels have, and unless sizes are above 1 and grow by whole factors;
        the last one, and it alone, is null.
        """
        names, sizes = [level.name for level in self.levels], [level.size for level in self.levels]
        known = [size for size in sizes[:-1] if size is not None]
        yield from (f"levels have two of the name {name}" for name in dict.fromkeys(names) if names.count(name) > 1)
        if sizes[-1] is not None:
            yield "levels must end with one of size: null (the whole cluster)"
        if None in sizes[:-1]:
            yield "levels may have size: null in the last place only"
        if 1 in known:
            yield "levels have one that joins nothing, of one GPU: leave it out"
        for small, large in pairwise(known):
            if large % small or large <= small:
                yield f"levels must grow by whole factors in size, got {small} then {large}"


def merged(base: Any, over: Any) -> Any:
    """Return `over` merged into `base`, key by key at every depth, as a new value; keys that only `base` has stay.

    `over` replaces `base` where either is no dict, and where `over` is a quantity (a dict with the key `value`).
    """
    if not isinstance(over, dict) or not isinstance(base, dict) or "value" in over:
        return over
    return {**base, **{name: merged(base.get(name), value) for name, value in over.items()}}


def with_gpus_per_node(levels: list[dict[str, Any]], before: int, now: int, source: str) -> list[dict[str, Any]]:
    """Return the levels (dicts, innermost first) of a cluster whose nodes have `now` GPUs in place of `before`.

    The node's level gets `now` GPUs, levels inside it at most `now`, and network levels join as many nodes as before. A
    level no larger than the one inside it (or of one GPU) is dropped. Bandwidths per GPU stay, except for direct links
    that get fewer (`_fewer_links`). The list itself is returned if now == before or a level that is no network spans
    nodes.
    """
    if now == before or any((each["size"] or 0) > before for each in levels if each["name"] not in NETWORK):
        return levels
    fields: list[dict[str, Any]] = []
    for level in levels:
        size: int | None = level["size"]
        if size is not None and level["name"] in NETWORK:
            size = size * now // before
        elif size is not None:
            size = now if size == before else min(size, now)
        if size is None or size > max([each["size"] for each in fields], default=1):
            fields.append(_fewer_links({**level, "size": size}, level["size"], source))
    return fields


def _fewer_links(level: dict[str, Any], before: int | None, source: str) -> dict[str, Any]:
    """Return a level of direct links with its bandwidth times (size - 1) / (before - 1): the links that are left.

    The source of the new bandwidth names `source`, the GPUs and the old source. Returned unchanged if the level is
    switched (no `mesh`), has no size, or its size is not below `before` (its size until now).
    """
    now = level["size"]
    if not level.get("mesh") or before is None or now is None or now >= before:
        return level
    old = level["bandwidth_bytes_per_s"]
    rate = {**old, "value": old["value"] * (now - 1) / (before - 1), "source": f"{source}: {now} GPUs; {old['source']}"}
    return {**level, "bandwidth_bytes_per_s": rate}


@dataclass(frozen=True, slots=True)
class Share:
    """One kind of GPU in a mixed cluster, and the number of GPUs of that kind."""

    cluster: ClusterDescriptor
    gpus: int

    @property
    def nodes(self) -> int:
        """Return the number of full nodes."""
        return self.gpus // self.cluster.gpus_per_node


@dataclass(frozen=True, slots=True)
class MixedCluster:
    """Two kinds of GPUs under one network.

    over_bytes_per_s: bandwidth between the kinds per GPU, one direction; None: that of the slower one's own network.
    """

    name: str
    shares: tuple[Share, Share]
    over_bytes_per_s: float | None = None

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of both kinds."""
        return sum(share.gpus for share in self.shares)


_FIELD = r"[A-Za-z_][A-Za-z_0-9.]*"
_WITH = re.compile(rf"(?P<base>.+?) with (?P<changes>{_FIELD}\s*=.*)", re.DOTALL)
_NEXT = re.compile(rf"(?:\s*,\s*|\s+and\s+)(?={_FIELD}\s*=)")
_CHANGE = re.compile(rf"(?P<field>{_FIELD})\s*=\s*(?P<value>.*\S)\s*", re.DOTALL)
CLUSTER = "cluster"
_MOST = 100  # fields that differ
OVER = "over"  # before the network between two kinds of GPUs
_KINDS = re.compile(
    r"\s*(?P<one>.+?)\s*\*\s*(?P<ones>[1-9]\d{0,8})\s*\+\s*(?P<other>.+?)\s*\*\s*(?P<others>[1-9]\d{0,8})(?P<rest>.*)",
    re.DOTALL,
)
_OVER = re.compile(rf"\s+{OVER}\s+(?P<network>.*\S)\s*", re.DOTALL)


def kinds(name: str) -> tuple[tuple[str, int], tuple[str, int], str | None] | None:
    """Return ((name, GPUs), (name, GPUs), network) of a name such as `h100*16 + a100-80gb*16 over 400Gb/s`.

    The network is the text after `over`, None without it. None is returned for a name of any other form. Raises
    InputError for other text after the second number of GPUs.
    """
    match = _KINDS.fullmatch(name)
    if match is None:
        return None
    over = _OVER.fullmatch(match["rest"])
    if match["rest"].strip() and over is None:
        need = f"nothing, or the network between them: {OVER} 400Gb/s"
        hint = "what differs stands with its kind: 'h100 with network=4x200Gb/s*16 + a100-80gb*16'"
        raise InputError(
            "cannot stand behind two kinds", field=CLUSTER, got=shorten(match["rest"].strip()), need=need, hint=hint
        )
    return (match["one"], int(match["ones"])), (match["other"], int(match["others"])), over["network"] if over else None


def split(name: str) -> tuple[str, dict[str, str]]:
    """Return (base, changes) of a cluster's name; changes are texts by field, {} for a plain name.

    `base with field=value, field=value` (or `and`) gives these fields; else `base@network` (at the last @) gives the
    field network. Raises InputError for more than 100 changes and for a field with two values.
    """
    match = _WITH.fullmatch(name)
    if match is not None:
        return match["base"], pairs(_NEXT.split(match["changes"]), CLUSTER)
    base, at, network = name.rpartition("@")
    return (base, {"network": network}) if at else (name, {})


def pairs(words: list[str], field: str) -> dict[str, str]:
    """Return `FIELD=VALUE` words as a dict of texts; a field given twice with the same value counts once.

    field: the option that errors name. Raises InputError for more than 100 words, or with a problem for each word of
    another form and each field with two values.
    """
    if len(words) > _MOST:
        raise InputError("too many fields differ", field=field, got=str(len(words)), need=f"at most {_MOST}, or a file")
    fields: dict[str, str] = {}
    problems = Problems()
    for word in words:
        match = _CHANGE.fullmatch(word.strip())
        if match is None:
            need = "FIELD=VALUE as network=4x200Gb/s"
            problems.add(Problem("is no field of a cluster with a value", field=field, got=shorten(word), need=need))
        elif fields.setdefault(match["field"], match["value"]) != match["value"]:
            got = f"{fields[match['field']]} and {match['value']}"
            problems.add(Problem(f"{match['field']} is given twice", field=field, got=got, need="one value"))
    problems.check()
    return fields


def joined(base: str, changes: Mapping[str, str]) -> str:
    """Return a cluster's name with changes, in the form `base with f=v and g=w`; `base` itself if there are none.

    Changes that `base` states already are kept, and replaced where `changes` has the same field. Raises InputError if
    `base` states more than 100 changes or a field with two values.
    """
    if not changes:
        return base
    plain_name, before = split(base)
    every = {**before, **changes}
    return f"{plain_name} with {' and '.join(f'{field}={value}' for field, value in every.items())}"


def as_document(changes: Mapping[str, str]) -> Document:
    """Return the changes as a Document without a file: dotted fields become nested dicts, texts are parsed as values.

    Raises InputError if a field is both a value and a section, as `gpu` beside `gpu.product`.
    """
    data: dict[str, Any] = {}
    for field, text in changes.items():
        *above, last = field.split(".")
        section = data
        for name in above:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InputError(f"{name} is a value and a section", field=f"{CLUSTER}.{field}")
        if last in section:
            raise InputError(f"{last} is a value and a section", field=f"{CLUSTER}.{field}")
        section[last] = _value(text)
    return Document(data, file="")


def _value(text: str) -> Any:
    """Return the text's value as YAML reads it; text that YAML refuses stays text."""
    try:
        return plain(text)
    except ValueError:
        return text
