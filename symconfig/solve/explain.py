"""The formulas behind a plan, with its numbers: every operator, collective and kept tensor of a layer, and the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.blocks import BlockCost
from symconfig.cost.lattice import Lattice
from symconfig.cost.optimizer import elements_of_rank
from symconfig.cost.tape import Tape
from symconfig.graph.derived import AttentionWork, Matmul, Phase
from symconfig.graph.operator import ELEMENT_BYTES
from symconfig.graph.recompute import Policy, apply
from symconfig.plans.plan import Plan
from symconfig.solve.costed import Costed, costed
from symconfig.solve.formulas import Formulas
from symconfig.solve.prospect import Prospect
from symconfig.solve.restore import restore
from symconfig.solve.space import lattice
from symconfig.solve.strategies import Strategies, strategies
from symconfig.solve.timeline import stage_seconds, times
from symconfig.units import MIB


@dataclass(frozen=True, slots=True)
class FormulaLine:
    """A formula of the step with the plan's numbers in it. `numbers`: argument = value."""

    name: str
    expression: str
    numbers: tuple[tuple[str, float], ...]
    value: float
    unit: str
    source: str


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
    formulas: tuple[FormulaLine, ...]
    operators: tuple[OperatorLine, ...]
    collectives: tuple[CollectiveLine, ...]
    tensors: tuple[TensorLine, ...]
    strategies: Strategies


def explain(plan: Plan) -> Explanation:
    """Explain `plan.best` with everything behind it."""
    prospect = restore(plan, plan.best)
    parts = costed(prospect)
    kinds = plan.model.layer_kinds
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    block = next(block for block in parts.table.blocks if block.derived.name == kind)
    numbers = lattice(prospect.request, prospect.columns())
    policy = apply(block.derived, prospect.choice.modules, prospect.choice.offload)
    return Explanation(
        kind,
        tuple(_formulas(prospect, parts)),
        tuple(_operators(block, numbers)),
        tuple(_collectives(block, numbers)),
        tuple(_tensors(block, policy)),
        strategies(prospect, plan.cluster),
    )


def _formulas(prospect: Prospect, parts: Costed) -> Iterator[FormulaLine]:
    sums, points, setting = parts.sums, parts.points, parts.setting
    seconds, hidden = stage_seconds(parts, times(prospect, parts)), sums.hidden[:, 0]
    slowest, worst = int(np.argmax(seconds)), int(np.argmax(parts.peaks))
    num_microbatches, group = points.num_microbatches[0], setting.microbatch_group
    yield _line(
        formulas.pipeline_s,
        "s",
        "arXiv 2104.04473",
        num_microbatches=num_microbatches,
        slowest_s=seconds[slowest],
        total_s=seconds.sum() + hidden.sum() - hidden[slowest],
        vpp=setting.vpp,
    )
    yield _line(
        formulas.in_flight,
        "microbatches",
        "Megatron-LM's warm-up",
        stage=worst,
        pp=setting.pp,
        vpp=setting.vpp,
        num_microbatches=num_microbatches,
        group=group,
    )
    optimizer_bytes = setting.bytes.optimizer
    if setting.framework.orthogonal is not None:
        # Of a parameter on average: matrices of layers and the rest keep different states.
        state = parts.cost.memory["optimizer state"][worst].flat[0]
        optimizer_bytes = state / float(elements_of_rank(sums, points, setting)[worst, 0])
    yield _line(
        formulas.states_bytes,
        "bytes",
        "ZeRO, arXiv 1910.02054, table 1",
        dense_parameters=sums.dense[worst, 0],
        expert_parameters=sums.expert[worst, 0],
        weight_bytes=setting.bytes.weight,
        gradient_bytes=setting.bytes.gradient,
        optimizer_bytes=optimizer_bytes,
        dense_shards=points.shards[0] / setting.instances,
        expert_shards=points.edp[0] / setting.instances,
        zero1=setting.sharding.state,
        zero2=setting.sharding.gradient,
        zero3=setting.sharding.weight,
        optimizer_on_device=1 - prospect.offload.optimizer,
    )
    if prospect.beside_another:
        source = "Megatron-LM, overlap_moe_expert_parallel_comm"
        hidden_s = hidden[slowest]
        yield _line(
            formulas.alone_s,
            "s",
            source,
            hidden_s=hidden_s,
            num_microbatches=num_microbatches,
            vpp=setting.vpp,
            group=group,
        )


def _line(formula: Callable[..., Any], unit: str, source: str, **arguments: float) -> FormulaLine:
    """Return a formula of the cost model, traced at its arguments."""
    tape, numbers = Tape(), tuple((name, float(value)) for name, value in arguments.items())
    value = formula(**{name: tape.symbol(name, number) for name, number in numbers})
    text = Formulas(tape, [value], whole=True).text(value.line)
    return FormulaLine(formula.__name__, text, numbers, value.value, unit, source)


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
