"""A layer of a plan in symbols and numbers: every operator, collective and tensor that waits for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.cost.blocks import BlockCost
from symconfig.cost.lattice import Lattice
from symconfig.graph.derived import AttentionWork, Matmul, Phase
from symconfig.graph.operator import ELEMENT_BYTES
from symconfig.graph.recompute import Policy, apply
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.solve.space import lattice
from symconfig.solve.strategies import Strategies, strategies
from symconfig.units import MIB


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """One operator on one rank and microbatch. `shape`: symbols; `numbers`: the same with numbers."""

    name: str
    phase: str
    shape: str
    numbers: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CollectiveLine:
    tensor: str
    kind: str
    axes: str
    phase: str
    size: str
    bytes: float
    seconds: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class TensorLine:
    """An activation that waits for the backward pass. `fate`: kept, offloaded, or recomputed."""

    name: str
    size: str
    bytes: float
    fate: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """kind: the layer kind that the tables are about, the most frequent one. strategies: of every kind."""

    kind: str
    operators: tuple[OperatorLine, ...]
    collectives: tuple[CollectiveLine, ...]
    tensors: tuple[TensorLine, ...]
    strategies: Strategies


def explain(plan: Plan) -> Explanation:
    """Return what the most frequent layer of `plan.best` consists of, and how every tensor of the model is split."""
    prospect = restore(plan, plan.best)
    parts = costed(prospect)
    kinds = plan.model.layer_kinds
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    block = next(block for block in parts.table.blocks if block.derived.name == kind)
    numbers = lattice(prospect.request, prospect.columns())
    policy = apply(block.derived, prospect.choice.modules, prospect.choice.offload)
    return Explanation(
        kind,
        tuple(_operators(block, numbers)),
        tuple(_collectives(block, numbers)),
        tuple(_tensors(block, policy)),
        strategies(prospect, plan.cluster),
    )


def _operators(block: BlockCost, numbers: Lattice) -> Iterator[OperatorLine]:
    """Yield the operators in order of the forward pass; the phases of one operator together."""
    shapes: dict[tuple[str, Phase], tuple[str, str]] = {}
    for work in block.derived.work:
        if isinstance(work, Matmul):
            sizes = (work.batch, work.m, work.n, work.k)
            shapes[work.op, work.phase] = (
                f"[{work.m}] x [{work.n}] over [{work.k}]",
                " x ".join(f"{numbers.value(size)[0]:,.0f}" for size in sizes if str(size) != "1"),
            )
        elif isinstance(work, AttentionWork):
            shapes[work.op, work.phase] = (
                f"[{work.queries}] queries x [{work.keys}]",
                f"{numbers.value(work.queries)[0]:,.0f}",
            )
        else:
            moved = sum(float(numbers.value(size)[0]) * ELEMENT_BYTES[element] for size, element in work.moved)
            shapes[work.op, work.phase] = ("memory traffic", f"{moved / MIB:,.1f} MiB")
    for (op, phase), seconds in block.work_s.items():
        shape, values = shapes[op, phase]
        yield OperatorLine(op, phase.value, shape, values, float(seconds[0]))


def _collectives(block: BlockCost, numbers: Lattice) -> Iterator[CollectiveLine]:
    """Yield the collectives over more than one rank."""
    for collective, full, exposed in zip(block.derived.collectives, block.full_comm_s, block.comm_s, strict=True):
        if full[0] > 0:
            size = float(numbers.value(collective.elements)[0]) * ELEMENT_BYTES[collective.element]
            yield CollectiveLine(
                tensor=collective.tensor,
                kind=collective.kind.value,
                axes=" x ".join(collective.axes),
                phase=collective.phase.value,
                size=str(collective.elements),
                bytes=size,
                seconds=float(full[0]),
                exposed_s=float(exposed[0]),
            )


def _tensors(block: BlockCost, policy: Policy) -> Iterator[TensorLine]:
    for held, size, kept, moved in zip(
        block.derived.held, block.held_bytes, policy.kept, policy.offloaded, strict=True
    ):
        if kept or held.needed_by:
            fate = "offloaded" if moved else "kept" if kept else "recomputed"
            yield TensorLine(held.tensor, str(held.elements), float(size[0]), fate)
