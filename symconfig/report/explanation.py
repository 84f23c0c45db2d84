"""`symconfig explain`: how the numbers of the chosen plan follow, where they go, what binds, and the runner-up."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from symconfig.format import count, gib, mib, milliseconds, percent, seconds
from symconfig.plans.plan import Plan, Stage
from symconfig.report import strategies
from symconfig.report.grid import Block, Grid
from symconfig.report.table import footer, headline, loss, losses, parts, ranking
from symconfig.report.timeline import compared

if TYPE_CHECKING:
    from symconfig.solve.explain import Explanation
    from symconfig.solve.schedules import Compared


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity: the formula, the formula with its numbers, and what that gives."""

    name: str
    formula: str
    numbers: str
    result: str


def lines(plan: Plan) -> list[Line]:
    """The arithmetic that ties the plan together, each result recomputed here from its inputs."""
    best = plan.best
    p, batch, predicted = best.parallel, best.batch, best.predicted
    found = [
        Line("GPUs", "tp x cp x dp x pp", f"{p.tp} x {p.cp} x {p.dp} x {p.pp}", count(p.world_size)),
        Line(
            "global batch",
            "micro x dp x accumulation",
            f"{batch.micro} x {p.dp} x {batch.num_microbatches}",
            count(batch.micro * p.dp * batch.num_microbatches),
        ),
    ]
    if plan.model.experts is not None:
        found.append(
            Line(
                "replicas of an expert",
                "tp x cp x dp / (ep x etp)",
                f"{p.tp} x {p.cp} x {p.dp} / ({p.ep} x {p.etp})",
                count(p.edp),
            )
        )
    if p.pp > 1:
        bubble = (p.pp - 1) / (p.vpp * batch.num_microbatches)
        found.append(
            Line(
                "ideal pipeline bubble",
                "(pp - 1) / (vpp x accumulation)",
                f"({p.pp} - 1) / ({p.vpp} x {batch.num_microbatches})",
                percent(bubble),
            )
        )
    tokens = batch.global_ * batch.seq_length
    times = " + ".join(seconds(value) for value in predicted.time.values() if value)
    memory = " + ".join(gib(value) for value in predicted.memory.values() if value)
    found += [
        Line("step", "sum of its parts", times, f"{seconds(sum(predicted.time.values()))} s"),
        Line(
            "tokens/s/GPU",
            "global batch x sequence / step / GPUs",
            f"{count(batch.global_)} x {count(batch.seq_length)} / {seconds(predicted.step_s)} / {count(p.world_size)}",
            count(tokens / predicted.step_s / p.world_size),
        ),
        Line("memory in use", "sum of its parts", memory, f"{gib(sum(predicted.memory.values()))} GiB"),
        Line(
            "usable memory",
            "GPU memory x (1 - margin)",
            f"{gib(plan.cluster.gpu.memory_bytes.value)} x (1 - {plan.job.limits.memory_margin:g})",
            f"{gib(plan.usable_bytes)} GiB",
        ),
    ]
    return found


def arithmetic(plan: Plan) -> Grid:
    """The lines as a table."""
    rows = tuple((line.name, line.formula, line.numbers, line.result) for line in lines(plan))
    return Grid(("quantity", "formula", "with its numbers", "gives"), rows, left=(0, 1, 2), title="How it adds up")


def stages(plan: Plan) -> Grid:
    """What every pipeline stage holds."""
    rows = tuple(
        (str(number), _layers(stage), stage.recompute, gib(stage.peak_bytes))
        for number, stage in enumerate(plan.best.stages)
    )
    return Grid(
        ("stage", "holds, one virtual stage after the other", "recompute", "peak GiB"),
        rows,
        left=(1, 2),
        title="Pipeline stages",
    )


def _layers(stage: Stage) -> str:
    return " | ".join(", ".join(f"{times} {kind}" for kind, times in Counter(chunk).items()) for chunk in stage.chunks)


def formula_text(explanation: Explanation) -> str:
    """The step's own formulas, as they were solved, each with its arguments and its source."""
    found = ["The formulas of the step and of the fullest stage, as they were solved"]
    for line in explanation.formulas:
        arguments = ", ".join(f"{name} = {value:,.6g}" for name, value in line.numbers)
        value = f"{gib(line.value)} GiB" if line.unit == "bytes" else f"{line.value:.6g} {line.unit}".rstrip()
        found += [f"  {line.name} = {line.expression}", f"    with {arguments}", f"    gives {value} ({line.source})"]
    return "\n".join(found)


def behind(explanation: Explanation) -> list[Block]:
    """What one layer does on one GPU with one microbatch: operators, collectives, and what waits for the backward."""
    kind = explanation.kind
    shown: list[Block] = [
        formula_text(explanation),
        Grid(
            ("operator", "phase", "shape on a GPU", "with its numbers", "ms"),
            tuple(
                (line.name, line.phase, line.shape, line.numbers, milliseconds(line.seconds))
                for line in explanation.operators
            ),
            left=(0, 1, 2, 3),
            title=f"Operators of one {kind} layer, one microbatch",
        ),
    ]
    if explanation.collectives:
        shown.append(
            Grid(
                ("tensor", "collective", "over", "phase", "size", "MiB", "ms", "not hidden ms"),
                tuple(
                    (
                        line.tensor,
                        line.kind,
                        line.axes,
                        line.phase,
                        line.size,
                        mib(line.bytes),
                        milliseconds(line.seconds),
                        milliseconds(line.exposed_s),
                    )
                    for line in explanation.collectives
                ),
                left=(0, 1, 2, 3, 4),
                title="Its collectives, derived from the layouts",
            )
        )
    if explanation.tensors:
        shown.append(
            Grid(
                ("tensor", "size", "MiB", "fate"),
                tuple((line.name, line.size, mib(line.bytes), line.fate) for line in explanation.tensors),
                left=(0, 1, 3),
                title="Its tensors that the backward pass needs",
            )
        )
    return shown


def blocks(plan: Plan, explanation: Explanation, schedules: Compared) -> list[Block]:
    """The explanation for a person."""
    shown: list[Block] = [headline(plan), ranking(plan), arithmetic(plan), parts(plan), stages(plan)]
    if schedules.able:
        shown += compared.blocks(schedules, compared.most_bytes(plan, plan.best))
    if plan.alternatives:
        shown.append(losses(plan))
    return [*shown, *behind(explanation), *strategies.tables(explanation.strategies), footer(plan)]


def to_dict(plan: Plan, explanation: Explanation, schedules: Compared) -> dict[str, Any]:
    """The same as plain data."""
    runner_up = None
    if plan.alternatives:
        slower, because = loss(plan.best, plan.alternatives[0])
        runner_up = {"candidate": plan.alternatives[0].to_dict(), "slower_by": slower, "because": because}
    layer = asdict(explanation)
    lying = layer.pop("strategies")
    return {
        "schema": "symconfig.explain/1",
        "best": plan.best.to_dict(),
        "binding": plan.binding,
        "usable_bytes": plan.usable_bytes,
        "lines": [asdict(line) for line in lines(plan)],
        "layer": layer,
        "strategies": lying,
        "schedules": compared.to_dict(schedules),
        "runner_up": runner_up,
    }
