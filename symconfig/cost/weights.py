"""Parameters of one block on one rank, what libraries keep there because of it, and Muon's orthogonalised matrices.

Newton-Schulz, the quintic iteration of Muon (github.com/KellerJordan/Muon): of X with k rows and l >= k columns,
G = X X', H = b G + c G G, X = a X + H X.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost.formulas import product_s, ring
from symconfig.cost.framework import Framework, Orthogonal, OverTensor
from symconfig.cost.lattice import Array, Lattice, at_busiest
from symconfig.cost.machine import Machine
from symconfig.cost.tape import first_axis_max, maximum, minimum
from symconfig.cost.work import inside_experts, is_dispatch
from symconfig.graph import dims as d
from symconfig.graph.block import Place
from symconfig.graph.derived import DerivedBlock, WeightShard
from symconfig.graph.dims import ONE, Monomial
from symconfig.graph.implementation import Dispatch, ExpertKernels
from symconfig.graph.operator import ELEMENT_BYTES, Element

PRODUCT_BYTES = 2.0  # of an element in the products: both torch.optim.Muon and emerging_optimizers multiply in bf16
GATHERED_BYTES = 4.0  # of an element that tensor-parallel ranks gather: the momentum, in fp32
# Of matrices of layers that are made orthogonal, dense ones and experts': elements and seconds of all of them, of which
# a stage has the sum; and elements of the largest one, of which it has the most.
SUMMED = ("matrix", "matrix_expert", "matrix_s", "matrix_expert_s")
LARGEST = ("largest_matrix", "largest_matrix_expert")
# What a block has on one rank: parameters; elements of weight-gradient buffers that the framework keeps, one for each
# shape; parameters of the look-up and the head, of dense and of frozen ones; of dense ones those that every
# tensor-parallel rank has all of; how many weights dense and frozen are in; bytes that the libraries of its kernels
# keep, beside those that every block's have; and bytes kept for gathered tables of the vocabulary, which are in shards
# over gtp.
WEIGHTS = (
    "dense", "expert", "frozen", "quantised", "frozen_expert", "buffers", "vocabulary", "frozen_vocabulary", "whole",
    "matrices", "workspaces", "tables", *SUMMED, *LARGEST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matrices:
    """The matrices of a weight on one rank, [points] each.

    count: matrices on a rank. rows, columns: of the rank's part of one. whole_rows, whole_columns: of the whole matrix.
    """

    count: Array
    rows: Array
    columns: Array
    whole_rows: Array
    whole_columns: Array

    @property
    def ranks(self) -> Array:
        """Return how many ranks hold a part of a matrix each: [points]."""
        return self.whole_rows * self.whole_columns / (self.rows * self.columns)


def orthogonalised(shard: WeightShard, place: Place) -> bool:
    """Return whether a weight is a trained matrix of a layer: no embedding table, nothing of the model's ends."""
    return shard.matrix and not (shard.frozen or shard.table or place.outermost)


def products(short: Array, long: Array) -> tuple[tuple[Array, Array, Array], ...]:
    """Return (rows, columns, summed length) of the three products of one Newton-Schulz iteration."""
    return (short, short, long), (short, short, short), (short, long, short)


def orthogonal_rows(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> dict[str, Array]:
    """Return sums over a block's orthogonalised matrices by the names of SUMMED and LARGEST: [points] each.

    `matrix` is elements on a rank, `matrix_s` seconds, `largest_matrix` the elements of the largest one; the names with
    `_expert` are of experts' weights, the others of dense ones. 0 without any, and if the optimizer orthogonalises
    nothing.
    """
    zero = np.zeros(lattice.points)
    rows_by_name = dict.fromkeys((*SUMMED, *LARGEST), zero)
    if framework.orthogonal is None:
        return rows_by_name
    for shard in block.weights:
        if not orthogonalised(shard, block.place):
            continue
        kind = "_expert" if shard.expert else ""
        each = matrices(shard, lattice)
        one = each.rows * each.columns
        seconds = iterations_s(each, machine, framework.orthogonal)
        rows_by_name[f"matrix{kind}"] = rows_by_name[f"matrix{kind}"] + each.count * one
        rows_by_name[f"matrix{kind}_s"] = rows_by_name[f"matrix{kind}_s"] + each.count * seconds
        rows_by_name[f"largest_matrix{kind}"] = maximum(rows_by_name[f"largest_matrix{kind}"], one)
    return rows_by_name


def matrices(shard: WeightShard, lattice: Lattice) -> Matrices:
    """Return how many matrices of a weight a rank has, with the sizes of its part of one, and of the whole one.

    An expert weight has one matrix for each local expert. The ranks that share one (tp, or etp of an expert weight)
    make up its rows if those are sharded, else its columns; an unsharded weight's whole is the part.
    """
    experts = Monomial.of(d.EXPERTS)
    count = lattice.value(experts / Monomial.of("ep")) if shard.expert else np.ones(lattice.points)
    rows = lattice.value(shard.row)
    columns = lattice.value(shard.elements) / (rows * count)
    ranks = lattice.value(shard.whole / shard.elements) / (lattice.value(Monomial.of("ep")) if shard.expert else 1.0)
    cut = any(power < 0 for _, power in shard.row.powers)
    return Matrices(count, rows, columns, rows * (ranks if cut else 1.0), columns * (1.0 if cut else ranks))


def iterations_s(each: Matrices, machine: Machine, how: Orthogonal) -> Array:
    """Return the seconds of all iterations on one matrix, communication between its ranks included: [points].

    By `over_tensor`: each tensor-parallel rank iterates on its own part; or gathers once and iterates on the whole
    (DUPLICATED); or the ranks share each product and all-reduce it (DISTRIBUTED). The ranks, of tp or of etp, are
    neighbours in their rank grid.
    """

    def iteration_s(short: Array, long: Array) -> Array:
        """Return the seconds of one iteration on a matrix with these sides, [points]."""
        seconds = (
            product_s(machine, 1.0, m, n, k, efficiency=machine.efficiency, element_bytes=PRODUCT_BYTES)
            for m, n, k in products(short, long)
        )
        return sum(seconds, np.zeros(np.broadcast_shapes(short.shape, long.shape)))

    if how.over_tensor is OverTensor.DUPLICATED:
        gathered_s = ring(GATHERED_BYTES * each.whole_rows * each.whole_columns, 1.0, each.ranks, 1.0, machine)
        rows, columns = each.whole_rows, each.whole_columns
        return gathered_s + how.iterations * iteration_s(minimum(rows, columns), maximum(rows, columns))
    alone = iteration_s(minimum(each.rows, each.columns), maximum(each.rows, each.columns))
    if how.over_tensor is OverTensor.DISTRIBUTED:
        # The part's own side is summed over; the other one is as long as the matrix.
        cut = each.whole_rows > each.rows
        short, long = np.where(cut, each.columns, each.rows), np.where(cut, each.rows, each.columns)
        summed_s = ring(PRODUCT_BYTES * short * short, 2.0, each.ranks, 1.0, machine)
        alone = np.where(each.ranks > 1, iteration_s(short, long) + summed_s, alone)
    return how.iterations * alone


# User buffers: one of the gathered stream's size for each product that has a collective, whatever runs at once
# (transformer_engine/pytorch/module/base.py, initialize_ub). Eight are gathered, in 8 bits where products are, and four
# are reduced, always in 16.
GATHERED_BUFFERS, REDUCED_BUFFERS = 8, 4
# Transformer Engine runs the experts' grouped products on so many streams, each with a workspace of its own, which it
# keeps (module/base.py, get_multi_stream_cublas_workspace; common/util/multi_stream.cpp).
GROUPED_STREAMS = 4


def weights(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    """Return what a block has on one rank, in the order of WEIGHTS: [WEIGHTS, points].

    Trained ones are in dense or expert, frozen ones in frozen, frozen_expert or (4 bits) quantised; vocabulary and
    whole count some of them again. `matrices` is the number of weights, frozen ones too, that are no experts' and no
    vectors.
    """

    def total(chosen: list[WeightShard]) -> Array:
        return sum((lattice.value(shard.elements) for shard in chosen), np.zeros(lattice.points))

    shards, kept = block.weights, framework.kept_gradient_buffers
    buffers = {space.weight for space in block.workspaces if kept and space.layer and space.weight is not None}
    live = [shard for shard in shards if not shard.frozen]
    still = [shard for shard in shards if shard.frozen and not shard.quantised]
    rows = dict(
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
        **orthogonal_rows(block, lattice, machine, framework),
    )
    return np.array([rows[name] for name in WEIGHTS])


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
