"""One candidate again, by the same functions that weighed it: the costs of every stage, and its pipeline simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from symconfig.cost.blocks import KEPT, BlockCost
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.optimizer import between_ends_s, copies_s
from symconfig.cost.pipeline import chunk_times
from symconfig.cost.stages import Pipeline, Pipelines, Setting, Stages, StageShape, layers, stages
from symconfig.cost.step import Cost, Extremes, apart_s, evaluate, evaluate_block, memory_bytes, prefixed, time_s, total
from symconfig.cost.table import Choice, Table, block_costs, resolve, table
from symconfig.graph.model import derived, structure
from symconfig.graph.parts import is_layer, place_of
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.schedule.simulate import not_simulated, simulate
from symconfig.schedule.timeline import Shape, Timeline, Times
from symconfig.solve.pieces import PLAIN, WHOLE, setting
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import lattice, priced


@dataclass(frozen=True)
class Costed:
    """The costs of one candidate with an entry of memory for every stage, and what they were computed from.

    by_block: the cost where only the first layers of every chunk are recomputed; None: it is computed from the sums
    when read.
    """

    sums: Stages
    points: ConfigurationSet
    setting: Setting
    table: Table
    by_block: Cost | None = None

    @property
    def cost(self) -> Cost:
        return self.by_block or Cost(self._time, self._memory)

    @cached_property
    def _time(self) -> dict[str, Array]:
        return time_s(self.sums, self.points, self.setting)

    @cached_property
    def _memory(self) -> dict[str, Array]:
        return memory_bytes(self.sums, self.points, self.setting)

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """Return the bytes allocated at the peak of every stage, in order of stages."""
        memory = self.by_block.memory if self.by_block else self._memory
        return tuple(float(value) for value in total(memory)[:, 0, 0, 0])


def sizes(prospect: Prospect, copies: int) -> Lattice:
    """Return the lattice of the candidate's point, repeated `copies` times."""
    return lattice(prospect.request, prospect.columns(copies))


def _shape(prospect: Prospect, index: int, kinds: tuple[str, ...], counts: tuple[int, ...]) -> StageShape:
    stage, together = prospect.split.stage(index), prospect.uniform_layers
    if together == 1:
        return StageShape(index, counts, 1, layers(stage))
    begin = [kind for chunk in stage for kind in begins(chunk, together) if kind is not None]
    return StageShape(index, counts, 1, layers(stage), together, tuple(begin.count(kind) for kind in kinds))


def begins(chunk: tuple[str, ...], together: int) -> tuple[str | None, ...]:
    """Return a chunk's kinds of blocks, with None for each layer that is not the first of a group recomputed together.

    Groups are of `together` layers. Only transformer layers count and become None; other blocks, such as embedding and
    loss, keep their kind.
    """
    place, result = 0, []
    for kind in chunk:
        result.append(None if is_layer(kind) and place % together else kind)
        place += is_layer(kind)
    return tuple(result)


def costed(prospect: Prospect, known: Lattice | None = None) -> Costed:
    """Return the costs of one candidate by the functions that the search uses, with every stage by itself.

    known: its `sizes`, if the machine's constants are arrays with one value per copy; None: one point, from the cache.
    """
    if known is None:
        return detailed(prospect, table_of(prospect))
    return detailed(prospect, _table(_costs(prospect, known), choices_of(prospect), prospect))


def table_of(prospect: Prospect, where: Lattice | None = None) -> Table:
    """Return the cost table of a candidate's blocks at the points of `where`; None: at its own point.

    Cached by the model's structure, scheme, lattice numbers, framework, machine and recompute choices.
    """
    request, where = prospect.request, where or sizes(prospect, 1)
    numbers = tuple((name, *np.ravel(value).tolist()) for name, value in where.numbers.items())
    key = structure(request.model), prospect.scheme, numbers, request.framework, prospect.machine.key
    return _table_once(_Points(key, prospect, where), choices_of(prospect))


@dataclass(frozen=True, slots=True)
class _Points:
    """A candidate's points as a cache key: equal to all points where blocks cost the same."""

    key: tuple[object, ...]
    prospect: Prospect = field(compare=False)
    where: Lattice = field(compare=False)


@lru_cache(maxsize=512)
def _table_once(points: _Points, choices: tuple[Choice, ...]) -> Table:
    return _table(_costs_once(points), choices, points.prospect)


@lru_cache(maxsize=512)
def _costs_once(points: _Points) -> tuple[BlockCost, ...]:
    return _costs(points.prospect, points.where)


def _costs(prospect: Prospect, where: Lattice) -> tuple[BlockCost, ...]:
    """Return the costs of a candidate's blocks at the points of `where`."""
    request = prospect.request
    of_kind = derived(request.model, request.framework.implementation, prospect.scheme)
    return block_costs(of_kind, where, prospect.machine, request.framework)


def _table(costs: tuple[BlockCost, ...], choices: tuple[Choice, ...], prospect: Prospect) -> Table:
    """Return the table of these costs of a candidate's blocks under recompute choices."""
    policies = resolve({cost.derived.name: cost.derived for cost in costs}, choices)
    return table(costs, choices, policies, prospect.machine, prospect.request.framework)


def choices_of(prospect: Prospect) -> tuple[Choice, ...]:
    """Return the recompute choices that a candidate's cost needs: its own, or none and full for the first layers."""
    return (PLAIN, WHOLE) if prospect.block_layers else (prospect.choice,)


def detailed(prospect: Prospect, small: Table, where: ConfigurationSet | None = None) -> Costed:
    """Return a candidate's costs for every stage, from the table of its blocks.

    small: the table under the policies of `choices_of`, at the candidate's point or [n] variants of it (constants,
    loads). where: columns of these points; None: the candidate's own, repeated. With `block_layers`, time and memory
    are those of full recompute of that many first layers of each chunk (`by_block`), whether they fit or not.
    """
    request, pp = prospect.request, prospect.configuration.pp
    every = np.arange(small.boundary.size)
    where = priced(request, prospect.columns(every.size), pp) if where is None else where
    counts = prospect.split.counts(small.kinds)
    shapes = tuple(_shape(prospect, index, small.kinds, count) for index, count in enumerate(counts))
    pipelines = Pipelines.of([Pipeline(pp, prospect.split.vpp, shapes)])
    priced_at = setting(request, prospect.machine, pipelines, prospect.configuration.zero_stage, (prospect.offload,))
    sums = stages(small, pipelines, every, priced_at.tied)
    if not prospect.block_layers:
        return Costed(sums, where, priced_at, small)
    prefixes = tuple(
        tuple(prospect.split.first_layers_of(stage, small.kinds, count) for count in (0, prospect.block_layers))
        for stage in range(pp)
    )
    plain = evaluate(sums.policy(0), where, priced_at)
    cost = evaluate_block(
        Extremes(0, 1, small, every, sums, plain), where, priced_at, prefixed([prefixes], None, pp), np.inf
    ).cost
    return Costed(sums, where, priced_at, small, cost)


STAGES = ("compute", "recompute", "layer communication", "pipeline send/receive")  # parts of the slowest stage's time
BUBBLE, EXCHANGE = "pipeline bubble", "data-parallel communication"


def timeline(prospect: Prospect, parts: Costed, made: Times | None = None) -> Timeline:
    """Return the simulated timeline of a step under the framework's own schedule. made: its times; None: `times`.

    Raises InputError if the schedule cannot run this shape.
    """
    made = times(prospect, parts) if made is None else made
    return simulate(made, *shape(parts), paired=prospect.beside_another)


def times(prospect: Prospect, parts: Costed) -> Times:
    """Return the simulator's input: seconds of passes, messages and data-parallel exchanges of every chunk.

    Weight gathers and gradient reductions are left out (None) if the sharding repeats them in every microbatch: they
    are then in the formula's time only.
    """
    made = chunk_times(
        parts.table, parts.sums, parts.points, parts.setting, prospect.split.chunks, prospect.block_layers
    )
    return without_exchange(made) if parts.setting.sharding.each_microbatch else made


def refined_s(prospect: Prospect, parts: Costed) -> float:
    """Return the step in seconds: simulated if its pipeline is of a shape that can be, else the formula's sum.

    The simulation ends where the optimizer starts; the formula adds optimizer, overhead and copies, and the
    data-parallel exchange if the sharding repeats it in every microbatch.
    """
    if not _can_simulate(parts):
        return sum(float(part[0, 0, 0]) for part in parts.cost.time.values())
    sums, points, setting = parts.sums, parts.points, parts.setting
    end = optimizer_start_s(timeline(prospect, parts), parts)
    if not parts.setting.sharding.each_microbatch:
        return end + float(apart_s(sums, points, setting)[0, 0]) + float(copies_s(sums, points, setting)[0])
    rest = {name: part for name, part in parts.cost.time.items() if name not in (*STAGES, BUBBLE)}
    return end + sum(float(part[0, 0, 0]) for part in rest.values())


def refined_time(prospect: Prospect, parts: Costed) -> dict[str, float]:
    """Return the seconds of a step by part, as in `Cost.time`, with bubble and data-parallel communication simulated.

    Both are the formula's without a pipeline that can be simulated, the communication also if the sharding repeats it
    in every microbatch.
    """
    time = {name: float(part[0, 0, 0]) for name, part in parts.cost.time.items()}
    if not _can_simulate(parts):
        return time
    made = times(prospect, parts)
    alone = timeline(prospect, parts, without_exchange(made)).step_s
    time[BUBBLE] = alone - sum(time[name] for name in STAGES)
    if not parts.setting.sharding.each_microbatch:
        shown = optimizer_start_s(timeline(prospect, parts, made), parts) - alone
        time[EXCHANGE] = shown + float(copies_s(parts.sums, parts.points, parts.setting)[0])
    return time


def without_exchange(made: Times) -> Times:
    """Return the times without weight gathers and gradient reductions."""
    return replace(made, gather=None, reduce=None)


def shape(parts: Costed) -> tuple[int, int]:
    """Return (microbatches of a step, microbatches that pass a chunk in a row)."""
    return int(parts.points.num_microbatches[0]), parts.setting.microbatch_group


def _can_simulate(parts: Costed) -> bool:
    """Return whether there is a pipeline of a shape that the simulator supports."""
    setting = parts.setting
    one = setting.pipelines.only
    return one.pp > 1 and not_simulated(Shape(one.pp, one.vpp, *shape(parts))) is None


def optimizer_start_s(simulated: Timeline, parts: Costed) -> float:
    """Return when the optimizer starts, in seconds: all stages are done and shared embedding gradients are summed."""
    done = simulated.finish_s
    between = float(between_ends_s(parts.sums, parts.points, parts.setting)[0])
    return max(float(done.max()), max(float(done[0]), float(done[-1])) + between)


_ACTIVATIONS, _WORKING, _LOSS = "activations", "working set", "head and loss"


def stage_memory(prospect: Prospect, parts: Costed, line: Timeline) -> tuple[tuple[Array, Array], ...]:
    """Return for each stage (seconds at which its allocated bytes change, from 0 on; bytes from then on).

    Activations are those of the microbatches that the simulation has in flight. The working set counts while a stage
    holds any, the loss's memory while it holds any of a chunk with the loss; all else of the peak is constant. parts:
    of the same chunks as the timeline.
    """
    bytes_of = {
        name: np.broadcast_to(part, parts.cost.stage_bytes.shape)[:, 0, 0, 0]
        for name, part in parts.cost.memory.items()
    }
    working, loss, kept, result = bytes_of[_WORKING], bytes_of[_LOSS], _kept(prospect, parts), []
    states = np.array(parts.peaks) - working - loss - bytes_of[_ACTIVATIONS]
    # The loss's bytes lie evenly on the chunks that end in a loss.
    ending = np.array([float(any(place_of(kind).closes for kind in chunk)) for chunk in prospect.split.chunks])
    for stage in range(line.pp):
        mine = slice(stage, None, line.pp)
        of_loss = loss[stage] * ending[mine] / max(ending[mine].sum(), 1.0)
        seconds, held = line.held(stage)
        in_flight = held @ kept[mine] + (held > 0) @ of_loss + np.where(held.any(axis=1), working[stage], 0.0)
        result.append((np.append(0.0, seconds), np.append(states[stage], states[stage] + in_flight)))
    return tuple(result)


def _kept(prospect: Prospect, parts: Costed) -> Array:
    """Return the activation bytes that one microbatch keeps in each chunk, [pp vpp], in model order.

    The loss's are left out, and layers that do not begin a recompute group. The first `block_layers` layers of a chunk
    count as recomputed.
    """
    by_kind = parts.table.passes[KEPT][..., 0]
    place = {kind: index for index, kind in enumerate(parts.table.kinds)}
    result = []
    for chunk in prospect.split.chunks:
        layer, total = 0, 0.0
        for kind, begun in zip(chunk, begins(chunk, prospect.uniform_layers), strict=True):
            if begun is not None and not place_of(kind).closes:
                repeated = is_layer(kind) and layer < prospect.block_layers  # as the table's second policy has it
                total += by_kind[int(repeated), place[kind]]
            layer += is_layer(kind)
        result.append(total)
    return np.array(result)


def idle(line: Timeline) -> float:
    """Return the pipeline's bubble as a share from 0 to 1: mean idle time of the stages over the step."""
    return max(0.0, 1.0 - float(line.busy_s.mean()) / line.step_s)
