"""Splits that the caller fixes: `layers.*.up_proj.weight.intermediate_size=8`, or `layers.*.up_proj=batch/2, ffn/4`.

A pin holds for all copies of a folded repeat. A tensor is pinned where it is made or kept, one that the program is
given where it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod

from symconfig.descriptor.mesh import Axis, Mesh
from symconfig.errors import InputError, Problem, Problems, nearest
from symconfig.format import either, general
from symconfig.graph.program.net import Fixed, Net, Node
from symconfig.graph.program.program import Program
from symconfig.solve.partition.rows import WORDS, as_fixed, every_row

FORMS = "TENSOR.DIM=PARTS or OPERATOR=LAYOUT, as layers.*.up.ffn=8 or layers.*.up_proj=batch/2, ffn/4"
_COUNT = re.compile(r"(\d{1,9})(?:\s*[·*@]\s*(\w+))?")
_WHOLE = ("whole", "one rank", WORDS["whole"])


@dataclass(frozen=True, slots=True)
class Cut:
    """A number of parts of an operator's option or a tensor's dim, on the ranks of one level, or of all (level "")."""

    name: str
    parts: int
    level: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """text: as it was given. names: of operators with all their copies, or of tensors, of which one dim is cut."""

    text: str
    names: frozenset[str]
    cuts: tuple[Cut, ...]
    tensor: bool

    def of_node(self, net: Net, node: Node) -> tuple[Fixed, ...]:
        """Return the constraints that the pin puts on a node's options; empty if it concerns other nodes.

        An operator's pin concerns operators of its names. A tensor is pinned at the node that makes or (a parameter)
        holds it, or at every reader if it is an input of the program, once per port; copies are left free.
        """
        if not self.tensor:
            return tuple(self._layout(node)) if node.operator is not None and node.name in self.names else ()
        (cut,) = self.cuts
        ports = [port for port in node.ports if port.tensor.name in self.names and not node.copy]
        ports = [port for port in ports if port.output or port.tensor.name in net.program.inputs]
        at = [(port.places, port.tensor.dims.index(cut.name)) for port in ports]
        return tuple(Fixed(tuple(one.forward == dim for one in places), cut.parts, cut.level) for places, dim in at)

    def _layout(self, node: Node) -> Iterator[Fixed]:
        """Yield the constraints of an operator's pin: the number of ranks of every option but the first ("whole").

        That number, on all levels together, is the product of the layout's parts for the option, 1 if the layout does
        not name it. Another constraint follows for each level that the layout names for the option.
        """
        for option in node.options[1:]:
            those = tuple(other is option for other in node.options)
            mine = [cut for cut in self.cuts if cut.name == option.name]
            yield Fixed(those, prod(cut.parts for cut in mine))
            yield from (Fixed(those, cut.parts, cut.level) for cut in mine if cut.level)


NAMES = ("data", "zero1", "zero2", "zero3", "tensor")


@dataclass(frozen=True, slots=True)
class Named:
    """A well-known strategy as a pin: `data`, `zero1` to `zero3`, or `tensor`, for a mesh of `gpus`."""

    text: str
    gpus: int

    def of_node(self, net: Net, node: Node) -> tuple[Fixed, ...]:
        """Return the strategy's one constraint on a node's options; empty if the node is free.

        data, zero1 to zero3: operators split batch dims over all GPUs; parameters are sharded by the strategy's ZeRO
        stage over all GPUs, or replicated if they have no option of it (data; frozen ones but for zero3). tensor: no
        operator splits a batch dim, parameters are free. Copies are free, and operators without a batch dim that can be
        split.
        """
        batch = tuple(bool(o.split and net.program.batch.intersection(o.split.loops)) for o in node.options)
        if node.operator is not None:
            return (Fixed(batch, 1 if self.text == "tensor" else self.gpus),) if any(batch) else ()
        if node.parameter is None or self.text == "tensor":
            return ()
        flat = tuple(f"zero{option.zero}" == self.text for option in node.options)
        return (Fixed(flat, self.gpus),) if any(flat) else (Fixed(tuple(n > 0 for n in range(len(flat))), 1),)


def pinned(net: Net, pins: Sequence[Pin | Named]) -> Net:
    """Return the network with the pins as constraints of its nodes, or `net` itself without pins."""
    if not pins:
        return net
    nodes = (replace(node, fixed=tuple(one for pin in pins for one in pin.of_node(net, node))) for node in net.nodes)
    return replace(net, nodes=tuple(nodes))


def touched(program: Program, pins: Sequence[Pin | Named], start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """Return (operator's index counted from `start`, index of the pin) for each pin of an operator in [start, stop).

    A pin of a tensor belongs to each operator that reads or writes it. `Named` pins are left out.
    """
    places = []
    for place, op in enumerate(program.operators[start:stop]):
        names = {operand.name for operand in (*op.inputs, *op.outputs)}
        mine = [(n, pin) for n, pin in enumerate(pins) if isinstance(pin, Pin)]
        places += [(place, n) for n, pin in mine if pin.names & (names if pin.tensor else {op.name})]
    return tuple(places)


def read(texts: Iterable[str], net: Net, letters: Mapping[str, str]) -> tuple[Pin, ...]:
    """Return the pins in the texts, in order. Raise InputError with the problems of all invalid texts.

    letters: dim to the letter that tables show for it; pins may use either.
    """
    problems, dims = Problems(), {sign: dim for dim, sign in letters.items()}
    pins = [problems.collect(partial(_read, text, net, dims)) for text in texts]
    return tuple(map(problems.need, pins))


def _read(text: str, net: Net, dims: Mapping[str, str]) -> Pin:
    """Return the pin in a text: TENSOR.DIM=NUMBER of parts, or OPERATOR=LAYOUT if the value is no number.

    dims: letter to dim. Names may be patterns, and cover all copies in folded repeats. Raise InputError if it is
    malformed, no tensor or operator matches, or a matching tensor lacks the dim.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise InputError("is no pin", field="pin", got=text, need=FORMS)
    if not (value.isascii() and value.isdigit()):
        nodes = [net.nodes[index] for index in operators(net, name, "pin")]
        known = {net.nodes.index(node) for node in nodes}
        every = zip(net.program.operators, net.node_of, strict=True)
        names = frozenset(op.name for op, index in every if index in known)
        return Pin(text, names, tuple(_cuts(text, value, nodes, dims)), False)
    tensor, dim = _tensor_and_dim(name, net, dims)
    tensors = _tensors(net, tensor)
    mine = dim if dim in net.program.sizes else dims.get(dim, dim)
    has = list(dict.fromkeys(one for known in sorted(tensors) for one in net.program.tensors[known].dims))
    if any(mine not in net.program.tensors[known].dims for known in tensors):
        what = f"{tensor} has no such dim"
        raise InputError(what, field="pin", got=dim, need=" or ".join(has) or "a tensor with dims")
    return Pin(text, tensors, (Cut(mine, int(value[:10])),), True)


def _tensor_and_dim(name: str, net: Net, dims: Mapping[str, str]) -> tuple[str, str]:
    """Return (tensor's name, dim) of a pin TENSOR.DIM, both of which may contain dots.

    The text is split at the first dot between a known tensor's name or pattern and a dim (or its letter) of the
    program. Without one it is split at the last dot, whether or not the names exist; the tensor is "" without a dot.
    """
    for dot in re.finditer(r"\.", name):
        tensor, dim = name[: dot.start()], name[dot.end() :]
        if dim in net.program.sizes or dim in dims:
            with suppress(InputError):
                _tensors(net, tensor)
                return tensor, dim
    tensor, _, dim = name.rpartition(".")
    return tensor, dim


def _cuts(text: str, value: str, nodes: Sequence[Node], dims: Mapping[str, str]) -> Iterator[Cut]:
    """Yield the cuts in a layout: `batch/2, ffn/4·nvlink`, `batch over 2·nvlink, 4·rail`, or none for `whole`.

    A count without a name belongs to the name before it; options may be named by WORDS or their dim's letter. Raise
    InputError for a name that one of the nodes has no option of, or a missing or malformed count.
    """
    words, name = {word: option for option, word in WORDS.items()}, ""
    for item in value.split(","):
        first, *counts = (part.strip() for part in re.split(r"/|\bover\b", item))
        if _COUNT.fullmatch(first) and name:
            counts = [first, *counts]
        else:
            name = words.get(first, first)
        if name in _WHOLE or first in _WHOLE:
            continue
        for node in nodes:
            has = [option.name for option in node.options[1:]]
            name = name if name in has else dims.get(name, name)
            if name not in has:
                what = f"{general(node.name)} cannot be split by this"
                raise InputError(what, field="pin", got=first, need=" or ".join(has) or "whole")
        if not counts or not all(map(_COUNT.fullmatch, counts)):
            raise InputError("is no layout", field="pin", got=text, need="as batch/2, ffn/4·nvlink, or whole")
        for match in filter(None, map(_COUNT.fullmatch, counts)):
            yield Cut(name, int(match[1]), match[2] or "")


def operators(net: Net, name: str, field: str) -> tuple[int, ...]:
    """Return the sorted node indices of the operators that match a name or pattern (see `_matching`).

    Raise InputError if none does. field: the field that the error names; its hint lists similar names.
    """
    every = zip(net.program.operators, net.node_of, strict=True)
    known: dict[str, list[int]] = {}
    for op, index in every:
        known.setdefault(op.name, []).append(index)
    names = _matching(name, known, "operator", field)
    return tuple(sorted({index for one in names for index in known[one]}))


def _tensors(net: Net, name: str) -> frozenset[str]:
    """Return the names of the inputs, activations and parameters that match a name or pattern.

    All copies of each in folded repeats are included. Raise InputError if none matches.
    """
    program = net.program
    places: dict[str, object] = {tensor: ("input", tensor) for tensor in program.inputs}
    for index, op in zip(net.node_of, program.operators, strict=True):
        places |= {operand.name: (index, port) for port, operand in enumerate(op.outputs)}
    places |= {one.tensor.name: node for one, node in zip(program.parameters, net.parameter_of, strict=True)}
    wanted = {places[one] for one in _matching(name, places, "tensor", "pin")}
    return frozenset(tensor for tensor, place in places.items() if place in wanted)


def _matching(name: str, known: Iterable[str], kind: str, field: str) -> list[str]:
    """Return [name] if it is known, else all known names that match it as a pattern, in their order.

    A name matches as a glob, or if replacing the numbers by * in one of the two gives the other. Raise InputError if
    none does; the hint has names that end in it, else similar ones, else the first three. kind: word for the error.
    """
    every = list(known)
    matches = [one for one in every if one == name] or [
        one for one in every if fnmatchcase(one, name) or general(one) == name or one == general(name)
    ]
    if not matches:
        names = list(dict.fromkeys(map(general, every)))
        ends = [one for one in names if one.rpartition(".")[2] == name]
        hint = " or ".join(ends) or nearest(name, names, alike=0.4) or " or ".join(names[:3])
        raise InputError(f"there is no such {kind}", field=field, got=name, hint=hint)
    return matches


def check(nets: Sequence[Net], pins: Sequence[Pin], meshes: Sequence[Mesh], most: int) -> None:
    """Raise InputError for pins with an unknown level, or that no row of a node satisfies in any net and mesh shape.

    nets: one for each number of microbatches, with the same nodes. most: axes that a mesh is cut into at most. Nodes
    are checked only if all levels are known: each pin by itself, then all of a node together. One problem per node;
    equal ones are reported once.
    """
    levels = {level.name: None for mesh in meshes for level in mesh.levels}
    problems = [
        Problem("there is no such level", field="pin", got=cut.level, need=" or ".join(levels) or "one GPU, no level")
        for pin in pins
        for cut in pin.cuts
        if cut.level and cut.level not in levels
    ]
    shapes = [axes for mesh in meshes for axes in mesh.shapes(most)]
    for index in range(len(nets[0].nodes)) if not problems else ():
        nodes = [(net, net.nodes[index]) for net in nets]
        held = [pin for pin in pins if pin.of_node(*nodes[0])]
        for some in [*([pin] for pin in held), held] if held else ():
            tried = [
                (replace(node, fixed=tuple(one for pin in some for one in pin.of_node(net, node))), net)
                for net, node in nodes
            ]
            if not any(len(every_row(*one, axes)) for one in tried for axes in shapes):
                problems.append(_impossible(nodes, some, shapes))
                break
    if problems:
        raise InputError(tuple(dict.fromkeys(problems)))


def _impossible(nodes: Sequence[tuple[Net, Node]], pins: Sequence[Pin], shapes: Sequence[Sequence[Axis]]) -> Problem:
    """Return the problem of pins that no row of a node satisfies.

    Several pins: only that they contradict each other. One of a tensor: with the numbers of parts that are possible on
    any shape. One of an operator: with the sizes that its parts must divide. nodes: (net, node) of each number of
    microbatches.
    """
    (net, node), pin = nodes[0], pins[0]
    name, gpus = general(node.name), max(prod(axis.size for axis in axes) for axes in shapes)
    if len(pins) > 1:
        what = f"{name} cannot be split in all these ways at once"
        return Problem(what, field="pin", got=" and ".join(pin.text for pin in pins))
    if pin.tensor:
        could = sorted({parts for one in nodes for axes in shapes for parts in _parts(*one, pin, axes)})
        size = net.program.sizes[pin.cuts[0].name]
        what = f"{pin.cuts[0].name} of {size:,} cannot be cut into {pin.cuts[0].parts:,} parts on {gpus:,} GPUs"
        return Problem(what, field="pin", got=pin.text, need=either(could))
    sizes = [f"{option.name} of {option.parts:,}" for option in node.options if option.parts]
    what = f"{name} cannot be split like this on {gpus:,} GPUs"
    need = f"parts that divide {', '.join(sizes)}, and together at most the GPUs of each level" if sizes else "whole"
    return Problem(what, field="pin", got=pin.text, need=need)


def _parts(net: Net, node: Node, pin: Pin, axes: Sequence[Axis]) -> Iterator[int]:
    """Yield the numbers of parts, divisors of the GPUs, into which this node can split the pin's dim on its level.

    The node's other pins are ignored.
    """
    rows, gpus = every_row(replace(node, fixed=()), net, axes), prod(axis.size for axis in axes)
    for parts in (number for number in range(1, gpus + 1) if gpus % number == 0):
        other = replace(pin, cuts=(replace(pin.cuts[0], parts=parts),))
        if as_fixed(replace(node, fixed=other.of_node(net, node)), rows, axes).any():
            yield parts
