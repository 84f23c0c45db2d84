"""Matrices of layers that an optimizer orthogonalises whole (Muon): which they are, and what that takes of a rank.

Newton-Schulz, the quintic iteration of Muon (github.com/KellerJordan/Muon): of X with k rows and l >= k columns,
G = X X', H = b G + c G G, X = a X + H X.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from symconfig.cost.formulas import product_s, ring
from symconfig.cost.framework import Framework, Orthogonal, OverTensor
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Machine
from symconfig.cost.tape import maximum, minimum
from symconfig.graph import dims as d
from symconfig.graph.block import Place
from symconfig.graph.derived import DerivedBlock, WeightShard
from symconfig.graph.dims import Monomial

PRODUCT_BYTES = 2.0  # of an element in the products: both torch.optim.Muon and emerging_optimizers multiply in bf16
GATHERED_BYTES = 4.0  # of an element that tensor-parallel ranks gather: the momentum, in fp32
# Rows of a table of weights, and what a stage has of them: elements and seconds of all matrices of layers, and elements
# of the largest one, of dense weights and of experts'.
SUMMED = ("matrix", "matrix_expert", "matrix_s", "matrix_expert_s")
LARGEST = ("largest_matrix", "largest_matrix_expert")
NAMES = (*SUMMED, *LARGEST)


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
        result: Array = self.whole_rows * self.whole_columns / (self.rows * self.columns)
        return result


def orthogonalised(shard: WeightShard, place: Place) -> bool:
    """Return whether a weight is a trained matrix of a layer: no embedding table, nothing of the model's ends."""
    return shard.matrix and not (shard.frozen or shard.table or place.outermost)


def products(short: Array, long: Array) -> tuple[tuple[Array, Array, Array], ...]:
    """Return (rows, columns, summed length) of the three products of one Newton-Schulz iteration."""
    return (short, short, long), (short, short, short), (short, long, short)


def rows(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> dict[str, Array]:
    """Return sums over a block's orthogonalised matrices by the names of NAMES, dense or of experts: [points] each.

    `matrix` is elements on a rank, `matrix_s` seconds, `largest_matrix` the elements of the largest one; 0 without any,
    and if the optimizer orthogonalises nothing.
    """
    zero = np.zeros(lattice.points)
    rows_by_name = dict.fromkeys(NAMES, zero)
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
    """Return the number and sizes of a weight's matrices on one rank, and the sizes before tensor parallelism.

    An expert weight has one matrix for each local expert. The whole has more rows if the rows are sharded, else more
    columns.
    """
    experts = Monomial.of(d.EXPERTS)
    count = lattice.value(experts / Monomial.of("ep")) if shard.expert else np.ones(lattice.points)
    rows = lattice.value(shard.row)
    columns = lattice.value(shard.elements) / (rows * count)
    ranks = lattice.value(shard.whole / shard.elements) / (lattice.value(Monomial.of("ep")) if shard.expert else 1.0)
    cut = any(power < 0 for _, power in shard.row.powers)
    return Matrices(count, rows, columns, rows * (ranks if cut else 1.0), columns * (1.0 if cut else ranks))


def iterations_s(each: Matrices, machine: Machine, how: Orthogonal) -> Array:
    """Return the seconds of orthogonalising one matrix, communication between its ranks included: [points].

    By `over_tensor`: each tensor-parallel rank iterates on its own part; or gathers and iterates on the whole
    (DUPLICATED); or the ranks share each product and all-reduce it (DISTRIBUTED). The ranks, of tp or of etp, are
    neighbours in their rank grid.
    """

    def iteration_s(short: Array, long: Array) -> Array:
        """Return the seconds of one iteration on a matrix with these sides, [points]."""
        seconds = (
            product_s(machine, 1.0, m, n, k, efficiency=machine.efficiency, element_bytes=PRODUCT_BYTES)
            for m, n, k in products(short, long)
        )
        result: Array = sum(seconds, np.zeros(np.broadcast_shapes(short.shape, long.shape)))
        return result

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
