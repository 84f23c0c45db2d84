"""`symconfig explain`: how the numbers of the chosen plan follow, where they go, what binds, and the runner-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from symconfig.format import count, gib, grouped, mib, milliseconds, percent, seconds, several
from symconfig.plans.alike import Alike, stages_alike
from symconfig.plans.plan import Plan
from symconfig.report.grid import Block, Grid, present
from symconfig.report.rl import whole_step
from symconfig.report.table import footer, headline, loss, losses, parts, ranking, ranking_reasons

if TYPE_CHECKING:
    from symconfig.solve.explain import CollectiveLine, Explanation, OperatorLine, Strategies, Strategy, StrategyLine


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity: the formula, the formula with its numbers, and what that gives."""

    name: str
    formula: str
    numbers: str
    result: str


def lines(plan: Plan) -> list[Line]:
    """Return the arithmetic that relates the plan's numbers: degrees, batch, bubble, tokens per second, MFU, usable
    memory.

    Results are computed here from the plan's inputs and predicted step; nothing is compared with the plan.
    """
    best = plan.best
    p, batch, predicted = best.parallel, best.batch, best.predicted
    micro, turns = batch.micro, batch.num_microbatches
    of_batch = f"{micro} x {p.dp} x {turns}"
    arithmetic = [
        Line("GPUs", "tp x cp x dp x pp", f"{p.tp} x {p.cp} x {p.dp} x {p.pp}", count(p.world_size)),
        Line("global batch", "micro x dp x accumulation", of_batch, count(micro * p.dp * turns)),
    ]
    if plan.model.experts is not None:
        numbers = f"{p.tp} x {p.cp} x {p.dp} / ({p.ep} x {p.etp})"
        arithmetic.append(Line("replicas of an expert", "tp x cp x dp / (ep x etp)", numbers, count(p.edp)))
    if p.pp > 1:
        numbers, bubble = f"({p.pp} - 1) / ({p.vpp} x {turns})", percent((p.pp - 1) / (p.vpp * turns))
        arithmetic.append(Line("ideal pipeline bubble", "(pp - 1) / (vpp x accumulation)", numbers, bubble))
    tokens = batch.global_ * batch.seq_length
    # Of fp8 most papers give the share of the bf16 peak.
    amounts = {name: getattr(plan.cluster.gpu.peak_flops, name) for name in (best.options.precision, "bf16")}
    peaks = {name: amount.value for name, amount in amounts.items() if amount is not None}
    arithmetic += [
        Line(
            "tokens/s/GPU",
            "global batch x sequence / step / GPUs",
            f"{count(batch.global_)} x {count(batch.seq_length)} / {seconds(predicted.step_s)} / {count(p.world_size)}",
            count(tokens / predicted.step_s / p.world_size),
        ),
        *(
            Line(
                f"MFU of the {precision} peak",
                "model FLOP/s of a GPU / its dense peak",
                f"{predicted.model_tflops_per_gpu:.4g} TFLOP/s / {peak / 1e12:,.4g} TFLOP/s",
                percent(predicted.model_tflops_per_gpu * 1e12 / peak),
            )
            for precision, peak in peaks.items()
        ),
        Line(
            "usable memory",
            "GPU memory x (1 - margin)",
            f"{gib(plan.cluster.gpu.memory_bytes.value)} x (1 - {plan.job.limits.memory_margin:g})",
            f"{gib(plan.usable_bytes)} GiB",
        ),
    ]
    return arithmetic


def arithmetic(plan: Plan) -> Grid:
    """Return the table of `lines`."""
    rows = tuple((line.name, line.formula, line.numbers, line.result) for line in lines(plan))
    return Grid(("quantity", "formula", "with its numbers", "gives"), rows, left=(0, 1, 2), title="How it adds up")


def stages(plan: Plan) -> Grid:
    """Return the table of pipeline stages: layers, recomputation and peak GiB; neighbouring equal stages share a
    row.
    """
    rows = tuple((each.name, each.holds, each.recompute, _peak(each)) for each in stages_alike(plan.best.stages))
    heads = ("stage", "holds, virtual stages apart by |", "recompute", "peak GiB")
    return Grid(heads, rows, left=(1, 2), title="Pipeline stages")


def _peak(each: Alike) -> str:
    least, most = gib(each.least_bytes), gib(each.most_bytes)
    return most if least == most else f"{least} to {most}"


def blocks(plan: Plan, explanation: Explanation, *, every: bool = False) -> list[Block]:
    """Return the explanation as blocks. every: whether to repeat tensors that an earlier block has with the same
    strategy.
    """
    return present(
        headline(plan),
        *whole_step(plan),
        ranking(plan),
        arithmetic(plan),
        parts(plan),
        stages(plan),
        ranking_reasons(plan),
        losses(plan) if plan.alternatives else "",
        *tables(explanation),
        *strategy_tables(explanation.strategies, every=every),
        footer(plan),
    )


def to_dict(plan: Plan, explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON: the plan's arithmetic, one layer's operators, collectives and tensors, all
    strategies, and the first alternative as `runner_up` (None without one).
    """
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
        "runner_up": runner_up,
    }


_PHASES = ("forward", "backward", "weight-gradient")
_TRAFFIC = "memory traffic"


def tables(explanation: Explanation) -> list[Block]:
    """Return the tables of one layer: operators, their shapes, collectives, and tensors kept for the backward pass."""
    kind = explanation.kind
    named = [(name, list(lines)) for name, lines in groupby(explanation.operators, lambda line: line.name)]
    title = f"Operators of one {kind} layer, one microbatch: what each works on in the forward pass, and ms"
    works = tuple((name, _work(lines), *_phases(lines)) for name, lines in named)
    shapes = _joined((name, lines[0].shape) for name, lines in named if lines[0].shape != _TRAFFIC)
    symbols = "The same shapes in symbols; the other passes turn them"
    tensors = _joined((line.name, line.size, mib(line.bytes), line.fate) for line in explanation.tensors)
    needed = "Its tensors that the backward pass needs"
    return present(
        Grid(("operator", "work", *_PHASES), works, left=(0, 1), title=title),
        Grid(("operator", "shape on a GPU"), shapes, left=(0, 1), title=symbols),
        _collectives(explanation.collectives),
        Grid(("tensor", "size", "MiB each", "fate"), tensors, left=(0, 1, 3), title=needed),
    )


def _phases(lines: Sequence[OperatorLine]) -> tuple[str, ...]:
    taken = {line.phase: milliseconds(line.seconds) for line in lines}
    return tuple(taken.get(phase, "") for phase in _PHASES)


def _work(lines: Sequence[OperatorLine]) -> str:
    """Return the operator's sizes in the forward pass, and in other phases if they are no permutation of these."""
    first, *others = lines
    same = sorted(first.numbers.split(" x "))
    more = [f"{line.phase} {line.numbers}" for line in others if sorted(line.numbers.split(" x ")) != same]
    return ", ".join([first.numbers, *more])


def _collectives(lines: Sequence[CollectiveLine]) -> Grid:
    """Return the table of collectives by tensor, axes and size; times are summed over the phases."""
    rows = grouped(((line.tensor, line.axes, line.size, mib(line.bytes)), line) for line in lines)
    cells = (
        {
            "tensor": tensor,
            "over": axes,
            "collectives": _by_phase(mine),
            "size": size,
            "MiB each": moved,
            "ms": milliseconds(sum(line.seconds for line in mine)),
            "not hidden": milliseconds(sum(line.exposed_s for line in mine)),
        }
        for (tensor, axes, size, moved), mine in rows.items()
    )
    words = ("tensor", "over", "collectives", "size")
    return Grid.of(cells, "Its collectives, derived from the layouts", words=words)


def _by_phase(lines: Sequence[CollectiveLine]) -> str:
    """Return collectives as text: `forward all-gather; backward reduce-scatter, all-gather`."""
    phases = grouped((line.phase, line.kind) for line in lines)
    return "; ".join(f"{phase} {', '.join(kinds)}" for phase, kinds in phases.items())


def _joined(rows: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the rows, those that differ only in their name joined into one."""
    names = grouped((tuple(cells), name) for name, *cells in rows)
    return tuple((", ".join(mine), *cells) for cells, mine in names.items())


def strategy_tables(strategies: Strategies, *, every: bool = False) -> list[Block]:
    """Return a table per kind of block with each tensor's sharding; [] without mesh axes.

    Tensors with equal strategies share a row. A tensor as in an earlier block is left out unless `every`.
    """
    if not strategies.axes:
        return []
    over = ", ".join(f"{axis.name} {axis.ranks} over {axis.level}" for axis in strategies.axes)
    first = (
        "How every tensor lies: behind each of its dims the axes that cut it, and into how many parts; "
        f"a dim with none is whole ({over})"
    )
    shown: list[Block] = [first]
    known: set[StrategyLine] = set()
    for block in strategies.blocks:
        new = [line for line in block.lines if every or line not in known]
        shown.append(_table(block.kind, block.times, new, len(block.lines) - len(new)))
        known |= set(block.lines)
    return shown


def _table(kind: str, times: int, lines: Sequence[StrategyLine], above: int) -> Grid:
    travels = (": ".join(filter(None, (_used(line), _exchanged(line)))) for line in lines)
    rows = _joined((line.tensor, _made(line), way) for line, way in zip(lines, travels, strict=True))
    title = f"Block {kind}" + (f" (x {times})" if times > 1 else "")
    title += f"; {several(above, 'tensor')} as in a block above (--all)" if above else ""
    return Grid(("tensor", "made as", "used otherwise, and exchanged"), rows, left=(0, 1, 2), title=title)


def _made(line: StrategyLine) -> str:
    """Return a tensor's sharding as produced: `batch dp 4, sequence cp.tp 16, hidden_size; a sum over tp; flat over
    dp`.
    """
    cells = zip(line.dims, line.made.axes, line.made.parts, strict=True)
    dims = ", ".join(f"{dim} {'.'.join(axes)} {parts}" if axes else dim for dim, axes, parts in cells)
    return "; ".join(part for part in (dims, *_others(line.made)) if part)


def _used(line: StrategyLine) -> str:
    """Return the dims that operators read with another sharding than produced: `sequence whole`, `sequence tp 2`."""
    return " or ".join(dict.fromkeys(_change(line, strategy) for strategy, _ in line.used))


def _change(line: StrategyLine, strategy: Strategy) -> str:
    """Return the differences of one strategy from the produced one, as text."""
    cells = zip(line.dims, strategy.axes, strategy.parts, line.made.axes, line.made.parts, strict=True)
    dims = ", ".join(
        f"{dim} {'.'.join(axes)} {parts}" if axes else f"{dim} whole"
        for dim, axes, parts, before, made in cells
        if (axes, parts) != (before, made)
    )
    summed = "summed" if line.made.partial and not strategy.partial else ""
    return ", ".join(part for part in (dims, summed, *_others(strategy)) if part)


def _others(strategy: Strategy) -> list[str]:
    """Return texts for the axes over which the tensor is partial, and those that shard it flat."""
    partial = [f"a sum over {'.'.join(strategy.partial)}"] if strategy.partial else []
    return [*partial, *([f"flat over {'.'.join(strategy.flat)}"] if strategy.flat else [])]


def _exchanged(line: StrategyLine) -> str:
    phases = grouped((one.phase, f"{one.kind} {'.'.join(one.axes)}") for one in line.collectives)
    return "; ".join(f"{phase} {', '.join(kinds)}" for phase, kinds in phases.items())
