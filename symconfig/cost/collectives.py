"""Seconds of a block's collectives, and what of them shows beside the work that they run with."""

from __future__ import annotations

import numpy as np

from symconfig.cost import compiled
from symconfig.cost.framework import CONTENTION, Framework
from symconfig.cost.host import is_dispatch
from symconfig.cost.lattice import ELEMENT_BYTES, Array, Lattice
from symconfig.cost.machine import Machine
from symconfig.graph.derived import Collective, Phase
from symconfig.graph.layout import Kind
from symconfig.graph.monomial import Monomial

# Share of a hidden all-to-all's time that the work beside it loses, since its kernels hold 20 to 32 of the GPU's 132 to
# 152 compute units (DeepEP's and HybridEP's defaults; moe_hybridep_num_sms in Megatron-Bridge's performance scripts).
_TAKEN = 0.2
_NOTHING_S = 1e-30  # keeps a share of nothing from being a division by zero


def collective_s(c: Collective, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    """[points], before any overlap; 0 where the group has one rank."""
    ranks = lattice.value(Monomial.of(*c.axes))
    stride = framework.stride(c.axes, lattice.numbers)
    amount = lattice.value(c.elements) * ELEMENT_BYTES[c.element]
    if c.kind is Kind.ALL_TO_ALL:
        copies = lattice.numbers["num_experts_per_tok"] if "ep" in c.axes else 1.0
        once = float("ep" in c.axes and framework.implementation.dispatcher != "alltoall")
        seconds = compiled.all_to_all_s(amount, ranks, stride, copies, once, **machine.levels)
    else:
        seconds = compiled.ring_s(amount, 2.0 if c.kind is Kind.ALL_REDUCE else 1.0, ranks, stride, **machine.levels)
    return np.where(ranks > 1, seconds * c.times, 0.0)


def exposed(c: Collective, seconds: Array, work: dict[tuple[str, Phase], Array], framework: Framework) -> Array:
    axis = c.axes[0]
    # What is cut into pieces in the forward is in the backward, too: the gradient's gather before the input's gradient.
    direction = "forward" if c.phase is Phase.FORWARD or c.chunked else "backward"
    hide: float = getattr(framework.hide, f"{axis}_{direction}", 0.0)
    if c.beside is None or hide == 0.0:
        return seconds
    pieces = framework.hide.tp_pieces if axis == "tp" else 1
    edge = 1 / pieces if pieces > 1 else 0.0
    beside, slowed = work[c.beside], 0.0
    if axis == "tp" and pieces == 1:
        slowed = compiled.slowed_s(seconds, beside, hide, CONTENTION)
    result: Array = compiled.chunked_s(seconds, beside + slowed, hide, edge) + slowed
    return result


def beside_another(
    collectives: tuple[Collective, ...], seconds: tuple[Array, ...], work: dict[tuple[str, Phase], Array], hide: float
) -> tuple[Array, ...]:
    """The experts' all-to-all of a microbatch's forward runs beside the work of another one's backward and vice versa
    (Megatron-LM, overlap_moe_expert_parallel_comm): all of it together beside both passes of the layer."""
    mine = [is_dispatch(c) for c in collectives]
    whole = sum((t for t, yes in zip(seconds, mine, strict=True) if yes), np.zeros_like(seconds[0]))
    left = np.maximum(compiled.exposed_s(whole, sum(work.values()), hide) / np.maximum(whole, _NOTHING_S), _TAKEN)
    return tuple(t * left if yes else t for t, yes in zip(seconds, mine, strict=True))
