"""A plan as PyTorch's DTensor says it: a device mesh, and for every parameter and module one placement per mesh dim.

A mesh dim is a run of axes that every node treats alike; like `init_device_mesh` it comes outermost first. Where two
split one tensor dim, the outer one cuts first, as DTensor has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.layout import FLAT, PARTIAL
from symconfig.graph.operator import Operator
from symconfig.graph.program.net import Net, Option, operator_options

WITHIN_NOTE = "cut along {dims} within a stored dim, which DTensor cannot say: whole there"
FLAT_NOTE = "kept flat over some mesh dims, which FSDP2 does as Shard(0); gathered where it is used"
STATE_NOTE = "stage {stage}: the {what} cut flat over {dims}, the weight is whole there"
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
    """Parameters that lie alike. path: with * for numbers where all paths that differ in those only are `paths`, else
    the first of them. shape: as its source stores it; local: on the first rank, which has most if parts are uneven."""

    path: str
    paths: tuple[str, ...]
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    local: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    name: str
    dims: tuple[str, ...]
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class ModulePlacement:
    """Modules that do alike. path: as of parameters, and the tensors' names have * with it. inputs: as the module wants
    what others made; outputs: as it makes what others read."""

    path: str
    paths: tuple[str, ...]
    inputs: tuple[TensorPlacement, ...]
    outputs: tuple[TensorPlacement, ...]


Entry = TypeVar("Entry", ParameterPlacement, ModulePlacement)


@dataclass(frozen=True, slots=True)
class Placements:
    """Placements of the whole program, whatever was folded."""

    program: str
    mesh: tuple[MeshDim, ...]
    parameters: tuple[ParameterPlacement, ...]
    modules: tuple[ModulePlacement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serializable data, with placements as PyTorch prints them and the number of paths as `times`.

        `paths` is left out if `path` has a * or is the only one.
        """
        data = asdict(self)
        for entry in (*data["parameters"], *data["modules"]):
            entry["times"] = len(entry["paths"])
            if "*" in entry["path"] or entry["times"] == 1:
                del entry["paths"]
            for holder in (entry, *entry.get("inputs", ()), *entry.get("outputs", ())):
                if "placements" in holder:
                    holder["placements"] = [str(Placement(*item)) for item in holder["placements"]]
        return {"schema": "symconfig.placements/1", **data}


def placements(net: Net, axes: Sequence[Axis], rows: Rows) -> Placements:
    """Return the DTensor placements of a strategy, equal parameters and modules grouped by pattern of their paths.

    rows: [nodes, axes], axes innermost first.
    """
    table = table_of(net, axes, rows)
    return Placements(
        net.program.name,
        table.mesh,
        _grouped(_parameters(table), lambda one: (one.dims, one.shape, one.placements, one.note)),
        tuple(map(_patterned, _grouped(_modules(table), _layouts))),
    )


def table_of(net: Net, axes: Sequence[Axis], rows: Rows) -> Table:
    """Return the mesh dims that these rows need and the placements of nodes on them. rows: [nodes, axes]."""
    return Table(net, axes, rows, runs_of(axes, rows))


def runs_of(axes: Sequence[Axis], rows: Rows) -> list[list[int]]:
    """Return groups of adjacent axes of one level on which every node has the same option, outermost group first.

    Each group is a dim of the device mesh, a list of indices into `axes`.
    """
    result: list[list[int]] = []
    for index, axis in enumerate(axes):
        last = result[-1][-1] if result else None
        if last is not None and axes[last].level == axis.level and np.array_equal(rows[:, last], rows[:, index]):
            result[-1].append(index)
        else:
            result.append([index])
    return result[::-1]


@dataclass(frozen=True)
class Table:
    """runs: axes of each mesh dim, outermost first."""

    net: Net
    axes: Sequence[Axis]
    rows: Rows
    runs: Sequence[Sequence[int]]

    @property
    def mesh(self) -> tuple[MeshDim, ...]:
        """Return the dims of the device mesh, outermost first; names of levels with several dims get a number."""
        levels = [self.axes[run[0]].level for run in self.runs]
        names = [
            level if levels.count(level) == 1 else f"{level}_{levels[:index].count(level)}"
            for index, level in enumerate(levels)
        ]
        return tuple(
            MeshDim(name, prod(self.axes[index].size for index in run))
            for name, run in zip(names, self.runs, strict=True)
        )

    def options(self) -> dict[str, tuple[Option, ...]]:
        """Return, by operator name, the option that each operator has on each mesh dim, in its own unfolded loops."""
        program, result = self.net.program, {}
        for op, node in zip(program.operators, self.net.node_of, strict=True):
            own = operator_options(program, op)
            result[op.name] = tuple(own[int(self.rows[node, run[0]])] for run in self.runs)
        return result

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


def _local(shape: tuple[int, ...], cuts: Sequence[Placement], mesh: Sequence[MeshDim]) -> tuple[int, ...]:
    """Return the shape on the first rank; uneven splits round up, as torch.chunk does."""
    sizes = list(shape)
    for placement, dim in zip(cuts, mesh, strict=True):
        if placement.dim is not None:
            sizes[placement.dim] = -(-sizes[placement.dim] // dim.size)
    return tuple(sizes)


def _parameters(table: Table) -> Iterator[ParameterPlacement]:
    """Yield the placements of every parameter, in the stored shape, with notes on what DTensor cannot express.

    A split within a stored dim becomes Replicate.
    """
    net, mesh = table.net, table.mesh
    for parameter, index in zip(net.program.parameters, net.parameter_of, strict=True):
        node, wanted = net.nodes[index], table.at(index, 0)
        dims = parameter.tensor.dims
        sizes = tuple(net.program.sizes[dim] for dim in dims)
        shape = parameter.shape or sizes
        at = stored(sizes, shape)
        zero = [node.options[int(table.rows[index, run[0]])].zero for run in table.runs]
        places = tuple(p if p.dim is None or flat else _moved(at[p.dim]) for p, flat in zip(wanted, zero, strict=True))
        within = [dims[p.dim] for p, now in zip(wanted, places, strict=True) if p.dim is not None and now.dim is None]
        notes = [WITHIN_NOTE.format(dims=" and ".join(dict.fromkeys(within)))] if within else []
        path = parameter.path or parameter.tensor.name
        yield ParameterPlacement(
            path=path,
            paths=(path,),
            dims=dims,
            shape=shape,
            placements=places,
            local=_local(shape, places, mesh),
            note="; ".join([*notes, *_notes(zero, mesh)]),
        )


def _moved(dim: int | None) -> Placement:
    return Placement("Replicate") if dim is None else Placement("Shard", dim)


def stored(sizes: Sequence[int], shape: Sequence[int]) -> tuple[int | None, ...]:
    """Return, for each dim, the stored dim that it is the outermost part of, else None.

    None for an inner part and for a dim of size 1. Groups of dims are matched with groups of stored dims of equal size;
    equal shapes map one to one.
    """
    if tuple(sizes) == tuple(shape):
        return tuple(range(len(sizes)))
    result: list[int | None] = [None] * len(sizes)
    mine = [dim for dim, size in enumerate(sizes) if size > 1]
    theirs = [dim for dim, size in enumerate(shape) if size > 1]
    while mine and theirs:
        first, dim = mine.pop(0), theirs.pop(0)
        left, right = sizes[first], shape[dim]
        result[first] = dim if right % left == 0 else None
        while left != right and (mine if left < right else theirs):
            if left < right:
                left *= sizes[mine.pop(0)]
            else:
                right *= shape[theirs.pop(0)]
    return tuple(result)


def _notes(zero: Sequence[int], mesh: Sequence[MeshDim]) -> list[str]:
    """Return notes for the mesh dims on which the parameter or its optimizer state is flat (ZeRO stages 1 to 3)."""
    notes = [FLAT_NOTE] if 3 in zero else []
    for stage, what in _WHAT.items():
        dims = [dim.name for dim, at in zip(mesh, zero, strict=True) if at == stage]
        if dims:
            notes.append(STATE_NOTE.format(stage=stage, what=what, dims=" and ".join(dims)))
    return notes


def _modules(table: Table) -> Iterator[ModulePlacement]:
    """Yield the placements of each module's inputs and outputs, in program order.

    Operators with the same path form a module; one without a path is its own. Weights and tensors within the module are
    left out, as are outputs that only the module itself reads.
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
            for port, tensor in enumerate(_tensors(operators[index])):
                own = port >= len(operators[index].inputs)
                if own and readers.get(tensor, {""}) - {path}:
                    outputs[tensor] = _tensor(table, index, port, tensor)
                elif not own and tensor not in weights and tensor not in made:
                    inputs.setdefault(tensor, _tensor(table, index, port, tensor))
        yield ModulePlacement(path, (path,), tuple(inputs.values()), tuple(outputs.values()))


def _tensors(op: Operator) -> tuple[str, ...]:
    """Return the names of an operator's inputs and outputs, in the order of its node's ports."""
    return tuple(operand.name for operand in (*op.inputs, *op.outputs))


def _tensor(table: Table, index: int, port: int, name: str) -> TensorPlacement:
    return TensorPlacement(name, table.net.program.tensors[name].dims, table.at(table.net.node_of[index], port))


def _general(path: str) -> str:
    """Return the path with every numeric component replaced by *."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _layouts(module: ModulePlacement) -> object:
    """Return a module's dims and placements without tensor names, as the key of modules that are grouped.

    Names differ even between equal layers: the first one reads what another kind of module made.
    """
    return tuple(tuple((tensor.dims, tensor.placements) for tensor in side) for side in (module.inputs, module.outputs))


def _patterned(module: ModulePlacement) -> ModulePlacement:
    """Return the module with * for numbers in its tensors' names if it stands for several paths, else unchanged."""
    if len(module.paths) == 1:
        return module
    inputs, outputs = (
        tuple(replace(tensor, name=_general(tensor.name)) for tensor in side)
        for side in (module.inputs, module.outputs)
    )
    return replace(module, inputs=inputs, outputs=outputs)


def _grouped(entries: Iterable[Entry], alike: Callable[[Entry], object]) -> tuple[Entry, ...]:
    """Return the entries with those merged whose paths differ only in numbers and that have the same key `alike`.

    `path` is the pattern if all entries that match it are in the group, else the first path.
    """
    by_path: dict[str, dict[object, list[Entry]]] = {}
    for entry in entries:
        by_path.setdefault(_general(entry.path), {}).setdefault(alike(entry), []).append(entry)
    return tuple(
        replace(
            group[-1],  # what comes first is often read from elsewhere
            path=pattern if len(groups) == 1 and len(group) > 1 else group[0].path,
            paths=tuple(entry.path for entry in group),
        )
        for pattern, groups in by_path.items()
        for group in groups.values()
    )
