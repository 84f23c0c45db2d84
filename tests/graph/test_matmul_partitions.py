"""y[B, S, F] = x[B, S, D] W[D, F], cut by rows, by columns and along the contracted dim: the textbook's collectives."""

from __future__ import annotations

import pytest

from symconfig.graph import dims as d
from symconfig.graph.builder import Builder
from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock, Matmul, Phase
from symconfig.graph.operator import Tensor, Use, Weight
from symconfig.graph.scheme import Scheme

ROWS = (d.BATCH, d.SEQUENCE)
VALUES = {
    "micro_batch": 2.0, "seq_length": 32.0, "hidden_size": 8.0, "intermediate_size": 16.0,
    "tp": 4.0, "cp": 2.0, "dp": 3.0,
}  # fmt: skip


def matmul(inner: str, outer: str, scheme: Scheme = Scheme(False)) -> DerivedBlock:  # noqa: B008  # frozen
    build = Builder()
    x, y = Tensor("x", (*ROWS, inner)), Tensor("y", (*ROWS, outer))
    build.matmul("product", x, Weight("w", (inner, outer)), (inner,), [Use(y)])
    # A user after it that asks for the result as any operator would.
    build.elementwise("use", [y], Tensor("z", y.dims), saves=[y])
    build.elementwise("before", [Tensor("x0", x.dims)], x)
    operators = (build.operators[2], *build.operators[:2])
    block = build.block("b", [Tensor("x0", x.dims)], [])
    return derive(type(block)(block.name, block.inputs, block.outputs, operators, block.discards), scheme)


def found(derived: DerivedBlock, tensor: str) -> list[tuple[str, tuple[str, ...], float, Phase]]:
    return [(str(c.kind), c.axes, c.elements.value(VALUES), c.phase) for c in derived.collectives if c.tensor == tensor]


def sizes(derived: DerivedBlock, phase: Phase) -> tuple[float, ...]:
    (work,) = [w for w in derived.work if isinstance(w, Matmul) and w.phase is phase]
    return tuple(side.value(VALUES) for side in (work.batch, work.m, work.n, work.k))


def test_columns_over_tp_cost_nothing_forward_and_an_all_reduce_of_x_backward() -> None:
    derived = matmul(d.HIDDEN, d.FFN)
    assert found(derived, "y") == []
    assert found(derived, "x") == [("all-reduce", ("tp",), 2 * 16 * 8, Phase.INPUT)]
    assert sizes(derived, Phase.FORWARD) == (1, 2 * 16, 16 / 4, 8)
    assert sizes(derived, Phase.INPUT) == (1, 2 * 16, 8, 16 / 4)
    assert sizes(derived, Phase.WEIGHT) == (1, 8, 16 / 4, 2 * 16)


def test_the_contracted_dim_over_tp_costs_an_all_reduce_of_y_forward_and_nothing_backward() -> None:
    derived = matmul(d.FFN, d.HIDDEN)
    assert found(derived, "y") == [("all-reduce", ("tp",), 2 * 16 * 8, Phase.FORWARD)]
    assert found(derived, "x") == []
    assert sizes(derived, Phase.FORWARD) == (1, 2 * 16, 8, 16 / 4)


def test_rows_over_dp_and_cp_cost_the_weight_gradient_only() -> None:
    derived = matmul("a", "b", Scheme(False))
    assert derived.collectives == ()
    (weight,) = derived.weights
    assert weight.data_axes == ("dp", "cp")
    assert weight.other_axes == ()


@pytest.mark.parametrize(("inner", "outer"), [(d.HIDDEN, d.FFN), (d.FFN, d.HIDDEN)])
def test_rows_and_columns_at_once_cut_the_weight_by_tp_and_reduce_its_gradient_over_the_rest(
    inner: str, outer: str
) -> None:
    (weight,) = matmul(inner, outer).weights
    assert weight.elements.value(VALUES) == 8 * 16 / 4
    assert weight.whole.value(VALUES) == 8 * 16
    assert (weight.data_axes, weight.other_axes) == (("dp", "cp"), ())


def test_with_the_sequence_split_around_it_the_all_reduce_becomes_gather_and_scatter() -> None:
    derived = matmul(d.HIDDEN, d.FFN, Scheme(True))
    assert found(derived, "x") == [
        ("all-gather", ("tp",), 2 * 16 * 8, Phase.FORWARD),
        ("reduce-scatter", ("tp",), 2 * 16 * 8, Phase.INPUT),
        ("all-gather", ("tp",), 2 * 16 * 8, Phase.INPUT),  # x again for the weight gradient: its shard was kept
    ]
    derived = matmul(d.FFN, d.HIDDEN, Scheme(True))
    assert found(derived, "y") == [
        ("reduce-scatter", ("tp",), 2 * 16 * 8, Phase.FORWARD),
        ("all-gather", ("tp",), 2 * 16 * 8, Phase.INPUT),
    ]


@pytest.mark.parametrize(("inner", "outer"), [(d.HIDDEN, d.FFN), (d.FFN, d.HIDDEN)])
def test_work_on_a_rank_times_the_ranks_is_the_whole(inner: str, outer: str) -> None:
    derived = matmul(inner, outer)
    for phase in Phase:
        batch, m, n, k = sizes(derived, phase)
        assert batch * m * n * k * 4 * 2 == 2 * 32 * 8 * 16  # tp 4, cp 2; dp multiplies the batch as well
