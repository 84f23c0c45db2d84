"""Bytes that libraries hold for exchanges of their own and for replayed graphs, beside what the allocator has."""

from __future__ import annotations

import numpy as np

from symconfig.cost.framework import Framework
from symconfig.cost.host import is_dispatch
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Machine
from symconfig.cost.tape import minimum
from symconfig.graph import dims as d
from symconfig.graph.derived import DerivedBlock
from symconfig.graph.implementation import Dispatch
from symconfig.graph.operator import ELEMENT_BYTES, Element

# User buffers: one of the gathered stream's size for each product that has a collective, whatever runs at once
# (transformer_engine/pytorch/module/base.py, initialize_ub). Eight are gathered, in 8 bits where products are, and four
# are reduced, always in 16.
_GATHERED, _REDUCED = 8, 4
# DeepEP (deep_ep/buffers/legacy.py, Buffer.get_dispatch_config; csrc/legacy/config.hpp): of 20 compute units two share
# a channel, and each channel has chunks of so many tokens for every peer of the node, and for every other node twice,
# there and back. Beside its channels a token has indices, weights and scales of at most 128.
_CHANNELS, _NODE, _NODE_TOKENS, _FAR_TOKENS, _BESIDE_BYTES = 10, 8, 288, 128, 128 * (8 + 4 + 4) + 16
# HybridEP holds a place for every token of every rank (csrc/hybrid_ep/hybrid_ep.cu, allocate_buffer_for_dispatch), in
# 16 bits, with the weights of every expert in fp32.
_WEIGHT_BYTES = 4.0
# "Near-neutral to several GB higher, depending on scope" (Megatron-Bridge, docs/training/cuda-graphs.md); assumed.
GRAPH_BYTES = 2.0 * 2**30


def registered_bytes(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    """Return the bytes of all buffers that a rank holds because it has such a block, graphs aside: [points]."""
    return _user_buffers(block, lattice, machine, framework) + _dispatch(block, lattice, framework)


def _stream(block: DerivedBlock, lattice: Lattice) -> Array:
    """Return the elements of the rank's part of the stream between blocks: [points]."""
    return lattice.value(block.boundary)


def _user_buffers(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    cut = framework.hide.tp_pieces > 1 and any(c.chunked and c.axes[0] == "tp" for c in block.collectives)
    if not cut:
        return np.zeros(lattice.points)
    tp = np.broadcast_to(lattice.numbers["tp"], lattice.points)
    whole = _stream(block, lattice) * (tp if block.scheme.sequence_parallel else 1.0)
    each = _GATHERED * min(machine.quantised_bytes, ELEMENT_BYTES[Element.ACTIVATION]) + _REDUCED * 2.0
    return np.where(tp > 1, each * whole, 0.0)


def _dispatch(block: DerivedBlock, lattice: Lattice, framework: Framework) -> Array:
    how = framework.implementation.experts.dispatch
    if how in (Dispatch.SLOTS, Dispatch.EVERYWHERE) or not any(is_dispatch(c) for c in block.collectives):
        return np.zeros(lattice.points)
    numbers = lattice.numbers
    ranks = np.broadcast_to(np.asarray(numbers["ep"]) * numbers["etp"], lattice.points)
    tokens = _stream(block, lattice) / numbers[d.HIDDEN]
    if how is Dispatch.ONCE_A_NODE:
        each = 2.0 * numbers[d.HIDDEN] + _WEIGHT_BYTES * numbers[d.EXPERTS]
        return np.where(ranks > 1, tokens * ranks * each, 0.0)
    token = 2.0 * numbers[d.HIDDEN] + _BESIDE_BYTES
    in_node, far = minimum(ranks, _NODE), np.where(ranks > _NODE, ranks / _NODE, 0.0)
    chunks = _NODE_TOKENS * in_node + 2 * _FAR_TOKENS * far
    return np.where(ranks > 1, _CHANNELS * chunks * token, 0.0)
