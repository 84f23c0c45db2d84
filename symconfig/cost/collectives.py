"""Seconds of a block's collectives, and what of them shows beside the work that they run with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.formulas import CONTENTION, overlapped_s
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Machine
from symconfig.cost.work import inside_experts, is_dispatch
from symconfig.graph.derived import Collective, DerivedBlock, Phase
from symconfig.graph.implementation import Dispatch
from symconfig.graph.layout import GTP, Kind
from symconfig.graph.monomial import Monomial
from symconfig.graph.operator import ELEMENT_BYTES, Element, Leg


def ring(amount: Array, passes: float | Array, ranks: Array, stride: Array | float, machine: Machine) -> Array:
    """Return the seconds of a ring collective; 0 for a group of one rank. Arguments are as of `formulas.ring_s`."""
    several = ranks > 1
    if not np.any(several):
        return np.zeros(np.broadcast_shapes(*(np.shape(each) for each in (amount, passes, ranks, stride))))
    return np.where(several, formulas.ring_s(amount, passes, ranks, stride, **machine.levels), 0.0)


def collectives_s(
    every: Sequence[Collective], lattice: Lattice, machine: Machine, framework: Framework, known: dict[object, Array]
) -> tuple[Array, ...]:
    """Return the seconds of each collective, all repetitions, before any overlap: [points] each.

    The arrays may be shared, so the caller must not change them. known: a cache by the fields that the cost depends on
    (not tensor and phase), for this lattice, machine and framework; it is filled.
    """
    result = []
    for c in every:
        kind = c.kind if c.kind is Kind.ALL_TO_ALL else c.kind.passes
        same = (kind, c.axes, c.elements, c.element, c.times, c.copies, c.groups, c.chosen_groups)
        if same not in known:
            known[same] = collective_s(c, lattice, machine, framework)
        result.append(known[same])
    return tuple(result)


def collective_s(c: Collective, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    """Return a collective's seconds before any overlap, all its repetitions together; 0 for a group of one: [points].

    An all-to-all costs `all_to_all_s`; over ep, copies of a token for one rank travel once unless the dispatch is
    SLOTS. A token dispatch with Dispatch.EVERYWHERE costs an all-gather of all tokens. All else is a ring.
    """
    ranks = lattice.value(Monomial.of(*c.axes))
    several = ranks > 1
    if not several.any():
        return np.zeros(lattice.points)
    stride = framework.stride(c.axes, lattice.numbers)
    bytes_each = framework.bytes.gradient if c.element is Element.GRADIENT else ELEMENT_BYTES[c.element]
    amount = lattice.value(c.elements) * bytes_each
    if c.kind is Kind.ALL_TO_ALL:
        copies, groups, chosen = (lattice.value(size) for size in (c.copies, c.groups, c.chosen_groups))
        dispatch = framework.implementation.experts.dispatch
        if is_dispatch(c) and dispatch is Dispatch.EVERYWHERE:
            everything = amount / copies * ranks
            return np.where(several, formulas.ring_s(everything, 1, ranks, stride, **machine.levels) * c.times, 0.0)
        once = float("ep" in c.axes and dispatch is not Dispatch.SLOTS)
        seconds = formulas.all_to_all_s(amount, ranks, stride, copies, once, groups, chosen, **machine.levels)
    else:
        seconds = formulas.ring_s(amount, c.kind.passes, ranks, stride, **machine.levels)
    return np.where(several, seconds * c.times, 0.0)


def exposed(c: Collective, seconds: Array, work: dict[tuple[str, Phase], Array], framework: Framework) -> Array:
    """Return the exposed seconds of a collective beside the operator that it overlaps with: [points].

    All of `seconds` if it overlaps with none, for an all-to-all, or if the framework overlaps nothing on its first axis
    in this pass. Over gtp, and over tp unless products are cut into pieces, as a whole (`overlapped_s`); else piece by
    piece (`chunked_s`). Weights over gtp overlap as ZeRO's do.

    work: seconds of every operator and phase.
    """
    axis = c.axes[0]
    # What is cut into pieces in the forward is in the backward, too: the gradient's gather before the input's gradient.
    direction = "forward" if c.phase is Phase.FORWARD or c.chunked else "backward"
    hide: float = getattr(framework.hide, "sharded_weights" if axis == GTP else f"{axis}_{direction}", 0.0)
    # The kernel beside an all-to-all needs all of what travels, while a ring brings keys one part after the other.
    if c.behind is None or hide == 0.0 or c.kind is Kind.ALL_TO_ALL:
        return seconds
    pieces = framework.hide.tp_pieces if axis == "tp" else 1
    if axis == GTP or (axis == "tp" and pieces == 1):
        result: Array = overlapped_s(seconds, work[c.behind], hide)
    else:
        result = formulas.chunked_s(seconds, work[c.behind], hide, 1 / pieces if pieces > 1 else 0.0)
    return result


def beside_another(
    block: DerivedBlock, seconds: tuple[Array, ...], work: dict[tuple[str, Phase], Array], hide: float
) -> tuple[Array, ...]:
    """Return each collective's exposed seconds while one microbatch runs forward and another backward through a layer.

    Only the experts' all-to-alls change: each overlaps with the share `hide` of the other microbatch's work in the same
    one of four turns, none of which begins before the last one has ended: combine's gradient beside what precedes the
    experts forward, dispatch beside the experts backward, dispatch's gradient beside the experts forward, combine
    beside what precedes the experts backward (Megatron-LM core_v0.14 to 0.19, model_chunk_schedule_plan.py,
    TransformerLayerSchedulePlan.run). The share CONTENTION always stays exposed.

    seconds: of each collective, exposed, [points]. work: of every operator and phase.
    """
    among = inside_experts(block)

    def meanwhile(c: Collective) -> Array:
        """Return the seconds of the other microbatch's work that runs in the same turn as a collective: [points]."""
        ahead, inside = c.phase is Phase.FORWARD, c.leg is not Leg.BACK
        turn = (key for key in work if (key[0] in among) is inside and (key[1] is Phase.FORWARD) is not ahead)
        return sum((work[key] for key in turn), np.zeros_like(seconds[0]))

    return tuple(
        formulas.chunked_s(t, meanwhile(c), hide, CONTENTION) if is_dispatch(c) else t
        for c, t in zip(block.collectives, seconds, strict=True)
    )
