"""From a program and a mesh to a pipeline: stages, each with its own partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.partition import rates
from symconfig.graph.operator import Operator
from symconfig.graph.program.fold import Folding, Run, crossing, fold
from symconfig.graph.program.net import net
from symconfig.graph.program.program import Program
from symconfig.solve.partition.pipeline.search import Bounds, Chosen, search
from symconfig.solve.partition.pipeline.stage import Ideal, Parts, Stage, Stages, submeshes
from symconfig.solve.partition.run import Ask, Case, Programs, Solver, costs_of

LAYERS = 32  # that a program is grouped into at most
IDEALS = 64  # that are tried at most, or else only prefixes


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A step in stages. program: with its operators in the order of the stages. cuts: the operators where layers begin,
    and where the last ends. bounds: those where stages begin, and the end. like: of each stage the first that is the
    same with the same strategy. solved: how often the tensor solver was run.
    """

    program: Program
    cuts: tuple[int, ...]
    bounds: tuple[int, ...]
    stages: tuple[Stage, ...]
    like: tuple[int, ...]
    step_s: float
    turns: int
    solved: int = 0

    @property
    def idle(self) -> float:
        """Return the fraction of all GPUs' time in which stages wait: the pipeline bubble."""
        seconds = ((self.turns * stage.turn_s + stage.once_s) * stage.gpus for stage in self.stages)
        return 1.0 - sum(seconds) / (self.step_s * sum(stage.gpus for stage in self.stages))

    def operators(self, number: int) -> range:
        """Return the indices of the program's operators that a stage runs."""
        return range(self.bounds[number], self.bounds[number + 1])


def pipeline(programs: Programs, ask: Ask, least: int, most: int) -> Pipeline | None:
    """Return the fastest pipeline of `least` to `most` stages over all numbers of microbatches in ask.turns.

    None if none fits. `solved` counts the tensor solver's runs for all numbers. With ask.solver AUTO stages are solved
    by ADAPTIVE. Raise InputError as `partition`.
    """
    best: Pipeline | None = None
    solved = 0
    between = rates.between_stages(ask.mesh, ask.cluster) if ask.mesh.levels else None
    for turns in ask.turns:
        inner = Solver.ADAPTIVE if ask.solver is Solver.AUTO else ask.solver
        given = _stages(programs(turns), replace(ask, turns=(turns,), between=between, solver=inner))
        chosen = search(*given, least, most, best.step_s if best is not None else np.inf)
        stages = given[0]
        solved += stages.solved
        if chosen is not None:
            best = _as_pipeline(stages, chosen)
    return replace(best, solved=solved) if best is not None else None


def _stages(program: Program, ask: Ask) -> tuple[Stages, Bounds]:
    """Return (stages, bounds): the possible stages of a program's layers, none solved yet, and lower bounds on them.

    ask.turns: one number of microbatches.
    """
    folding = fold(program)
    meshes, work = submeshes(ask.mesh), _operator_seconds(folding, ask)
    cuts = layers(work, crossing(folding.program), folding.runs, LAYERS)
    parts = Parts(folding.program)
    some = ideals(folding.program, cuts)
    inside = np.array([[layer in ideal for layer in range(len(cuts) - 1)] for ideal in some], np.float64)
    each, stored = (inside @ np.add.reduceat(of, cuts[:-1]) for of in (work, _state_bytes(parts, ask)))
    bounds = Bounds(some, each, stored, tuple(mesh.gpus for mesh in meshes), ask.turns[0])
    return Stages(parts, cuts, some, meshes, ask), bounds


def ideals(program: Program, cuts: Sequence[int]) -> tuple[Ideal, ...]:
    """Return the sets of layers that may run before a cut: all that contain every layer that theirs read from.

    The empty set and all layers are among them, the smaller come first. If there are more than IDEALS, only the
    prefixes of the program are returned.
    """
    made = {use.name: layer for layer, mine in _by_layer(program, cuts) for op in mine for use in op.outputs}
    needs = [
        {made[use.name] for op in mine for use in op.inputs if use.name in made} - {layer}
        for layer, mine in _by_layer(program, cuts)
    ]
    found = [frozenset[int]()]
    for ideal in found:  # which grows
        found += sorted({ideal | {layer} for layer, need in enumerate(needs) if need <= ideal} - {*found}, key=sorted)
        if len(found) > IDEALS:
            return tuple(frozenset(range(count)) for count in range(len(cuts)))
    return tuple(sorted(found, key=lambda ideal: (len(ideal), sorted(ideal))))


def _by_layer(program: Program, cuts: Sequence[int]) -> Iterable[tuple[int, Sequence[Operator]]]:
    return enumerate(program.operators[start:stop] for start, stop in pairwise(cuts))


def _state_bytes(parts: Parts, ask: Ask) -> Array:
    """Return the bytes of weights, gradients and optimizer states, each counted at its first reader: [operators].

    Frozen parameters count with their weights only, unread ones at the first operator.
    """
    result: Array = np.zeros(len(parts.program.operators))
    sizes = ask.framework.bytes
    for parameter in parts.program.parameters:
        kept = sizes.gradient + sizes.optimizer if parameter.trainable else 0.0
        first, _ = parts.uses.get(parameter.tensor.name, (0, 0))
        result[first] += parts.program.elements(parameter.tensor.name) * (parameter.tensor.element_bytes + kept)
    return result


def _operator_seconds(folding: Folding, ask: Ask) -> Array:
    """Return the seconds of each operator's computation, forward and backward, [operators].

    They are of one microbatch on one GPU, without a split.
    """
    whole = net(folding.program, folding.of, folding.runs)
    costs = costs_of(Case(whole, ask.training), ask, ())
    one = np.zeros((1, 0), dtype=np.int64)
    passes = {index: costs.passes(whole.nodes[index], one) for index in dict.fromkeys(whole.node_of)}
    seconds = {index: (each.forward + each.backward).item() for index, each in passes.items()}
    return np.array([seconds[index] for index in whole.node_of])


def _as_pipeline(stages: Stages, chosen: Chosen) -> Pipeline:
    """Return the chosen stages as a pipeline, with the program's operators in the order of the stages.

    `like` has for each stage the index of the first with equal layers, mesh, strategy and Keep.
    """
    ends = [stages.ideals[place.stop] for place in chosen.places]
    order = [layer for before, end in pairwise([frozenset[int](), *ends]) for layer in sorted(end - before)]
    parts, cuts = stages.in_order(order)
    every = list(zip(chosen.places, chosen.stages, strict=True))
    names = [(stages.key(p.first, p.stop), p.mesh, stage.partition.rows, stage.keep) for p, stage in every]
    return Pipeline(
        program=parts.program,
        cuts=cuts,
        bounds=(0, *(cuts[len(end)] for end in ends)),
        stages=tuple(stage.in_place() for stage in chosen.stages),
        like=tuple(names.index(name) for name in names),
        step_s=chosen.step_s,
        turns=stages.turns,
    )


Array = NDArray[np.float64]
UNEVEN = 0.5  # of a layer's mean work: how far a cut may be moved to where less crosses


def layers(work: Array, crossing: Array, runs: Sequence[Run], most: int) -> tuple[int, ...]:
    """Return the first operator of each layer, and the end of the last: at most `most` layers of similar work.

    work: [operators], seconds. crossing: [operators + 1], bytes that cross each cut. Light instances of repeats are not
    cut; of too many cuts those stay where locally the fewest bytes cross, then those with the most even work.
    """
    before: Array = np.concatenate([[0.0], np.cumsum(work)])
    room = UNEVEN * before[-1] / most
    places = _allowed_cuts(before, runs, before[-1] / most + room)
    if len(places) > most + 1:
        places = [0, *_low_traffic_cuts(places[1:-1], before, crossing, room / 2), len(work)]
    return tuple(places) if len(places) <= most + 1 else _balanced_cuts(places, before[places], most)


def _allowed_cuts(before: Array, runs: Sequence[Run], heaviest: float) -> list[int]:
    """Return the operators where a layer may begin, 0 and the end included, in order.

    Left out are those inside instances of repeats whose work is at most `heaviest`. before: [operators + 1], work
    before each operator.
    """
    inside: set[int] = set()
    for run in runs:
        if before[run.start + run.period] - before[run.start] <= heaviest:
            firsts = range(run.start, run.end, run.period)
            inside.update(place for first in firsts for place in range(first + 1, first + run.period))
    return [place for place in range(len(before)) if place not in inside]


def _low_traffic_cuts(places: Sequence[int], before: Array, crossing: Array, span: float) -> list[int]:
    """Return those of the cuts `places` that fewest bytes cross within `span` of work before and after; equals stay.

    before, crossing: work before, and bytes that cross, every possible cut, [operators + 1].
    """
    at, bytes_ = before[list(places)], crossing[list(places)]
    lows, highs = np.searchsorted(at, at - span, "left"), np.searchsorted(at, at + span, "right")
    every = zip(places, bytes_, lows.tolist(), highs.tolist(), strict=True)
    return [place for place, mine, low, high in every if mine <= bytes_[low:high].min()]


def _balanced_cuts(places: Sequence[int], before: Array, most: int) -> tuple[int, ...]:
    """Return the cuts into most/2 to `most` layers of the most even work, the first and last of `places` included.

    Most even: least sum of squares of work times the number of layers. before: work before each place. Assumes more
    than `most` layers between the places.
    """
    square = (before[None, :] - before[:, None]) ** 2  # [from, to]
    square[np.tril_indices(len(before))] = np.inf
    least, came, uneven = square[0].copy(), [np.zeros(len(before), np.int64)], [np.inf]
    for number in range(2, most + 1):
        sums = least[:, None] + square
        came.append(sums.argmin(axis=0))
        least = sums.min(axis=0)
        uneven.append(float(least[-1]) * number if number >= most / 2 else np.inf)
    ends = [len(places) - 1]
    for back in reversed(came[: int(np.argmin(uneven)) + 1]):
        ends.append(int(back[ends[-1]]))
    assert all(first < last for first, last in pairwise(reversed(ends)))
    return tuple(places[end] for end in reversed(ends))
