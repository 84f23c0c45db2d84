"""What a part of a program takes as one stage of a pipeline on a part of the mesh: the tensor solver's answer.

Parts that are alike in all but names are solved once. A stage may have 1, 2, 4, … GPUs of a node, or 1, 2, 4, …
whole nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from symconfig.cost.partition.costs import Keep
from symconfig.descriptor.mesh import Mesh
from symconfig.graph.operator import Operator, Tensor, Use, Work
from symconfig.graph.program.build import Function, build, nothing
from symconfig.graph.program.fold import structures
from symconfig.graph.program.program import Parameter, Program
from symconfig.solve.partition.pinned import touched
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.run import Ask, Partition, partition

Ideal = frozenset[int]  # layers with all that they depend on: what may run before a cut


class Place(NamedTuple):
    """The layers of the ideal `stop` without those of the ideal `first`, on the part `mesh` of the mesh, as indices."""

    first: int
    stop: int
    mesh: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A solved stage. turn_s: seconds of a microbatch, forward and backward. once_s: seconds once per step.

    once_s includes the reduction of gradients of weights shared with other stages. memory: bytes at the peak with
    `alive` microbatches in flight, of which each holds each_bytes.
    """

    partition: Partition
    turn_s: float
    once_s: float
    memory: float
    each_bytes: float
    alive: int

    def busy_s(self, turns: int) -> float:
        """Return the seconds that the slowest stage adds to a step: all microbatches but one, and what runs once."""
        return (turns - 1) * self.turn_s + self.once_s

    @property
    def gpus(self) -> int:
        return self.partition.ask.mesh.gpus

    @property
    def keep(self) -> Keep:
        return self.partition.costs.training.keep

    def in_place(self) -> Stage:
        """Return the stage with its `alive` and `memory` entered in its partition, too."""
        ask, costs = self.partition.ask, self.partition.costs
        costs = replace(costs, training=replace(costs.training, alive=self.alive))
        ask = replace(ask, training=replace(ask.training, alive=self.alive))
        return replace(self, partition=replace(self.partition, ask=ask, costs=costs, memory=self.memory))

    def with_alive(self, alive: int) -> Stage:
        return replace(self, memory=self.memory + (alive - self.alive) * self.each_bytes, alive=alive)


@dataclass
class Parts:
    """Cut a program into ranges of operators, such as pipeline stages.

    Every operator comes after the operators whose results it reads, so that every prefix is a valid cut. A tensor
    that is read beyond the next range passes through the ranges in between. made: operator index that makes each
    activation; last: operator index that reads each tensor last.
    """

    program: Program
    made: dict[str, int] = field(init=False)
    last: dict[str, int] = field(init=False)
    uses: dict[str, tuple[int, int]] = field(init=False)  # of every parameter the first and the last operator

    def __post_init__(self) -> None:
        """Fill `made` and `last` (by tensor, the operator that makes it and the last one that reads it), `uses` (by
        parameter, the first and last reader), all as indices, and number the operators' structures.
        """
        operators = self.program.operators
        self.made = {operand.name: index for index, op in enumerate(operators) for operand in op.outputs}
        self.last = {operand.name: index for index, op in enumerate(operators) for operand in op.inputs}
        names = {parameter.tensor.name for parameter in self.program.parameters}
        self.uses = {}
        for index, op in enumerate(operators):
            for operand in op.inputs:
                if operand.name in names:
                    self.uses[operand.name] = self.uses.get(operand.name, (index, index))[0], index
        self._kinds = structures(self.program)

    def reordered(self, order: Sequence[int]) -> Parts:
        """Return the parts of the same program with its operators in another order that their tensors allow; its keys
        are comparable with these. order: operators' indices.
        """
        result = Parts(replace(self.program, operators=tuple(self.program.operators[index] for index in order)))
        result._kinds = [self._kinds[index] for index in order]
        return result

    def crossing(self, cut: int) -> list[str]:
        """Return the names of activations that operators before index `cut` make and operators from `cut` on read.
        Program inputs and parameters are not included.
        """
        return [name for name, index in self.made.items() if index < cut <= self.last.get(name, -1)]

    def shared(self, start: int, stop: int) -> list[Parameter]:
        """Return the trainable parameters that operators in [start, stop) and operators outside of it read, in program
        order.
        """
        among = [parameter for parameter in self._read(start, stop) if parameter.trainable]
        ends = [self.uses[parameter.tensor.name] for parameter in among]
        return [parameter for parameter, (a, b) in zip(among, ends, strict=True) if a < start or b >= stop]

    def program_of(self, start: int, stop: int) -> Program:
        """Return the operators [start, stop) as a program; `self.program` is unchanged.

        RECEIVE operators at its start take the activations that cross `start`, SEND operators at its end those that
        cross `stop` (also those that only pass through); these become inputs and outputs. Of the whole program's inputs
        and parameters those that are read stay, of its outputs those that are made; `tensors` and `sizes` keep all. The
        name gets the range of operators, counted from 1, unless it is the whole program.
        """
        whole, inside = self.program, self.program.operators[start:stop]
        tensors = dict(whole.tensors)
        received = [self._transfer(name, Work.RECEIVE, tensors) for name in self.crossing(start)]
        sent = [self._transfer(name, Work.SEND, tensors) for name in self.crossing(stop)]
        read = {operand.name for op in inside for operand in op.inputs}
        made = {operand.name for op in inside for operand in op.outputs}
        return replace(
            whole,
            name=f"{whole.name}, operators {start + 1} to {stop}"
            if (start, stop) != (0, len(whole.operators))
            else whole.name,
            tensors=tensors,
            inputs=(*(name for name in whole.inputs if name in read), *(op.inputs[0].name for op in received)),
            parameters=tuple(self._read(start, stop)),
            operators=(*received, *inside, *sent),
            outputs=(*(name for name in whole.outputs if name in made), *(op.outputs[0].name for op in sent)),
        )

    def key(self, start: int, stop: int) -> Hashable:
        """Return a hashable key of the operators [start, stop): two ranges have equal keys only if they are equal but
        for names: structures, which operands are one tensor, the tensors that cross both cuts, and the parameters that
        operators outside read, too.
        """
        numbers: dict[str, int] = {}
        inside = zip(self.program.operators[start:stop], self._kinds[start:stop], strict=True)
        rows = tuple(
            (kind, *(numbers.setdefault(o.name, len(numbers)) for o in (*op.inputs, *op.outputs)))
            for op, kind in inside
        )
        ends = []
        for cut in (start, stop):
            every = [self.program.tensors[name] for name in self.crossing(cut)]
            shapes = [(tuple(self.program.sizes[dim] for dim in t.dims), t.element_bytes, t.gradient) for t in every]
            ends.append(tuple(zip((numbers.setdefault(t.name, len(numbers)) for t in every), shapes, strict=True)))
        shared = tuple(numbers[parameter.tensor.name] for parameter in self.shared(start, stop))
        return rows, tuple(ends), shared

    def _read(self, start: int, stop: int) -> Sequence[Parameter]:
        read = {operand.name for op in self.program.operators[start:stop] for operand in op.inputs}
        return [parameter for parameter in self.program.parameters if parameter.tensor.name in read]

    def _transfer(self, name: str, work: Work, tensors: dict[str, Tensor]) -> Operator:
        """Return an operator, without computation, that receives or sends a tensor, and add the tensor in transit to
        `tensors`.

        It is named "NAME, received" or "NAME, sent"; RECEIVE reads it and makes the tensor, SEND reads the tensor and
        makes it.
        """
        tensor = self.program.tensors[name]
        way = replace(tensor, name=f"{name}, {'received' if work is Work.RECEIVE else 'sent'}")
        tensors[way.name] = way
        ends = (way, tensor) if work is Work.RECEIVE else (tensor, way)
        return build(Function(nothing, work=work), f"{work} {name}", [Use(ends[0])], [Use(ends[1])])


@dataclass
class Stages:
    """Stages of one program with ask.turns microbatches, solved on demand and cached.

    cuts: first operator of each layer and the end of the last. ideals: of the layers, from none to all. solved: number
    of runs of the tensor solver.
    """

    parts: Parts
    cuts: tuple[int, ...]
    ideals: tuple[Ideal, ...]
    meshes: tuple[Mesh, ...]
    ask: Ask
    solved: int = 0
    _free: dict[Hashable, Stage | None] = field(default_factory=dict)
    _fitted: dict[Hashable, Stage | None] = field(default_factory=dict)
    _keys: dict[tuple[int, int], Hashable] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        return self.ask.turns[0]

    def key(self, first: int, stop: int) -> Hashable:
        """Return a hashable that the layers of two stages share if they are equal but for names, pins included. Cached.

        first, stop: indices of the ideals between which the layers lie.
        """
        known = self._keys.get((first, stop))
        if known is None:
            parts, start, end = self._range(first, stop)
            held = touched(parts.program, self.ask.pins, start, end)
            known = self._keys[first, stop] = (parts.key(start, end), held)
        return known

    def _range(self, first: int, stop: int) -> tuple[Parts, int, int]:
        """Return (parts, start, end): the layers between two ideals are operators [start, end) of the program `parts`.

        The program is reordered so that the ideal `first` comes before them and all layers beyond `stop` behind them.
        """
        before, until = self.ideals[first], self.ideals[stop]
        parts, cuts = self.in_order([*sorted(before), *sorted(until - before), *sorted(self.ideals[-1] - until)])
        return parts, cuts[len(before)], cuts[len(until)]

    def in_order(self, layers: Sequence[int]) -> tuple[Parts, tuple[int, ...]]:
        """Return the program with its layers in this order, and its cuts: first operator of each layer, and the end."""
        if list(layers) == list(range(len(layers))):
            return self.parts, self.cuts
        ranges = [range(self.cuts[layer], self.cuts[layer + 1]) for layer in layers]
        cuts = accumulate((len(operators) for operators in ranges), initial=0)
        return self.parts.reordered([index for operators in ranges for index in operators]), tuple(cuts)

    def known(self, place: Place, alive: int) -> Stage | float | None:
        """Return the fastest stage that fits, None if none does, or a float if only another run of the solver can tell.

        The float is a lower bound on its step in seconds. On the first call the stage is solved without a limit, for
        ask.keeps[0] only, and cached. If that fits with `alive` microbatches in flight, it is the answer; else what
        `stage` has cached; else its seconds are the bound.
        """
        key = self.key(place.first, place.stop), place.mesh
        if key not in self._free:
            self._free[key] = self._solve(place, 1, replace(self.ask, keeps=self.ask.keeps[:1], memory_limit=np.inf))
        free = self._free[key]
        if free is not None and free.with_alive(alive).memory <= self.ask.memory_limit:
            return free.with_alive(alive)
        if (key, alive) in self._fitted:
            return self._fitted[key, alive]
        return free.partition.cost if free is not None else None

    def stage(self, place: Place, alive: int) -> Stage | None:
        """Return the fastest stage that fits with `alive` microbatches in flight, or None; cached.

        The tensor solver is run only if the answer is not `known`.
        """
        known = self.known(place, alive)
        if isinstance(known, float):
            key = self.key(place.first, place.stop), place.mesh
            known = self._fitted[key, alive] = self._limited(place, alive)
        return known

    def _limited(self, place: Place, alive: int) -> Stage | None:
        """Return the fastest stage within the memory limit, or None if none fits.

        The stage for one microbatch less in flight is reused if it still fits with `alive`; if there is none, none fits
        here. Only otherwise is the tensor solver run.
        """
        if alive > 1:
            fewer = self.stage(place, alive - 1)
            if fewer is None or fewer.with_alive(alive).memory <= self.ask.memory_limit:
                return fewer.with_alive(alive) if fewer is not None else None
        return self._solve(place, alive, self.ask)

    def _solve(self, place: Place, alive: int, ask: Ask) -> Stage | None:
        """Return the stage that the tensor solver finds for a place, or None if nothing fits; adds 1 to `solved`.

        ask: the request, of which the mesh and the microbatches in flight are replaced by those given.
        """
        self.solved += 1
        mesh, training = self.meshes[place.mesh], replace(ask.training, alive=alive)
        parts, start, end = self._range(place.first, place.stop)
        program = parts.program_of(start, end)
        answer = partition(lambda turns: program, replace(ask, mesh=mesh, training=training))
        if answer is None:
            return None
        return self._as_stage(answer, parts.shared(start, end), mesh.gpus)

    def _as_stage(self, answer: Partition, shared: Sequence[Parameter], gpus: int) -> Stage:
        """Return a partition of a stage's operators as a stage. shared: weights that it has in common with others.

        turn_s and each_bytes are what one more microbatch (one more in flight) adds, since both are linear; once_s is
        the rest of the cost, plus a message with the gradients of the shared weights, split over the `gpus`.
        """
        costs, turns, alive = answer.costs, answer.costs.training.turns, answer.costs.training.alive
        more = replace(costs, training=replace(costs.training, turns=turns + 1, alive=alive + 1))
        cost, memory = price(more, np.array(answer.rows, dtype=np.int64).reshape(len(answer.rows), -1))
        turn_s = cost - answer.cost
        once_s = answer.cost - turns * turn_s
        if shared:
            assert answer.ask.between is not None
            elements = float(sum(one.tensor.elements(self.parts.program.sizes) for one in shared))
            amount = costs.framework.bytes.gradient * elements
            once_s += float(answer.ask.between(amount / gpus))
        ask = replace(self.ask, mesh=answer.ask.mesh)
        return Stage(replace(answer, ask=ask), turn_s, once_s, answer.memory, memory - answer.memory, alive)


def submeshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Return the sub-meshes of one GPU up to the whole mesh, in ascending order of GPUs.

    Each has whole inner levels, and of its outermost level a divisor of the size from 2 on. Powers of two that add up
    to the whole always have room in it (Alpa, OSDI 2022, appendix A). Without a switch (`mesh`) the bandwidth of a
    smaller level shrinks in proportion to the links left.
    """
    meshes = [Mesh(())]
    for index, level in enumerate(mesh.levels):
        for size in (size for size in range(2, level.size + 1) if level.size % size == 0):
            links = (size - 1) / (level.size - 1) if level.mesh else 1.0
            outer = replace(level, size=size, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * links)
            meshes.append(Mesh((*mesh.levels[:index], outer)))
    return tuple(meshes)
