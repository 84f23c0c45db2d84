"""What a simulated schedule lets every stage hold over time."""

from __future__ import annotations

import numpy as np

from symconfig.cost.blocks import KEPT
from symconfig.cost.lattice import Array
from symconfig.graph.parts import is_layer, place_of
from symconfig.schedule.timeline import Timeline
from symconfig.solve.costed import Costed, begins
from symconfig.solve.prospect import Prospect

_ACTIVATIONS, _WORKING, _LOSS = "activations", "working set", "head and loss"


def stage_memory(prospect: Prospect, parts: Costed, line: Timeline) -> tuple[tuple[Array, Array], ...]:
    """Return, for each stage, the seconds from 0 on at which its allocated bytes change, and the bytes from then on.

    Of a chunk's activations it holds as many microbatches as the simulation says. What it works with counts while it
    holds any, what the loss keeps while it holds any of the loss's chunk. A schedule that has chunks elsewhere, or
    twice, has their states there. parts: of the same chunks as those that the timeline has.
    """
    bytes_of = {
        name: np.broadcast_to(part, parts.cost.stage_bytes.shape)[:, 0, 0, 0]
        for name, part in parts.cost.memory.items()
    }
    working, loss = bytes_of[_WORKING], _at_loss(prospect, bytes_of[_LOSS])
    states = np.array(parts.peaks) - working - bytes_of[_LOSS] - bytes_of[_ACTIVATIONS]
    kept, at_rest = _kept(prospect, parts), _spread(prospect, states)
    result = []
    for stage, chunks in enumerate(map(list, line.placed)):
        least = at_rest[chunks].sum()
        seconds, held = line.held(stage)
        change = (
            least + held @ kept[chunks] + (held > 0) @ loss[chunks] + np.where(held.any(axis=1), working[stage], 0.0)
        )
        result.append((np.append(0.0, seconds), np.append(least, change)))
    return tuple(result)


def _kept(prospect: Prospect, parts: Costed) -> Array:
    """Return the bytes that a microbatch in flight keeps in each chunk of the model, without what ends at the loss: [pp
    vpp].
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
    """Return the bytes of each stage that the loss keeps, in the chunks of the model that end in one: [pp vpp]."""
    ending = np.array([float(any(place_of(kind).closes for kind in chunk)) for chunk in prospect.split.chunks])
    stage = np.arange(len(ending)) % prospect.split.pp
    result: Array = of_stage[stage] * ending / np.maximum(np.bincount(stage, ending), 1.0)[stage]
    return result


def _spread(prospect: Prospect, of_stage: Array) -> Array:
    """Spread the bytes of each stage over its chunks of the model, by their blocks: [pp vpp]."""
    blocks = np.array([len(chunk) for chunk in prospect.split.chunks], dtype=np.float64)
    stage = np.arange(len(blocks)) % prospect.split.pp
    result: Array = of_stage[stage] * blocks / np.maximum(np.bincount(stage, blocks), 1.0)[stage]
    return result
