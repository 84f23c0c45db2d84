"""A partitioned module as data: the traced graph's nodes, and the layouts in which each of them runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import Net, Option, operator_options
from symconfig.graph.program.torch_source.factory import made
from symconfig.graph.program.torch_source.lower import Lowering, lowered
from symconfig.solve.partition.placements import MeshDim, Placements, Table, placements
from tools.partitions.executed.layouts import Layout, Layouts, Ran
from tools.partitions.executed.nodes import seen, tensors

CHECKS = ("aten._assert_tensor_metadata.default",)  # which compute nothing


@dataclass(frozen=True, slots=True)
class Gathered:
    """A node that runs whole along a mesh dim where the solver split it. bytes_each: what each rank gets for it in one
    forward pass that it would not have needed."""

    node: str
    mesh: str
    why: str
    bytes_each: float


@dataclass(frozen=True)
class Executed:
    """lowering: of the module as it was traced. ran: of each node how it runs. gathered: where that is not as the
    solver chose. placements: of the parameters."""

    lowering: Lowering
    mesh: tuple[MeshDim, ...]
    placements: Placements
    ran: Mapping[str, Ran]
    gathered: tuple[Gathered, ...]


def trace(source: str) -> Lowering:
    """Return the traced graph of the module that a factory makes."""
    module, args, kwargs = made(source)
    return lowered(module, args, kwargs, source)


def executed(lowering: Lowering, net: Net, axes: Sequence[Axis], rows: Rows) -> Executed:
    """Return how each node of a traced module runs under a strategy of its program."""
    return _Walk(lowering, Table(net, axes, rows), placements(net, axes, rows)).walked()


def _options(table: Table) -> dict[str, tuple[Option, ...]]:
    """Return by operator name the option of the operator on each mesh dim, outermost first.

    It is the option of the operator itself, not of the one that stands for it in the folded net.
    """
    program, result = table.net.program, {}
    for op, node in zip(program.operators, table.net.node_of, strict=True):
        own = operator_options(program, op)
        result[op.name] = tuple(own[int(table.rows[node, run[0]])] for run in table.runs)
    return result


@dataclass
class _Walk:
    lowering: Lowering
    table: Table
    placements: Placements

    def walked(self) -> Executed:
        mesh = self.table.mesh
        layouts = Layouts(seen(self.lowering), mesh, _options(self.table))
        self._placeholders(layouts)
        ran: dict[str, Ran] = {}
        gathered: list[Gathered] = []
        for node in computed(self.lowering):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor) and not hasattr(node.target, "_schema"):  # one of several results
                layouts.taken(node.name, node.args[0].name, int(node.args[1]))
                continue
            before = [layouts.laid[source.name] for source in tensors(node)]
            results = 1 if isinstance(value, torch.Tensor) else len(value)
            one = ran[node.name] = layouts.run(node, results)
            for name, why in one.whole:
                gathered.append(Gathered(node.name, name, why, self._bytes(node, name, before)))
        return Executed(self.lowering, mesh, self.placements, ran, tuple(gathered))

    def _placeholders(self, layouts: Layouts) -> None:
        placed = {path: entry.placements for path, entry in self.placements.parameters.items()}
        specs = {spec.arg.name: spec for spec in self.lowering.exported.graph_signature.input_specs}
        for node in self.lowering.exported.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            if spec.kind is InputKind.PARAMETER:
                path = self.lowering.paths[str(spec.target)]
                dims = layouts.seen.parameters[path]
                layouts.parameter(node.name, dims, [one.dim for one in placed[path]])
            else:
                layouts.fed(node.name)

    def _bytes(self, node: Node, name: str, before: Sequence[Layout]) -> float:
        number = next(at for at, dim in enumerate(self.table.mesh) if dim.name == name)
        total = 0.0
        for source, layout in zip(tensors(node), before, strict=True):
            word = layout.placements[number]
            if word != "Replicate()":
                value = source.meta["val"]
                others = prod(
                    dim.size
                    for at, (dim, placed) in enumerate(zip(self.table.mesh, layout.placements, strict=True))
                    if at != number and placed.startswith("Shard")
                )
                size = self.table.mesh[number].size
                total += value.numel() * value.dtype.itemsize / others * (size - 1) / size
        return total


def computed(lowering: Lowering) -> list[Node]:
    """Return the nodes that compute something that is used."""
    nodes = [node for node in lowering.exported.graph.nodes if node.op == "call_function"]
    return [
        node for node in nodes if str(node.target) not in CHECKS and (node.users or hasattr(node.target, "_schema"))
    ]


def inputs(lowering: Lowering) -> list[Node]:
    """Return the tensors that a user gives, in order."""
    specs = {spec.arg.name: spec for spec in lowering.exported.graph_signature.input_specs}
    nodes = [node for node in lowering.exported.graph.nodes if node.op == "placeholder"]
    given = [node for node in nodes if specs[node.name].kind is InputKind.USER_INPUT]
    return [node for node in given if isinstance(node.meta.get("val"), torch.Tensor)]


def data(one: Executed) -> dict[str, Any]:
    """Return the table that the file reads: plain numbers and words."""
    numbers: dict[Layout, int] = {}

    def number(layout: Layout) -> int:
        return numbers.setdefault(layout, len(numbers))

    nodes: dict[str, Any] = {}
    for name, ran in one.ran.items():
        nodes[name] = {"inputs": [number(x) for x in ran.inputs], "outputs": [number(x) for x in ran.outputs]}
        if ran.parts > 1:
            nodes[name]["parts"] = ran.parts
        if ran.whole:
            nodes[name]["whole"] = dict(ran.whole)
    whole = ("Replicate()",) * len(one.mesh)
    plain = number(Layout(whole, whole))
    return {
        "schema": "symconfig.partitioned/1",
        "mesh": {"shape": [dim.size for dim in one.mesh], "names": [dim.name for dim in one.mesh]},
        "inputs": {node.name: list(node.meta["val"].shape) for node in inputs(one.lowering)},
        "parameters": {
            path: [str(placed) for placed in entry.placements] for path, entry in one.placements.parameters.items()
        },
        "layouts": [layout.entry() for layout in numbers],
        "nodes": {
            name: entry
            for name, entry in nodes.items()
            if {*entry["inputs"], *entry["outputs"]} - {plain} or len(entry) > 2
        },
    }
