"""The work of an operator on one rank: products, attention and memory traffic of every pass, without collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from symconfig.graph import dims as d
from symconfig.graph.derived import GRADIENTS, AttentionWork, Matmul, Phase, Task, Traffic
from symconfig.graph.layout import Layout
from symconfig.graph.monomial import ONE, Monomial
from symconfig.graph.operator import FOUR_BIT_BYTES, Element, Leg, Operator, Use, Weight, Work
from symconfig.graph.scheme import Scheme


@lru_cache(maxsize=4096)
def local(dims: tuple[str, ...], layout: Layout) -> Monomial:
    return d.local(d.elements(dims) / layout.parts())


def _extent(dims: Sequence[str], parts: Mapping[str, tuple[str, ...]]) -> Monomial:
    return d.local(d.elements(dims) / Monomial.of(*(axis for dim in dims for axis in parts.get(dim, ()))))


def tasks(op: Operator, scheme: Scheme) -> list[Task]:
    """Return the work of an operator on one rank, one task or more per pass, without collectives. Matmul: products of
    the forward, of each gradient that it computes, and their extras (`_matmuls`). Attention: one AttentionWork per
    pass, run in cp steps if cp splits the sequence, else in 1. Any other: memory traffic, and sorting of slots. An
    operator without a backward has forward tasks only.
    """
    if op.work is Work.MATMUL:
        return _matmuls(op, scheme)
    if op.work is Work.ATTENTION:
        parts = scheme.parts(op)
        queries = _extent(op.queries, parts)
        steps = Monomial.of(*(axis for axis in parts.get(d.SEQUENCE, ()) if axis == "cp"))
        return [AttentionWork(op.name, phase, queries, op.keys, op.channels_of, steps) for phase in _passes(op)]
    return _traffic(op, scheme)


def _passes(op: Operator) -> tuple[Phase, ...]:
    return (Phase.FORWARD, Phase.INPUT) if op.backward else (Phase.FORWARD,)


# bitsandbytes makes 16 bits of a weight in 4 before each product (autograd/_functions.py, MatMul4Bit): passes over
# those 16 bits that take as long. That its kernel has half of the memory's rate is assumed.
_DEQUANTISED = 2 * (1 + Fraction(FOUR_BIT_BYTES) / 2)

_GRADIENTS = ((Phase.INPUT, Phase.INPUT), (Phase.INPUT, Phase.WEIGHT))  # of a product's factors, by weights


def _matmuls(op: Operator, scheme: Scheme) -> list[Task]:
    """Return the products of a matmul on one rank: forward, the gradient of each of the two operands that `op.gives`,
    and, if `remade` and it has a backward, the forward product again in the INPUT pass.

    The gradient of the first operand is INPUT work, that of the second is WEIGHT work if the operator has weights, else
    INPUT. Traffic is added for a separate bias gradient (`sums_bias`, with a backward: reads the outputs) and, for each
    product and each 4-bit weight, for dequantising it. Each task's turns: the product of the local sizes of `op.per`.
    """
    parts = scheme.parts(op)
    product, turns = op.factors.of(lambda loops: _extent(loops, parts)), _extent(op.per, parts)
    shapes = [(Phase.FORWARD, product)]
    for use, phase, gradient in zip(op.inputs, _GRADIENTS[bool(op.weights)], product.gradients, strict=False):
        shapes += [(phase, gradient)] if op.gives(use) else []
    shapes += [(Phase.INPUT, product)] if op.remade and op.backward else []
    result: list[Task] = [Matmul(op.name, phase, *shape, op.low_precision, turns) for phase, shape in shapes]
    if op.sums_bias and op.backward:
        read = tuple((local(use.tensor.dims, scheme.layout(op, use)), use.tensor.kind) for use in op.outputs)
        result.append(Traffic(op.name, Phase.WEIGHT, read, turns))
    for use in (use for use in op.inputs if isinstance(use.tensor, Weight) and use.tensor.quantised):
        moved = ((local(use.tensor.dims, scheme.layout(op, use)) * _DEQUANTISED, Element.ACTIVATION),)
        result += [Traffic(op.name, phase, moved, turns) for phase, _ in shapes]
    return result


def _traffic(op: Operator, scheme: Scheme) -> list[Task]:
    """Return the memory traffic of an operator on one rank, one Traffic per pass (backward only if it has one), then
    that of sorting.

    Moved per pass: local elements of the tensors of `op.moved` times `op.traffic`, and of scratch tensors times their
    passes. Weights are left out: they are vectors, or tables of which a look-up reads as much as it writes. turns:
    local size of `op.per` times launches. Inner products count once forward, and GRADIENTS + `remade` times backward.
    """
    parts = scheme.parts(op)
    turns = _extent(op.per, parts)
    result: list[Task] = []
    for phase, times, launches, way in zip(_passes(op), op.traffic, op.launches, (0, 1), strict=False):
        forward = phase is Phase.FORWARD
        uses = [(use, Fraction(times)) for use in op.moved(forward) if not isinstance(use.tensor, Weight)]
        uses += [(Use(each.tensor), Fraction(each.passes[way])) for each in op.scratch]
        result.append(
            Traffic(
                op=op.name,
                phase=phase,
                moved=tuple(
                    (local(use.tensor.dims, scheme.layout(op, use)) * often, use.tensor.kind) for use, often in uses
                ),
                turns=turns * launches,
                products=tuple(
                    (_extent(product.loops, parts), 1 if forward else GRADIENTS + product.remade)
                    for product in op.products
                ),
            )
        )
    return result + _sorting(op, scheme)


def _sorting(op: Operator, scheme: Scheme) -> list[Task]:
    """Return the traffic of sorting slots by expert on one rank, one Traffic without launches per pass; empty if
    `op.sorts` is 0. Moved: `op.sorts` times the local elements of the first activation or output with a SLOTS dim;
    times etp outside the expert leg, where slots are gathered from all expert-tensor ranks. among: experts per rank if
    `sorts_experts`, else None.
    """
    if not op.sorts:
        return []
    use = next(use for use in (*op.activations, *op.outputs) if d.SLOTS in use.tensor.dims)
    gathered = ONE if op.leg is Leg.EXPERTS else Monomial.of("etp")
    slots = local(use.tensor.dims, scheme.layout(op, use)) * gathered * op.sorts
    among = Monomial.of(d.EXPERTS) / Monomial.of("ep") if op.sorts_experts else None
    moved = ((slots, use.tensor.kind),)
    return [Traffic(op.name, phase, moved, ONE * 0, among) for phase in _passes(op)]
