"""A network as people state it, `4x100 Gb/s` or `400 Gb/s per GPU, 2:1`, read into the levels of a cluster."""

from __future__ import annotations

import re

from symconfig.descriptor.cluster import ClusterDescriptor, Level, Quantity
from symconfig.descriptor.mesh import NETWORK
from symconfig.errors import InputError, Problem

_BYTES = {"Gb": 1e9 / 8, "Gbit": 1e9 / 8, "GB": 1e9, "Tb": 1e12 / 8, "Tbit": 1e12 / 8, "TB": 1e12}  # a bit is no byte
_SPEED = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>[GT](?:b|bit|B))(?:/s|ps)(?!\w)")
_PORTS = re.compile(r"\A(?P<ports>\d+) ?[x×] ?")
_OVER = re.compile(r"(?:oversubscribed )?\b(?P<over>\d+(?:\.\d+)?):1(?: oversubscribed)?(?![\w.])")
_SHARE = re.compile(r"\b(?:per|a) (?P<owner>gpu|node)\b", re.IGNORECASE)
# Words that say what kind of link it is and change no speed.
_KINDS = re.compile(
    r"(?:InfiniBand|IB|[EHNX]DR|RoCE(?:v2)?|RDMA|Ethernet|EFA|Omni-Path|Slingshot|NVLink\d?|NVSwitch|xGMI|HCCS|PCIe"
    r"|per direction|one direction|unidirectional)\b",
    re.IGNORECASE,
)


def gpu_bytes_per_s(text: str, gpus_per_node: int, alone: str | None = None) -> float:
    """Return what one GPU has of the stated network, one direction.

    Ports are those of a node, which its GPUs share, if the text does not say `per GPU`. alone: `gpu` or `node`, what a
    speed without ports and owner is meant for. Raises InputError for a text of which a word is not understood.
    """
    rest = re.sub(r"\([^)]*\)", " ", text).strip()  # the name of a system stands in parentheses
    _, rest = _taken(_OVER, rest)
    ports, rest = _taken(_PORTS, rest)
    speed, rest = _taken(_SPEED, rest)
    share, rest = _taken(_SHARE, rest)
    unknown = re.sub(r"[\s,;/+]+", " ", _KINDS.sub(" ", rest)).strip()
    if speed is None or unknown:
        what = f"{unknown!r} is not understood" if unknown else "states no speed"
        raise InputError(_problem(what, text))
    owner = share["owner"].lower() if share else "node" if ports else alone
    if owner is None:
        raise InputError(_problem("does not say whether this is of a GPU or of a node", text))
    rate = float(speed["number"]) * _BYTES[speed["unit"]] * (int(ports["ports"]) if ports else 1)
    if rate <= 0:
        raise InputError(_problem("is no speed", text))
    return rate / gpus_per_node if owner == "node" else rate


def with_network(
    cluster: ClusterDescriptor, text: str, source: str, gpus_per_node: int | None = None
) -> ClusterDescriptor:
    """Return the cluster with the stated network between its nodes: all levels of switches have this speed, and a
    stated oversubscription is that of the outermost.
    """
    rate = gpu_bytes_per_s(text, gpus_per_node or cluster.gpus_per_node)
    levels = [at_rate(level, rate, source) if level.name in NETWORK else level for level in cluster.levels]
    if over := _OVER.search(text):
        ratio = Quantity(value=float(over["over"]), source=source)
        if ratio.value < 1:
            raise InputError(_problem("is no oversubscription", text))
        levels[-1] = levels[-1].model_copy(update={"oversubscription": ratio})
    return cluster.model_copy(update={"levels": tuple(levels)})


def at_rate(level: Level, bytes_per_s: float, source: str) -> Level:
    """Return the level with another bandwidth."""
    return level.model_copy(update={"bandwidth_bytes_per_s": Quantity(value=bytes_per_s, source=source)})


def _taken(pattern: re.Pattern[str], text: str) -> tuple[re.Match[str] | None, str]:
    """The first match, and the text without it."""
    found = pattern.search(text)
    return found, text if found is None else f"{text[: found.start()]} {text[found.end() :]}"


def _problem(what: str, text: str) -> Problem:
    need = "ports and their speed, or the speed of a GPU or a node"
    return Problem(what, field="network", got=text, need=need, hint="4x100 Gb/s, or 400 Gb/s per GPU")
