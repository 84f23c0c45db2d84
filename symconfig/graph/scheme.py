"""An operator on one rank: which of its dims each mesh axis splits, the layouts of its tensors, and its work (products,
attention and memory traffic of every pass, without collectives).

A new parallel axis is a rule here; a new building block never is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from symconfig.graph import dims as d
from symconfig.graph.derived import GRADIENTS, AttentionWork, Matmul, Phase, Task, Traffic
from symconfig.graph.dims import ONE, Monomial
from symconfig.graph.layout import PARTIAL, Layout, Place
from symconfig.graph.operator import FOUR_BIT_BYTES, Element, Factors, Leg, Operator, Use, Weight, Work
from symconfig.graph.parts import parts

CpComm = Literal["p2p", "a2a", "all_gather"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """Describe the structure of a strategy, without its degrees.

    sequence_parallel: the sequence is split over tp between the tensor-parallel regions. cp_comm: inside attention
    keys are exchanged (p2p, all_gather), or heads are split instead (a2a, Ulysses). If an operator needs the whole
    sequence, its block says which of its dims are split instead, if any. shared_heads: tensor-parallel ranks share
    key/value heads, since there are fewer heads than ranks. weight_shards: linear weights are stored in parts over gtp,
    an axis inside data parallelism, and gathered before each use.
    """

    sequence_parallel: bool
    cp_comm: CpComm = "p2p"
    shared_heads: bool = False
    weight_shards: bool = False

    def assign(self, op: Operator) -> dict[str, tuple[str, ...]]:
        """Return, for each axis, the loops of `op` that it splits; axes that split none are absent. tp and cp skip
        loops in `op.whole`, except for heads under a2a.

        dp: batch. cp: the exchanged dims of the parts if the operator needs the sequence undivided; under a2a, query
        and key/value heads of an operator with a keys loop; else the sequence. tp: all dims of `parts().tensor_dims`;
        if there are none, the sequence with sequence_parallel, but not beside a loop WHOLE_VOCAB or GATHERED. With slot
        loops, etp, ep and edp: all the slots if the sequence is a loop, too (a permutation), else expert widths,
        experts and slots.
        """
        loops, free = set(op.loops), set(op.loops).difference(op.whole)
        axes: dict[str, tuple[str, ...]] = {"dp": _present(loops, (d.BATCH,))}
        core = d.KEYS in loops
        split = _present(free, parts().tensor_dims)
        heads = _present(loops, (d.HEADS, d.KV_HEADS))
        if d.SEQUENCE in op.whole:
            axes["cp"] = _present(free, parts().exchanged_dims)
        else:
            axes["cp"] = heads if core and self.cp_comm == "a2a" else _present(free, (d.SEQUENCE,))
        if split:
            axes["tp"] = split
        elif self.sequence_parallel and not loops & {d.WHOLE_VOCAB, d.GATHERED}:
            axes["tp"] = _present(free, (d.SEQUENCE,))
        if slots := _present(loops, d.SLOT_DIMS):
            if d.SEQUENCE in loops:  # a permutation of tokens into slots: slots lie where the tokens lie
                axes |= dict.fromkeys(("etp", "ep", "edp"), slots)
            else:
                axes |= {"etp": _present(loops, d.EXPERT_TENSOR_DIMS), "ep": (d.EXPERTS,), "edp": slots}
        return {axis: dims for axis, dims in axes.items() if dims}

    def layout(self, op: Operator, use: Use, summed: Collection[str] = ()) -> Layout:
        """Return the layout of a tensor that `op` reads or makes. Each axis is placed at the tensor's dim along the
        first loop that it splits there. An axis that splits no loop of the tensor is partial where it splits a loop in
        `summed` (the contracted loops for an output), else absent.
        """
        dim_of = dict(zip(use.loops, use.tensor.dims, strict=True))
        places: dict[str, Place] = {}
        for axis, splits in self.assign(op).items():
            mine = [loop for loop in splits if loop in dim_of]
            if mine:
                places[axis] = dim_of[mine[0]]
            elif any(loop in summed for loop in splits):
                places[axis] = PARTIAL
        return Layout.of(places)

    def parts(self, op: Operator) -> dict[str, tuple[str, ...]]:
        """Return, for each loop that is split, the axes that split it."""
        result: dict[str, list[str]] = {}
        for axis, splits in self.assign(op).items():
            for dim in splits:
                result.setdefault(dim, []).append(axis)
        return {dim: tuple(axes) for dim, axes in result.items()}


def _present(loops: set[str], candidates: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return tuple(dim for dim in candidates if dim in loops)


@lru_cache(maxsize=4096)
def local(dims: tuple[str, ...], layout: Layout) -> Monomial:
    return d.local(d.elements(dims) / layout.parts())


def _extent(dims: Sequence[str], parts: Mapping[str, tuple[str, ...]]) -> Monomial:
    return d.local(d.elements(tuple(dims)) / Monomial.of(*(axis for dim in dims for axis in parts.get(dim, ()))))


def tasks(op: Operator, scheme: Scheme) -> list[Task]:
    """Return the work of an operator on one rank, one task or more per pass, without collectives. Matmul: products of
    the forward, of each gradient that it computes, and their extras (`_matmuls`). Attention: one AttentionWork per
    pass, run in cp steps if cp splits the sequence, else in 1. Any other: memory traffic, and sorting of slots. An
    operator without a backward has forward tasks only.
    """
    if op.work is Work.MATMUL:
        return _matmuls(op, scheme)
    passes = (Phase.FORWARD, Phase.INPUT) if op.backward else (Phase.FORWARD,)
    if op.work is Work.ATTENTION:
        parts = scheme.parts(op)
        queries = _extent(op.queries, parts)
        steps = Monomial.of(*(axis for axis in parts.get(d.SEQUENCE, ()) if axis == "cp"))
        return [AttentionWork(op.name, phase, queries, op.keys, op.channels_of, steps) for phase in passes]
    return [*_traffic(op, scheme, passes), *(_sorting(op, scheme, passes) if op.sorts else [])]


# bitsandbytes makes 16 bits of a weight in 4 before each product (autograd/_functions.py, MatMul4Bit): passes over
# those 16 bits that take as long. That its kernel has half of the memory's rate is assumed.
_DEQUANTISED = 2 * (1 + Fraction(FOUR_BIT_BYTES) / 2)

_GRADIENTS = ((Phase.INPUT, Phase.INPUT), (Phase.INPUT, Phase.WEIGHT))  # of a product's factors, by weights


def _matmuls(op: Operator, scheme: Scheme) -> list[Task]:
    """Return the products of a matmul on one rank: forward, the gradient of each of the two operands that `op.gives`,
    and, if `remade` and it has a backward, the forward product again in the INPUT pass.

    The gradient of the first operand is INPUT work, that of the second is WEIGHT work if the operator has weights, else
    INPUT. Traffic is added for a separate bias gradient (`sums_bias`, with a backward: reads the outputs) and, for each
    product and each 4-bit weight, for dequantising it. turns of each task (kernel launches by the host): the product of
    the local sizes of `op.per`.
    """
    parts = scheme.parts(op)
    product, turns = Factors(*(_extent(loops, parts) for loops in op.factors)), _extent(op.per, parts)
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


def _traffic(op: Operator, scheme: Scheme, passes: Sequence[Phase]) -> list[Traffic]:
    """Return the memory traffic of an operator on one rank, one Traffic per pass.

    Moved per pass: local elements of the tensors of `op.moved` times `op.traffic`, and of scratch tensors times their
    passes. Weights are left out: they are vectors, or tables of which a look-up reads as much as it writes. turns
    (kernel launches by the host): local size of `op.per` times `op.launches`. Inner products count once forward, and
    GRADIENTS + `remade` times backward.
    """
    parts = scheme.parts(op)
    turns = _extent(op.per, parts)
    result: list[Traffic] = []
    for phase, times, launches, way in zip(passes, op.traffic, op.launches, (0, 1), strict=False):
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
    return result


def _sorting(op: Operator, scheme: Scheme, passes: Sequence[Phase]) -> list[Traffic]:
    """Return the traffic of sorting slots by expert on one rank, one Traffic without launches per pass. Moved:
    `op.sorts` times the local elements of the first activation or output with a SLOTS dim; times etp outside the expert
    leg, where slots are gathered from all expert-tensor ranks. among: experts per rank if `sorts_experts`, else None.
    """
    use = next(use for use in (*op.activations, *op.outputs) if d.SLOTS in use.tensor.dims)
    gathered = ONE if op.leg is Leg.EXPERTS else Monomial.of("etp")
    slots = local(use.tensor.dims, scheme.layout(op, use)) * gathered * op.sorts
    among = Monomial.of(d.EXPERTS) / Monomial.of("ep") if op.sorts_experts else None
    moved = ((slots, use.tensor.kind),)
    return [Traffic(op.name, phase, moved, ONE * 0, among) for phase in passes]
