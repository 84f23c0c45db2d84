"""Parameters of one block on one rank, and what libraries keep there because of it, on a lattice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost import orthogonal
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array, Lattice, at_busiest
from symconfig.cost.machine import Machine
from symconfig.cost.tape import first_axis_max
from symconfig.cost.work import inside_experts, is_dispatch
from symconfig.graph.derived import DerivedBlock, WeightShard
from symconfig.graph.dims import ONE, Monomial
from symconfig.graph.implementation import Dispatch, ExpertKernels
from symconfig.graph.operator import ELEMENT_BYTES, Element

# User buffers: one of the gathered stream's size for each product that has a collective, whatever runs at once
# (transformer_engine/pytorch/module/base.py, initialize_ub). Eight are gathered, in 8 bits where products are, and four
# are reduced, always in 16.
GATHERED_BUFFERS, REDUCED_BUFFERS = 8, 4
# Transformer Engine runs the experts' grouped products on so many streams, each with a workspace of its own, which it
# keeps (module/base.py, get_multi_stream_cublas_workspace; common/util/multi_stream.cpp).
GROUPED_STREAMS = 4


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of one block on one rank, [points] each."""

    dense: Array
    expert: Array
    frozen: Array
    quantised: Array
    frozen_expert: Array
    buffers: Array  # elements of weight-gradient buffers that the framework keeps, one for each shape
    vocabulary: Array  # of `dense`, those of the look-up or of the head
    frozen_vocabulary: Array  # of `frozen`, the same
    whole: Array  # of `dense`, those that every tensor-parallel rank has all of
    matrices: Array  # how many `dense` and `frozen` are in
    workspaces: Array  # bytes that the libraries of its kernels keep, beside those that every block's have
    tables: Array  # bytes kept for gathered tables of the vocabulary, which are in shards over gtp
    # Of matrices that are made orthogonal their elements, and the seconds of it; elements of the largest. 0: no such.
    matrix: Array
    matrix_expert: Array
    matrix_s: Array
    matrix_expert_s: Array
    largest_matrix: Array
    largest_matrix_expert: Array


def weights(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> Weights:
    """Return a block's weights on one rank as `Weights`: parameters by kind, [points] each.

    Trained ones are in dense or expert, frozen ones in frozen, frozen_expert or quantised; vocabulary and whole count
    some of them again. `matrices` is the number of dense weights that are no vectors.
    """

    def total(chosen: list[WeightShard]) -> Array:
        return sum((lattice.value(shard.elements) for shard in chosen), np.zeros(lattice.points))

    shards, kept = block.weights, framework.kept_gradient_buffers
    buffers = {space.weight for space in block.workspaces if kept and space.layer and space.weight is not None}
    live = [shard for shard in shards if not shard.frozen]
    still = [shard for shard in shards if shard.frozen and not shard.quantised]
    return Weights(
        dense=total([s for s in live if not s.expert]),
        expert=total([s for s in live if s.expert]),
        frozen=total([s for s in still if not s.expert]),
        quantised=total([s for s in shards if s.quantised]),
        frozen_expert=total([s for s in still if s.expert]),
        buffers=sum((lattice.value(size) for size in sorted(buffers, key=str)), np.zeros(lattice.points)),
        vocabulary=total([s for s in live if s.table]),
        frozen_vocabulary=total([s for s in still if s.table]),
        whole=total([s for s in live if not s.expert and s.elements == s.whole]),
        matrices=np.full(lattice.points, float(sum(not s.expert and s.row != ONE for s in shards))),
        workspaces=_library_bytes(block, at_busiest(lattice), machine, framework)
        + _gathered_bytes(block, lattice, framework, tables=False),
        tables=_gathered_bytes(block, lattice, framework, tables=True),
        **orthogonal.rows(block, lattice, machine, framework),
    )


def _gathered_bytes(block: DerivedBlock, lattice: Lattice, framework: Framework, *, tables: bool) -> Array:
    """Return the bytes of the buffers that weights in shards over gtp pass through, tables or all others: [points].

    For each size one holds the gathered weight in 16 bits, one its whole gradient and one the reduced part of it, which
    all layers share and none frees (Megatron-LM main, generalized_tensor_parallelism.py, GTPWeightCache and
    _wgrad_pool_get; two neighbours of one size would have two).
    """
    some = {(s.gathered, s.elements) for s in block.weights if s.gathered is not None and s.table is tables}
    kept, gradient = ELEMENT_BYTES[Element.ACTIVATION], framework.bytes.gradient
    sizes = ((lattice.value(whole), lattice.value(part)) for whole, part in sorted(some, key=str))
    return sum(((kept + gradient) * whole + gradient * part for whole, part in sizes), np.zeros(lattice.points))


def _library_bytes(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    """Return the bytes that libraries keep on a rank because it has such a block: [points].

    The sum of the workspaces of the experts' grouped products (one a stream), the largest buffer that an operator
    leaves behind, with tp > 1 the user buffers of tensor-parallel overlap if it cuts products, and with HybridEP over
    several ranks a place for every token of every rank in 16 bits (csrc/hybrid_ep/hybrid_ep.cu,
    allocate_buffer_for_dispatch).
    """
    together = framework.implementation.experts.kernels is not ExpertKernels.IN_TURN and bool(inside_experts(block))
    grouped = GROUPED_STREAMS * framework.engine * machine.engine_workspace_bytes * together
    left = [lattice.value(space.buffer) for space in block.workspaces if space.buffer is not None]
    result: Array = grouped + ELEMENT_BYTES[Element.ACTIVATION] * first_axis_max(
        np.array([np.zeros(lattice.points), *left])
    )
    stream = lattice.value(block.boundary)
    if framework.hide.tp_pieces > 1 and any(c.chunked and c.axes[0] == "tp" for c in block.collectives):
        tp = np.broadcast_to(lattice.numbers["tp"], lattice.points)
        each = GATHERED_BUFFERS * machine.quantised_bytes + REDUCED_BUFFERS * ELEMENT_BYTES[Element.ACTIVATION]
        result = result + np.where(tp > 1, each * stream * (tp if block.sequence_parallel else 1.0), 0.0)
    if framework.implementation.experts.dispatch is Dispatch.ONCE_A_NODE and any(map(is_dispatch, block.collectives)):
        ranks = lattice.value(Monomial.of("ep", "etp"))
        result = result + np.where(ranks > 1, 2.0 * stream * ranks, 0.0)
    return result
