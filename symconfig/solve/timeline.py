"""A candidate's pipeline, simulated: its timeline, the step that follows from it, and what each stage holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from symconfig.cost.blocks import KEPT
from symconfig.cost.exchange import between_ends_s, copies_s
from symconfig.cost.lattice import Array
from symconfig.cost.pipeline import chunk_times
from symconfig.cost.step import apart_s
from symconfig.graph.parts import is_layer, place_of
from symconfig.schedule.schedules import Shape
from symconfig.schedule.simulate import not_simulated, simulate
from symconfig.schedule.timeline import Timeline, Times
from symconfig.solve.costed import Costed, begins
from symconfig.solve.prospect import Prospect

STAGES = ("compute", "recompute", "layer communication", "pipeline send/receive")  # parts of the slowest stage's time
BUBBLE, EXCHANGE = "pipeline bubble", "data-parallel communication"


def timeline(prospect: Prospect, parts: Costed, slow: Array | float = 1.0) -> Timeline:
    """Return the simulated timeline of a step. slow: as of `Times`.

    Raises InputError if the schedule cannot run this shape.
    """
    return _run(prospect, parts, replace(times(prospect, parts), slow=slow))


def times(prospect: Prospect, parts: Costed) -> Times:
    """Return the simulator's input: seconds of passes, messages and exchanges of every chunk.

    Weight gathers and gradient reductions are left out (None) if the sharding repeats them in every microbatch.
    """
    made = chunk_times(
        parts.table, parts.sums, parts.points, parts.setting, prospect.split.chunks, prospect.block_layers
    )
    return without_exchange(made) if parts.setting.sharding.each_microbatch else made


def refined_s(prospect: Prospect, parts: Costed) -> float:
    """Return the step in seconds: simulated if there is a pipeline of a shape that can be, else the formula's.

    The simulation ends where the optimizer starts; optimizer, overhead and copies are added by the formula, as is the
    exchange if the sharding repeats it in every microbatch.
    """
    if not _simulated(parts):
        return sum(float(part[0, 0, 0]) for part in parts.cost.time.values())
    sums, points, setting = parts.sums, parts.points, parts.setting
    end = _end_s(timeline(prospect, parts), parts)
    if not parts.setting.sharding.each_microbatch:
        return end + float(apart_s(sums, points, setting)[0, 0]) + float(copies_s(sums, points, setting)[0])
    rest = {name: part for name, part in parts.cost.time.items() if name not in (*STAGES, BUBBLE)}
    return end + sum(float(part[0, 0, 0]) for part in rest.values())


def refined_time(prospect: Prospect, parts: Costed) -> dict[str, float]:
    """Return the seconds of a step by part, with bubble and exposed data-parallel communication simulated.

    Without a pipeline that can be simulated, the formula's; the communication also if the sharding repeats it in every
    microbatch.
    """
    time = {name: float(part[0, 0, 0]) for name, part in parts.cost.time.items()}
    if not _simulated(parts):
        return time
    made = times(prospect, parts)
    alone = _run(prospect, parts, without_exchange(made)).step_s
    time[BUBBLE] = alone - sum(time[name] for name in STAGES)
    if not parts.setting.sharding.each_microbatch:
        shown = _end_s(_run(prospect, parts, made), parts) - alone
        time[EXCHANGE] = shown + float(copies_s(parts.sums, parts.points, parts.setting)[0])
    return time


def without_exchange(made: Times) -> Times:
    """Return the times without weight gathers and gradient reductions."""
    return replace(made, gather=None, reduce=None)


def _run(prospect: Prospect, parts: Costed, made: Times) -> Timeline:
    return simulate(made, *shape(parts), paired=prospect.beside_another)


def shape(parts: Costed) -> tuple[int, int]:
    """Return (microbatches of a step, microbatches that pass a chunk in a row)."""
    return int(parts.points.num_microbatches[0]), parts.setting.microbatch_group


def _simulated(parts: Costed) -> bool:
    """Return whether there is a pipeline of a shape that the simulator supports."""
    setting = parts.setting
    one = setting.pipelines.only
    return one.pp > 1 and not_simulated(Shape(one.pp, one.vpp, *shape(parts))) is None


def _end_s(simulated: Timeline, parts: Costed) -> float:
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
    working, loss = bytes_of[_WORKING], _at_loss(prospect, bytes_of[_LOSS])
    states = np.array(parts.peaks) - working - bytes_of[_LOSS] - bytes_of[_ACTIVATIONS]
    kept, at_rest = _kept(prospect, parts), _spread(prospect, states)
    result = []
    for stage in range(line.pp):
        chunks = list(range(stage, len(kept), line.pp))
        least = at_rest[chunks].sum()
        seconds, held = line.held(stage)
        change = (
            least + held @ kept[chunks] + (held > 0) @ loss[chunks] + np.where(held.any(axis=1), working[stage], 0.0)
        )
        result.append((np.append(0.0, seconds), np.append(least, change)))
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


def _at_loss(prospect: Prospect, of_stage: Array) -> Array:
    """Return the loss's bytes of each stage on the chunks that end in a loss, split evenly, [pp vpp]."""
    ending = np.array([float(any(place_of(kind).closes for kind in chunk)) for chunk in prospect.split.chunks])
    stage = np.arange(len(ending)) % prospect.split.pp
    result: Array = of_stage[stage] * ending / np.maximum(np.bincount(stage, ending), 1.0)[stage]
    return result


def _spread(prospect: Prospect, of_stage: Array) -> Array:
    """Return the bytes of each stage split over its chunks by their numbers of blocks, [pp vpp]."""
    blocks = np.array([len(chunk) for chunk in prospect.split.chunks], dtype=np.float64)
    stage = np.arange(len(blocks)) % prospect.split.pp
    result: Array = of_stage[stage] * blocks / np.maximum(np.bincount(stage, blocks), 1.0)[stage]
    return result


def idle(line: Timeline) -> float:
    """Return the pipeline's bubble as a share from 0 to 1: mean idle time of the stages over the step."""
    return max(0.0, 1.0 - float(line.busy_s.mean()) / line.step_s)
