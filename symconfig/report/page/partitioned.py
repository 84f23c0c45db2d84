"""What the page of a partition draws: where each tensor lies, and what each operator takes and holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from symconfig.format import general
from symconfig.graph.layout import WHOLE
from symconfig.graph.program.net import Node, Port
from symconfig.report.page.pictures import Bars, Held, Picture, Tensor
from symconfig.report.partition import storage
from symconfig.report.partition_contents import Contents
from symconfig.solve.partition.account import Spent, shares
from symconfig.solve.partition.strategy import layout

MOST_BARS = 16  # of a picture; the others are one
_LEAST = 1e-3  # of the longest bar: what is shorter counts among the others
_SECONDS = ("computation", "communication", "optimizer", "relative")
_BYTES = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "transient_bytes")
_WORDS = {
    "communication": "communication that shows",
    "relative": "kept, over gamma",
    "optimizer_bytes": "optimizer state",
    "transient_bytes": "while it runs",
}


def of_partition(report: Contents) -> tuple[Picture, ...]:
    """Draw a partition: the mesh with the parts of each tensor, the step by operator, and the memory by operator."""
    partition = report.partition
    every = [
        (general(node.name), share)
        for node, share in zip(
            partition.net.nodes, shares(partition.costs, partition.axes, partition.rows, partition.gamma), strict=True
        )
    ]
    unit, scale = ("ms a step", 1e3) if report.timed else ("relative cost", 1.0)
    peak = max((share.transient_bytes for _, share in every), default=0.0)
    mesh, tensors = partition.ask.mesh, tuple(_tensors(report))
    return (
        Held(
            "Which GPUs hold which part",
            mesh.gpus,
            mesh.levels[0].size if mesh.levels else 1,
            tuple((axis.size, axis.stride) for axis in partition.axes),
            tensors,
            _largest(report, tensors),
        ),
        _bars("The step by operator", unit, every, _SECONDS, lambda name, share: scale * float(getattr(share, name))),
        _bars(
            "The memory at the peak by operator and parameter",
            "GiB",
            every,
            _BYTES,
            lambda name, share: _held(name, share, peak) / 2**30,
        ),
    )


def _largest(report: Contents, tensors: Sequence[Tensor]) -> int:
    """Return the place of the parameters that are most of the model; 0 where it has none."""
    sizes = {
        general(node.name): node.times * node.ports[0].elements
        for node in report.partition.net.nodes
        if node.parameter is not None
    }
    name = max(sizes, key=lambda name: sizes[name], default="")
    return next((place for place, one in enumerate(tensors) if one.name.startswith(f"{name}: ")), 0)


def _held(name: str, share: Spent, peak: float) -> float:
    """Return a node's bytes of a kind at the peak, at which one operator runs."""
    value = float(getattr(share, name))
    return value if name != "transient_bytes" or value == peak else 0.0


def _bars(
    title: str,
    unit: str,
    every: list[tuple[str, Spent]],
    parts: tuple[str, ...],
    value: Callable[[str, Spent], float],
) -> Bars:
    """Sum up nodes of a name, the longest bars first."""
    sums: dict[str, list[float]] = {}
    for name, share in every:
        row = sums.setdefault(name, [0.0] * len(parts))
        for place, part in enumerate(parts):
            row[place] += value(part, share)
    ranked = sorted(sums.items(), key=lambda item: -sum(item[1]))
    least = _LEAST * sum(ranked[0][1]) if ranked else 0.0
    shown = [item for item in ranked[:MOST_BARS] if sum(item[1]) > least]
    if rest := [row for _, row in ranked[len(shown) :] if sum(row) > 0]:
        shown.append((f"{len(rest)} others", [sum(row[place] for row in rest) for place in range(len(parts))]))
    series = [
        (_WORDS.get(part, part.removesuffix("_bytes")), tuple(row[place] for _, row in shown))
        for place, part in enumerate(parts)
    ]
    return Bars(title, unit, tuple(name for name, _ in shown), tuple(one for one in series if any(one[1])))


def _tensors(report: Contents) -> Iterator[Tensor]:
    """Yield what operators make, and how parameters are kept."""
    partition = report.partition
    for node, row in zip(partition.net.nodes, partition.rows, strict=True):
        if node.parameter is not None:
            yield from _kept(node, row, report)
        elif node.operator is not None:
            for port in node.ports[len(node.operator.inputs) :]:
                says = layout(port, row, partition.axes).text(report.names)
                yield Tensor(general(port.tensor.name), general(says), _cut(port, row))


def _kept(node: Node, row: tuple[int, ...], report: Contents) -> Iterator[Tensor]:
    """Yield a parameter, its gradient and its optimizer state, as one where they are cut alike."""
    assert node.parameter is not None
    name, cut = general(node.name), _cut(node.ports[0], row)
    groups: dict[tuple[bool, ...], list[str]] = {}
    texts = dict(zip(("weight", "gradient", "optimizer state"), storage(node, row, report), strict=True))
    for stage, what in ((3, "weight"), (2, "gradient"), (1, "optimizer state")):
        if node.parameter.trainable or what == "weight":
            own = tuple(part or node.options[option].zero >= stage for part, option in zip(cut, row, strict=True))
            groups.setdefault(own, []).append(what)
    for own, kinds in groups.items():
        words = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
        text = texts[kinds[0]]
        yield Tensor(f"{name}: {words}", f"{name}, {words}, {text}", own)


def _cut(port: Port, row: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(port.places[option].forward != WHOLE for option in row)
