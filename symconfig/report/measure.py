"""What `symconfig measure` found of a rank, beside what was expected; or what it would run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from symconfig.format import gib, milliseconds, picked
from symconfig.plans.plan import Plan
from symconfig.report.grid import Block, Grid
from symconfig.solve.candidate import degrees, tidy

if TYPE_CHECKING:
    from symconfig.measured.gpu.measure import Measurement
    from symconfig.measured.gpu.predict import Expected
    from symconfig.measured.gpu.rank import Run

LEFT_OUT = (
    "Left out on both sides: collectives, sends between stages, waiting for other ranks, loading data; what a "
    "message would bring is a copy on the GPU. NCCL's buffers are in the predicted use of the device only."
)
_LOCAL = (
    "Megatron's own layers instead of Transformer Engine's, and the prediction is of these: no activation is "
    "offloaded, a rank's experts run one after the other, gradients are added by a kernel of their own. "
)
_TIMES = 3  # rows that are seconds: those behind them are bytes
_ENDS = {"embedding": "the embedding", "mtp": "the MTP block", "head": "the head"}
_ATTENTION = {
    "flash": "Their attention is PyTorch's scaled_dot_product_attention, and Adam PyTorch's fused one.",
    "unfused": "Their attention keeps its scores in memory, and Adam is PyTorch's fused one.",
}


def where(plan: Plan, run: Run) -> str:
    """Name the rank, and the part of a step."""
    stage, pp = plan.best.stages[run.stage], plan.best.parallel.pp
    kinds = [kind for chunk in stage.chunks for kind in chunk]
    layers = f"{sum(kind not in _ENDS for kind in kinds)} layers"
    chunks = f" in {len(stage.chunks)} chunks" if len(stage.chunks) > 1 else ""
    what = ", ".join([layers + chunks, *(name for kind, name in _ENDS.items() if kind in kinds)])
    return (
        f"Rank {run.rank} of {plan.best.parallel.world_size} ({degrees(plan.best)}): pipeline stage {run.stage} of "
        f"{pp} (from 0), {what}. Steps: {run.steps}, the first a warm-up, of {run.microbatches} microbatches; the "
        f"plan has {run.planned}."
    )


def _layers(run: Run) -> str:
    if run.impl == "transformer_engine":
        return "Transformer Engine's layers, as planned."
    return _LOCAL + _ATTENTION[run.attention]


def would_run(measurement: Measurement) -> list[Block]:
    """Show what would run where a GPU is."""
    plan, run, hope = measurement.plan, measurement.run, measurement.expected
    rows = tuple((name, unit, expected) for name, unit, expected, _, _ in _rows(measurement))
    gpu = plan.cluster.gpu.memory_bytes.value
    needs = (
        f"It needs {gib(hope.device_bytes)} GiB of a GPU; one of {plan.cluster.name} has {gib(gpu)} GiB. The same "
        f"command runs it there, with PyTorch for CUDA and Megatron {measurement.megatron}."
    )
    return [where(plan, run), _layers(run), Grid(("rank", "", "predicted"), rows, left=(0, 1)), needs, LEFT_OUT]


def blocks(measurement: Measurement) -> list[Block]:
    """Show the predictions and the measurements."""
    plan, run, taken = measurement.plan, measurement.run, measurement.taken
    software = taken.software
    names = {"gpu": "", "megatron": "Megatron ", "torch": "PyTorch ", "transformer_engine": "Transformer Engine "}
    on = ", ".join(f"{word}{software[name]}" for name, word in names.items() if name in software)
    shown: list[Block] = [where(plan, run), f"On {'' if 'gpu' in software else 'a CPU: '}{on}.", _layers(run)]
    if plan.model.experts is not None:
        shown.append("Tokens are routed at random and evenly (--moe-router-force-load-balancing).")
    headers = ("rank", "", "predicted", "measured", "predicted/measured")
    shown.append(Grid(headers, tuple(_rows(measurement)), left=(0, 1)))
    return [*shown, *_remarks(measurement), LEFT_OUT]


def _rows(measurement: Measurement) -> Iterator[tuple[str, str, str, str, str]]:
    """Name, unit, predicted, measured, ratio."""
    hope, passes, memory = measurement.expected, measurement.passes, measurement.taken.memory
    rows: tuple[tuple[str, float, float | None], ...] = (
        ("forward of a microbatch", hope.forward_s, passes.forward_s if passes else None),
        ("backward of a microbatch", hope.backward_s, passes.backward_s if passes else None),
        ("optimizer step", hope.optimizer_s, passes.optimizer_s if passes else None),
        ("weights, gradients, optimizer state", hope.states_bytes, measurement.taken.states_bytes),
        ("peak allocated", hope.peak_bytes, memory.allocated_bytes if memory else None),
        ("peak reserved", hope.reserved_bytes, memory.reserved_bytes if memory else None),
        ("in use on the device", hope.device_bytes, memory.device_bytes if memory else None),
    )
    for place, (name, expected, real) in enumerate(rows):
        unit, written = ("ms", milliseconds) if place < _TIMES else ("GiB", gib)
        ratio = _ratio(measurement, expected, real)
        yield name, unit, written(expected), "" if real is None else written(real), ratio


def _ratio(measurement: Measurement, expected: float, real: float | None) -> str:
    """Format the ratio for a GPU; a CPU's seconds are no ratio of it."""
    return f"{expected / real:.3f}" if real and measurement.run.device == "cuda" else ""


def _remarks(measurement: Measurement) -> Iterator[str]:
    """Yield what a person must know to read the numbers."""
    taken = measurement.taken
    if measurement.run.device == "cpu":
        yield (
            f"The prediction is of {measurement.plan.cluster.name}'s GPU and the seconds are of this CPU: they show "
            "that the rank runs, not how fast. Memory is not measured on a CPU."
        )
    if measurement.other_gpu is not None:
        owner = measurement.plan.cluster.name
        yield f"The prediction is of {owner}'s GPU, and this is {measurement.other_gpu}: see --cluster."
    if taken.no_gpu is not None:
        yield f"Nothing is measured: {taken.no_gpu}."
    if taken.memory is not None and measurement.expected.device_bytes > taken.memory.whole_bytes:
        yield f"It was not expected to fit: this GPU has {gib(taken.memory.whole_bytes)} GiB."
    if taken.out_of_memory is not None:
        yield f"It does not fit on this GPU: {taken.out_of_memory}"
    if taken.not_compiled is not None:
        yield (
            "PyTorch's compiler, with which Megatron fuses its activations, does not work here, so that their "
            f"operators ran one by one: {taken.not_compiled}"
        )
    if not measurement.finite:
        yield "Some loss or gradient is not a number, so that the GPU may have run faster or slower than it does."


def to_dict(measurement: Measurement) -> dict[str, Any]:
    """Return plain data: seconds, bytes."""
    taken, run, passes = measurement.taken, measurement.run, measurement.passes
    memory = taken.memory
    return {
        "schema": "symconfig.measure/1",
        "model": measurement.plan.model.name,
        "cluster": measurement.plan.cluster.name,
        "rank": run.rank,
        "stage": run.stage,
        "microbatches": run.microbatches,
        "planned_microbatches": run.planned,
        "device": run.device,
        "transformer_impl": run.impl,
        "attention": run.attention,
        "software": {"megatron": measurement.megatron, **taken.software},
        "predicted": _expected(measurement.expected),
        "measured": {
            "forward_s": passes.forward_s if passes else None,
            "backward_s": passes.backward_s if passes else None,
            "optimizer_s": passes.optimizer_s if passes else None,
            "states_bytes": taken.states_bytes,
            "peak_bytes": memory.allocated_bytes if memory else None,
            "reserved_bytes": memory.reserved_bytes if memory else None,
            "device_bytes": memory.device_bytes if memory else None,
            "out_of_memory": taken.out_of_memory,
            "parameters": taken.parameters,
        },
        "steps": [
            {
                **picked(step, "forward_s", "backward_s", "optimizer_s"),
                "losses": list(step.losses) if measurement.finite else None,
                "gradient_norm": step.gradient_norm if measurement.finite else None,
            }
            for step in taken.steps
        ],
        "remarks": list(_remarks(measurement)),
    }


def _expected(hope: Expected) -> dict[str, Any]:
    names = ("forward_s", "backward_s", "optimizer_s", "states_bytes", "peak_bytes", "reserved_bytes", "device_bytes")
    memory = {name: tidy(value) for name, value in hope.memory.items()}
    return {name: tidy(value) for name, value in picked(hope, *names).items()} | {"memory": memory}
