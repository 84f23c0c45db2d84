"""What the slowest stage takes at least, whatever the layout and however much memory there is."""

from __future__ import annotations

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.cost.stages import Setting
from symconfig.graph.parts import place_of
from symconfig.solve.kinds import ROUNDING, Kinds
from symconfig.solve.stages.problem import Layouts


def least_slowest_s(kinds: Kinds, setting: Setting, message_s: Array, layouts: Layouts) -> Array:
    """Return the seconds of a microbatch on the slowest stage of any layout, by recompute choice and point: [r, n].

    Its even share; and, of the kind of layer that takes most of the time, as many as fit on every stage beside the ends
    must be all that there are. Exact where all layers are of one kind. message_s: [n], for which a stage waits for one.
    """
    pp, seconds, places = setting.pipelines.pp, kinds.seconds, [place_of(name) for name in kinds.names]
    # Against a stage inside the model, either end has one message less.
    first, last = (
        np.tensordot(kinds.counts[chosen], seconds[chosen], axes=1) - message_s
        for chosen in (
            [k for k, place in enumerate(places) if place.begins],
            [k for k, place in enumerate(places) if layouts.in_last_chunk(place)],
        )
    )
    whole = np.tensordot(kinds.counts, seconds, axes=1) - 2 * message_s
    layers = np.flatnonzero(kinds.layers)
    most = layers[int((kinds.counts[layers] * seconds[layers, 0, 0]).argmax())]
    counted = _counted(seconds[most], float(kinds.counts[most]), first, last, pp)
    every_stage = 2 * setting.pipelines.vpp * message_s
    result: Array = np.maximum(counted, whole / pp) + every_stage
    return result


def _counted(each: Array, layers: float, first: Array, last: Array, pp: Array) -> Array:
    """Return the least that the slowest stage takes if so many layers of `each` seconds lie beside the ends: [r, n]."""
    ends, even = np.maximum(first, last), (layers * each + first + last) / pp
    best = np.full_like(each, np.inf)
    for base in (np.zeros_like(each), first, last):
        start = np.ceil((even - base) / each - ROUNDING)
        for more in (0.0, 1.0, 2.0):
            slowest = np.maximum(base + np.maximum(start + more, 0.0) * each, ends)
            room = sum(
                count * np.floor((slowest - ends_s) / each + ROUNDING)
                for count, ends_s in ((pp - 2, 0.0), (1, first), (1, last))
            )
            best = np.where(room >= layers, np.minimum(best, slowest), best)
    # Should no candidate have room, nothing is known beyond the even share.
    return np.where(np.isfinite(best), best, even)
