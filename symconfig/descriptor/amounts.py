"""Amounts with units, as people write them, `96GB` or `3.4us`, and networks, `4x100 Gb/s` or `400 Gb/s per GPU`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf

from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor, Level, Quantity
from symconfig.errors import InputError, Problem
from symconfig.units import GIB

# Decimals, so that 5us is the number that 5e-6 is.
_POWERS = {"k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15)}
_GIB = Decimal(GIB)
_BYTES = {f"{prefix}B": power for prefix, power in _POWERS.items()}
_BYTES |= {"MiB": _GIB / 1024, "GiB": _GIB, "TiB": _GIB * 1024}
_PARTS = {"b": 8, "bit": 8, "B": 1}  # of a byte
_SPEEDS = {f"{prefix}{unit}": _POWERS[prefix] / part for prefix in "MGT" for unit, part in _PARTS.items()}
_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-zµ/]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of quantity, with its units.

    units: factor to SI (bytes, bytes/s, s, FLOP/s) by unit. need: how a person writes one, for errors.
    """

    units: Mapping[str, Decimal]
    need: str


SIZE = Kind(_BYTES, "a size as 96GB or 90GiB")
SPEED = Kind(
    {f"{unit}{end}": factor for unit, factor in _SPEEDS.items() for end in ("/s", "ps")},
    "a speed as 300GB/s or 400Gb/s",
)
_SPANS = {"s": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6", "ns": "1e-9"}
SPAN = Kind({unit: Decimal(power) for unit, power in _SPANS.items()}, "a time as 3.4us")
PEAK = Kind(
    {f"{prefix}FLOP{end}": power for prefix, power in _POWERS.items() for end in ("/s", "S")}, "a rate as 989TFLOP/s"
)


def amount(text: str, kind: Kind) -> float:
    """Return an amount with its unit as a number in SI: bytes, bytes/s, seconds or FLOP/s, as `kind` says.

    As `96GB`, `90GiB`, `400Gb/s`, `3.4us`, `989 TFLOP/s`: a small b is a bit, a capital B a byte, and k to P are powers
    of 1000. Raises ValueError for text that is no unsigned number with a unit, for a missing unit, for one that is not
    of this kind, and for a number too large for a float.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError("is no number with a unit")
    unit = match["unit"]
    if unit is None:
        raise ValueError("has no unit")
    if unit not in kind.units:
        meant = [known for known in kind.units if known.lower() in (unit.lower(), f"{unit.lower()}/s")]
        named = [f"{known} ({'bytes' if 'B' in known else 'bits'})" if len(meant) > 1 else known for known in meant]
        raise ValueError(f"{unit} is no unit of it" + (f", {' or '.join(named)} is" if named else ""))
    value = float(Decimal(match["number"]) * kind.units[unit])
    if value == inf:
        raise ValueError("is no finite number")
    return value


_A_SPEED = re.compile(r"\d+(?:\.\d+)? ?[A-Za-z]+(?:/s|ps)(?!\w)")
_PORTS = re.compile(r"\A(?P<ports>\d+) ?[x×] ?")
_OVER = re.compile(
    r"(?:oversubscri(?:bed|ption) )?\b(?P<ratio>\d+(?:\.\d+)?):1(?: oversubscribed)?(?![\w.])"
    r"|\boversubscription (?P<number>\d+(?:\.\d+)?)(?![\w.:])"
)
_SHARE = re.compile(r"\b(?:per|a) (?P<owner>gpu|node)\b", re.IGNORECASE)
# Words that say what kind of link it is and change no speed.
_KINDS = re.compile(
    r"(?:InfiniBand|IB|[EHNX]DR|RoCE(?:v2)?|RDMA|Ethernet|EFA|Omni-Path|Slingshot|NVLink\d?|NVSwitch|xGMI|HCCS|PCIe"
    r"|per direction|(?:in )?one direction|unidirectional)\b",
    re.IGNORECASE,
)
# Data sheets print NVLink with both directions added.
_BOTH = re.compile(r"\b(?:(?:in )?both directions|bidirectional)\b", re.IGNORECASE)
# The fastest port that is sold (NVIDIA ConnectX-8 data sheet: 800 Gb/s). Above it a port in bytes is one meant in bits.
FASTEST_PORT_BYTES_PER_S = 100e9


def gpu_bytes_per_s(text: str, gpus_per_node: int, alone: str | None = None) -> float:
    """Return one GPU's bandwidth in bytes/s, one direction, of a text such as `4x100 Gb/s` or `400 Gb/s per GPU`.

    A node's speed is divided by `gpus_per_node`; text in parentheses, an oversubscription and names of links are
    ignored. Raises InputError for no speed, unknown words, a wrong unit, a speed that is not said to be a GPU's or a
    node's, a speed of 0 or infinity, and a port given in bytes that is faster than any that is sold (then bits are
    suggested).

    Args:
        text: The network. `4x` multiplies the speed. `per GPU` or `per node` names the owner; without it, ports are a
            node's. A speed "in both directions" is halved.
        gpus_per_node: The GPUs that share what a node has.
        alone: The owner, `gpu` or `node`, of a speed with neither ports nor a named owner; None: that is an error.
    """
    rest = re.sub(r"\([^)]*\)", " ", text).strip()  # the name of a system stands in parentheses
    found = []
    for pattern in (_OVER, _PORTS, _A_SPEED, _SHARE, _BOTH):
        found.append(pattern.search(rest))
        rest = pattern.sub(" ", rest, count=1)
    _, ports, speed, share, both = found
    unknown = re.sub(r"[\s,;/+]+", " ", _KINDS.sub(" ", rest)).strip()
    if speed is None or unknown:
        what = f"{unknown!r} is not understood" if unknown else "states no speed"
        raise InputError(_misread(what, text))
    try:
        rate = amount(speed[0], SPEED) / (2 if both else 1)
    except ValueError as error:
        raise InputError(_misread(str(error), text)) from None
    owner = share["owner"].lower() if share else "node" if ports else alone
    if owner is None:
        raise InputError(_misread("does not state whether this is per GPU or per node", text))
    if ports and "B" in speed[0] and rate > FASTEST_PORT_BYTES_PER_S:
        in_bits = speed[0].replace("B", "b")
        what = f"a port of {speed[0]} (bytes) is faster than any, {in_bits} (bits) is meant"
        raise InputError(_misread(what, text, hint=text.replace(speed[0], in_bits)))
    rate *= float(ports["ports"]) if ports else 1
    if not 0 < rate < inf:
        raise InputError(_misread("is no speed", text))
    return rate / gpus_per_node if owner == "node" else rate


def says_direction(text: str) -> bool:
    """Return whether the text says that its speed is of one direction or of both."""
    return bool(_BOTH.search(text) or re.search(r"direction", text))


def oversubscription(text: str) -> float | None:
    """Return the first stated oversubscription in the text, `2:1` or `oversubscription 2`; None if there is none.

    Raises InputError for a ratio below 1 or infinite.
    """
    over = _OVER.search(text)
    if over is None:
        return None
    ratio = float(over["ratio"] or over["number"])
    if not 1 <= ratio < inf:
        raise InputError(_misread("is no oversubscription", text))
    return ratio


def with_network(
    cluster: ClusterDescriptor, text: str, source: str, gpus_per_node: int | None = None
) -> ClusterDescriptor:
    """Return the cluster with the speed of `text` on its levels between nodes (NETWORK); source: of the new numbers.

    A stated oversubscription is set on the outermost level. A node's speed is divided by `gpus_per_node`, None: the
    cluster's. Raises InputError for a text without a valid speed that is said to be a GPU's or a node's, and for an
    oversubscription below 1.
    """
    rate = gpu_bytes_per_s(text, gpus_per_node or cluster.gpus_per_node)
    levels = tuple(at_rate(level, rate, source) if level.name in NETWORK else level for level in cluster.levels)
    if (ratio := oversubscription(text)) is not None:
        over = Quantity(value=ratio, source=source)
        levels = (*levels[:-1], levels[-1].model_copy(update={"oversubscription": over}))
    return cluster.model_copy(update={"levels": levels})


def at_rate(level: Level, bytes_per_s: float, source: str) -> Level:
    """Return the level with this bandwidth, per GPU and direction."""
    return level.model_copy(update={"bandwidth_bytes_per_s": Quantity(value=bytes_per_s, source=source)})


def _misread(what: str, text: str, hint: str = "4x100 Gb/s, or 400 Gb/s per GPU") -> Problem:
    need = "ports and their speed, or the speed of a GPU or a node"
    return Problem(what, field="network", got=text, need=need, hint=hint)
