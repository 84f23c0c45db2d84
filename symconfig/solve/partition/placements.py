"""A partition in the terms of PyTorch's DTensor: a device mesh, one placement per mesh dim for every parameter and
module, and the Python file that applies them.

A mesh dim is a run of axes that every node treats alike; like `init_device_mesh` it comes outermost first. Where two
split one tensor dim, the outer one cuts first, as DTensor has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.format import general
from symconfig.graph.layout import FLAT, PARTIAL, WHOLE
from symconfig.graph.program.build import matching_dims
from symconfig.graph.program.net import Net

WITHIN_NOTE = "cut along {dims} within a stored dim, which DTensor cannot express: replicated there"
FLAT_NOTE = "kept flat over some mesh dims, which FSDP2 does as Shard(0); gathered where it is used"
JOINED_NOTE = "{names}: each rank holds its part of every piece"
STATE_NOTE = "stage {stage}: the {what} cut flat over {dims}, the weight is whole there"
_NUMBER = re.compile(r"(?<![^.'])\d+(?![^.'])")  # a whole component of a path
_WHAT = {1: "optimizer state is", 2: "gradient and optimizer state are"}


class Placement(NamedTuple):
    """kind: Shard (of a tensor dim), Replicate or Partial."""

    kind: str
    dim: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}({'' if self.dim is None else self.dim})"


@dataclass(frozen=True, slots=True)
class MeshDim:
    """name: its level, numbered where it has several."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """shape: as the parameter's source stores it; local: on the first rank, which has most if parts are uneven. note:
    what DTensor cannot express, or "". pieces: what follows what in a split dim that a rewrite joined, or ""."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    local: tuple[int, ...]
    note: str = ""
    pieces: str = ""


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    name: str
    dims: tuple[str, ...]
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class ModulePlacement:
    """inputs: as the module wants what others made; outputs: as it makes what others read."""

    inputs: tuple[TensorPlacement, ...]
    outputs: tuple[TensorPlacement, ...]


@dataclass(frozen=True, slots=True)
class Placements:
    """Placements of the whole program, whatever was folded: of parameters and modules by path."""

    program: str
    mesh: tuple[MeshDim, ...]
    parameters: Mapping[str, ParameterPlacement]
    modules: Mapping[str, ModulePlacement]


def placements(net: Net, axes: Sequence[Axis], rows: Rows) -> Placements:
    """Return the DTensor placements of a strategy. rows: [nodes, axes], axes innermost first."""
    table = Table(net, axes, rows)
    return Placements(net.program.name, table.mesh, dict(_parameters(table)), dict(_modules(table)))


@dataclass(frozen=True)
class Table:
    """A strategy on the dims of a device mesh. rows: [nodes, axes], axes innermost first."""

    net: Net
    axes: Sequence[Axis]
    rows: Rows

    @cached_property
    def runs(self) -> list[list[int]]:
        """Return the dims of the device mesh, outermost first: each a list of axes (indices into `axes`).

        Adjacent axes of one level are one dim if every node has the same option on them.
        """
        result: list[list[int]] = []
        for index, axis in enumerate(self.axes):
            last = result[-1][-1] if result else index
            alike = bool(result) and np.array_equal(self.rows[:, last], self.rows[:, index])
            if alike and self.axes[last].level == axis.level:
                result[-1].append(index)
            else:
                result.append([index])
        return result[::-1]

    @property
    def mesh(self) -> tuple[MeshDim, ...]:
        """Return the dims of the device mesh, outermost first, named by their level.

        Of a level with several dims each name has a number, from the outermost: rail_0, rail_1.
        """
        levels = [self.axes[run[0]].level for run in self.runs]
        names = [
            level if levels.count(level) == 1 else f"{level}_{levels[:index].count(level)}"
            for index, level in enumerate(levels)
        ]
        return tuple(
            MeshDim(name, prod(self.axes[index].size for index in run))
            for name, run in zip(names, self.runs, strict=True)
        )

    def at(self, node: int, port: int) -> tuple[Placement, ...]:
        """Return the placements of a node's tensor on each mesh dim, in the forward pass."""
        places = self.net.nodes[node].ports[port].places
        return tuple(_placement(places[int(self.rows[node, run[0]])].forward) for run in self.runs)


def _placement(place: int) -> Placement:
    if place == PARTIAL:
        return Placement("Partial")
    if place == FLAT:
        return Placement("Shard", 0)
    return Placement("Shard", place) if place >= 0 else Placement("Replicate")


def _local_shape(shape: tuple[int, ...], cuts: Sequence[Placement], mesh: Sequence[MeshDim]) -> tuple[int, ...]:
    """Return the shape on the first rank, which is rounded up as by torch.chunk.

    Each placement in `cuts` with a dim divides that dim by the size of its mesh dim.
    """
    sizes = list(shape)
    for placement, dim in zip(cuts, mesh, strict=True):
        if placement.dim is not None:
            sizes[placement.dim] = -(-sizes[placement.dim] // dim.size)
    return tuple(sizes)


def _parameters(table: Table) -> Iterator[tuple[str, ParameterPlacement]]:
    """Yield the path (or tensor's name without one) and the placements of every parameter, on its stored shape.

    Flat (ZeRO-3) is Shard(0). A split of a dim that is not the outermost part of a stored dim becomes Replicate, with a
    note; so do mesh dims of ZeRO stages 1 and 2, whose note names what is sharded.
    """
    net, mesh = table.net, table.mesh
    joined = {op.inputs[1].name: op for op in net.program.operators if op.function == "*" and op.parts}
    for parameter, index in zip(net.program.parameters, net.parameter_of, strict=True):
        node, wanted = net.nodes[index], table.at(index, 0)
        dims = parameter.tensor.dims
        sizes = tuple(net.program.sizes[dim] for dim in dims)
        shape = parameter.shape or sizes
        at = stored(sizes, shape)
        zero = [node.options[int(table.rows[index, run[0]])].zero for run in table.runs]
        places = tuple(
            p if p.dim is None or flat else _placement(at[p.dim]) for p, flat in zip(wanted, zero, strict=True)
        )
        within = [dims[p.dim] for p, now in zip(wanted, places, strict=True) if p.dim is not None and now.dim is None]
        notes = [WITHIN_NOTE.format(dims=" and ".join(dict.fromkeys(within)))] if within else []
        pieces = ""
        if (op := joined.get(parameter.tensor.name)) is not None:
            (at_joined,) = (n for n, loop in enumerate(op.inputs[1].loops) if "+" in loop)
            if any(p.dim == at_joined and not flat for p, flat in zip(wanted, zero, strict=True)):
                pieces = JOINED_NOTE.format(names=" then ".join(general(part.inputs[1].name) for part in op.parts))
        note = "; ".join([*notes, *_notes(zero, mesh)])
        local = _local_shape(shape, places, mesh)
        yield parameter.path or parameter.tensor.name, ParameterPlacement(dims, shape, places, local, note, pieces)


def stored(sizes: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return for each dim the index of the stored dim of which it is the outermost part, or WHOLE.

    sizes: of the program's dims; shape: as the weight is stored, with the same product. WHOLE is for an inner part, for
    a dim that is not an exact part, and for size 1. Groups of dims are matched with groups of stored dims of equal
    product, in order; equal shapes map one to one.
    """
    if tuple(sizes) == tuple(shape):
        return tuple(range(len(sizes)))
    result = [WHOLE] * len(sizes)
    for mine, theirs in matching_dims(sizes, shape):
        if shape[theirs[0]] % sizes[mine[0]] == 0:
            result[mine[0]] = theirs[0]
    return tuple(result)


def _notes(zero: Sequence[int], mesh: Sequence[MeshDim]) -> list[str]:
    """Return notes on a parameter's ZeRO stages; empty without any. zero: the stage on each mesh dim, 0 for none.

    One note if it is flat (stage 3) on some mesh dim; one for each of the stages 1 and 2, naming the mesh dims that
    have it.
    """
    notes = [FLAT_NOTE] if 3 in zero else []
    for stage, what in _WHAT.items():
        dims = [dim.name for dim, at in zip(mesh, zero, strict=True) if at == stage]
        if dims:
            notes.append(STATE_NOTE.format(stage=stage, what=what, dims=" and ".join(dims)))
    return notes


def _modules(table: Table) -> Iterator[tuple[str, ModulePlacement]]:
    """Yield path and placements of each module's inputs and outputs, in program order.

    Operators with the same path form a module; one without a path is its own, by name. Inputs are activations that
    other modules make, placed as the first reader needs them. Left out: weights, and outputs that only the module
    itself reads; outputs that nothing reads are kept.
    """
    operators = table.net.program.operators
    inside: dict[str, list[int]] = {}
    readers: dict[str, set[str]] = {}
    for index, op in enumerate(operators):
        path = op.path or op.name
        inside.setdefault(path, []).append(index)
        for operand in op.inputs:
            readers.setdefault(operand.name, set()).add(path)
    weights = {parameter.tensor.name for parameter in table.net.program.parameters}
    for path, indices in inside.items():
        made = {operand.name for index in indices for operand in operators[index].outputs}
        inputs: dict[str, TensorPlacement] = {}
        outputs: dict[str, TensorPlacement] = {}
        for index in indices:
            op, node = operators[index], table.net.node_of[index]
            for port, use in enumerate((*op.inputs, *op.outputs)):  # as the node's ports
                tensor = TensorPlacement(use.name, table.net.program.tensors[use.name].dims, table.at(node, port))
                own = port >= len(op.inputs)
                if own and readers.get(use.name, {""}) - {path}:
                    outputs[use.name] = tensor
                elif not own and use.name not in weights and use.name not in made:
                    inputs.setdefault(use.name, tensor)
        yield path, ModulePlacement(tuple(inputs.values()), tuple(outputs.values()))


_FILE = '''"""Placements of {program} on a device mesh of {ranks} ranks, one for each mesh dim, outermost first.

A * in a path stands for a number. A parameter's shape is that of the planned program; a module that stores it otherwise
(transposed, fused) has its dims elsewhere.
"""

import re

from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

MESH_SHAPE = {shape}
MESH_DIM_NAMES = {names}

# Path of a parameter -> placements; in the comment [shape] -> [shape on the first rank].
PARAMETERS = {{
{parameters}
}}

# Path of a module -> placements of what it reads (as it wants it) and of what it makes (as others find it).
MODULES = {{
{modules}
}}


def placements(path, table=PARAMETERS):
    """Return the placements of a path: its own entry, or that of the pattern that it matches."""
    if path in table:
        return table[path]
    for pattern, found in table.items():
        if re.fullmatch(re.escape(pattern).replace(r"\\*", r"\\d+"), path):
            return found
    raise KeyError(f"{{path}} is not in the plan")


def distribute(module, mesh):
    """Replace every parameter of the module by a DTensor on the mesh (`init_device_mesh(device, MESH_SHAPE,
    mesh_dim_names=MESH_DIM_NAMES)`) and return the module. A parameter with several paths stays one."""
    known = {{}}
    for path, parameter in list(module.named_parameters(remove_duplicate=False)):
        if id(parameter) not in known:
            tensor = distribute_tensor(parameter.detach(), mesh, placements(path))
            known[id(parameter)] = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
        owner, _, name = path.rpartition(".")
        module.get_submodule(owner).register_parameter(name, known[id(parameter)])
    return module
'''


def python(placements: Placements) -> str:
    """Return the text of a Python file with the tables of placements and functions that apply them to a module.

    Paths that differ in numbers only are one entry, with * for the numbers, if all have the same dims, shapes,
    placements and notes; module's tensor names may differ.
    """

    def side(tensors: tuple[TensorPlacement, ...]) -> str:
        return ", ".join(f"{tensor.name!r}: {_tuple(map(str, tensor.placements))}" for tensor in tensors)

    modules, parameters = dict[str, tuple[object, str]](), dict[str, tuple[object, str]]()
    for path, module in placements.modules.items():
        sides = (module.inputs, module.outputs)
        # names differ even between equal layers: the first one reads what another kind of module made
        alike = tuple(tuple((tensor.dims, tensor.placements) for tensor in some) for some in sides)
        text = f"{{\n        'inputs': {{{side(sides[0])}}},\n        'outputs': {{{side(sides[1])}}},\n    }},"
        modules[path] = alike, text
    for path, one in placements.parameters.items():
        text = f"{_tuple(map(str, one.placements))},  # {list(one.shape)} -> {list(one.local)}" + (
            f"; {one.pieces}" if one.pieces else ""
        )
        parameters[path] = (one.dims, one.shape, one.placements, one.note, one.pieces), text
    return _FILE.format(
        program=json.dumps(placements.program, ensure_ascii=False)[1:-1],  # within a docstring: a person's text
        ranks=" x ".join(str(dim.size) for dim in placements.mesh) or "1",
        shape=_tuple(str(dim.size) for dim in placements.mesh),
        names=_tuple(repr(dim.name) for dim in placements.mesh),
        parameters=_table(parameters),
        modules=_table(modules),
    )


def _table(entries: Mapping[str, tuple[object, str]]) -> str:
    """Return the lines of a table from path to (key, text).

    If all of several paths that differ in numbers only have the same key, the last one's text stands for them, with *
    for each number in path and text; else each path has its own line.
    """
    patterns: dict[str, dict[str, tuple[object, str]]] = {}
    for path, entry in entries.items():
        patterns.setdefault(_NUMBER.sub("*", path), {})[path] = entry
    lines = []
    for pattern, some in patterns.items():
        if len(some) > 1 and len({key for key, _ in some.values()}) == 1:
            some = {pattern: (None, _NUMBER.sub("*", list(some.values())[-1][1]))}
        lines += [f"    {path!r}: {text}" for path, (_, text) in some.items()]
    return "\n".join(lines)


def _tuple(items: Iterable[str]) -> str:
    each = list(items)
    return f"({', '.join(each)}{',' if len(each) == 1 else ''})"
