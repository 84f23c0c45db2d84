"""A user's own training log, of Megatron-LM or DeepSpeed, read as far as it goes. Nothing in it is run or trusted.

Read as a stream, gzip or not, with the prefixes of launchers, colours, progress bars and wrong bytes that real logs
have. What is damaged, missing or left out is said in `TrainingLog.remarks`.

The steady-state step time is the median of the logged times that remain after leaving out
1. warm-up: times whose interval begins before two steps have run since the program started (compilation, autotuning,
   allocation of the optimizer's state),
2. times after an evaluation or the saving of a checkpoint, and steps whose update was skipped (loss scale),
3. times of another batch size than the most frequent one (ramp-up).
Where nothing remains after 2, times after 1 count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from symconfig.errors import InputError
from symconfig.measured import deepspeed_log, megatron_log
from symconfig.measured.deepspeed_log import DeepSpeedReader
from symconfig.measured.log_lines import LogLines, prefix, text
from symconfig.measured.log_records import STEP_KINDS, Collected, Remark, Steady, Step, TrainingLog
from symconfig.measured.megatron_log import MegatronReader

__all__ = ["WARM_UP", "Remark", "Steady", "Step", "TrainingLog", "read_log"]

WARM_UP = 2  # steps after the program's start that are not counted
_LAG = 2  # logged steps by which one rank's output may trail another's
_WANTED = (*megatron_log.WANTED, *deepspeed_log.WANTED, b"ut of memory", b"OutOfMemory", b"OUT_OF_MEMORY")
_OUT_OF_MEMORY = re.compile(r"(?:CUDA|HIP|NPU) (?:error: )?out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY")


def read_log(path: Path, global_batch: int | None = None) -> TrainingLog:
    """Return a training log's steps, steady step time, memory, settings and remarks.

    global_batch: sequences per step, for DeepSpeed logs without it. `steady` is None for a run that ended too early,
    with a remark. Raises InputError if the file cannot be opened, is empty or binary, or is no training log.
    """
    collected = Collected()
    lines, remarks = _reading(path, collected)
    if not (collected.megatron or collected.deepspeed or collected.trainer):
        need = "lines that Megatron-LM or DeepSpeed print: `elapsed time per iteration (ms)`, `samples/sec`, …"
        raise InputError("is not a training log", file=str(path), line=lines.count or None, need=need)
    if lines.broken:
        remarks.append(Remark("truncated", lines.broken, lines.count))
    elif lines.cut:
        remarks.append(Remark("truncated", "the last line has no end: cut off, or still being written", lines.count))
    kind = next((name for name in STEP_KINDS if collected.steps[name]), STEP_KINDS[0])
    steps, restarts = _ordered(collected.steps[kind], collected.starts[kind], remarks)
    if kind == "throughput" or kind == "average":
        steps = _with_seconds(steps, _batch_size(collected, global_batch), remarks)
    else:
        steps = _with_covers(steps, restarts)
    if collected.dropped:
        remarks.append(Remark("left out", f"only the first {len(steps)} steps are read"))
    if kind == "average":
        steady = _average(steps, remarks)
    else:
        warm = _warm_up(steps, restarts) if kind != "throughput" else _warm_up_singly(steps)
        steady = _steady(steps, warm, collected, remarks)
    megatron = collected.megatron and not collected.deepspeed and collected.arguments.get("deepspeed") is not True
    return TrainingLog(
        path=str(path),
        framework="megatron" if megatron else "deepspeed",
        steps=tuple(steps),
        steady=steady,
        memory=tuple(
            collected.memory[rank] for rank in sorted(collected.memory, key=lambda rank: -1 if rank is None else rank)
        ),
        arguments=collected.arguments,
        config=collected.config,
        degrees=collected.degrees,
        vocab_size=collected.vocab_size,
        out_of_memory=collected.out_of_memory,
        remarks=tuple(sorted(remarks, key=lambda remark: remark.line or 0)),
    )


def _reading(path: Path, collected: Collected) -> tuple[LogLines, list[Remark]]:
    """Pass every line to both readers, which fill `collected`. Return the lines, and remarks on running out of memory.

    Of an unfinished last line only the part up to its last bar is read.
    """
    megatron, deepspeed = MegatronReader(collected), DeepSpeedReader(collected)
    lines = LogLines(path, _WANTED, lambda: megatron.wants_all or deepspeed.wants_all)
    remarks: list[Remark] = []
    for number, whole in lines:
        piece = whole[: max(whole.rfind(b"|"), whole.rfind(b"\r")) + 1] if lines.cut else whole
        for part in piece.split(b"\r"):
            line = text(part)
            in_block = megatron.wants_all
            megatron.read(number, line)
            deepspeed.read(number, line)
            # Names of arguments hold such words, too; a thousand ranks print them.
            if not in_block and collected.out_of_memory is None and _OUT_OF_MEMORY.search(line):
                after = max((steps[-1].iteration for steps in collected.steps.values() if steps), default=0)
                collected.out_of_memory, rank = after, prefix(line)[0]
                when = f"after iteration {after}" if after else "before the first step"
                where = "" if rank is None else f" on rank {rank}"
                remarks.append(Remark("out of memory", f"out of memory {when}{where}", number))
    return lines, remarks


def _ordered(steps: Sequence[Step], starts: set[int], remarks: list[Remark]) -> tuple[list[Step], list[int]]:
    """Return each step once, and the indices at which the program restarted; adds remarks.

    The same iteration again within _LAG lines and without a start in between is another rank's line and is dropped. Any
    other iteration that goes back is a restart from a checkpoint.
    """
    kept: list[Step] = []
    restarts: list[int] = []
    place: dict[int, int] = {}
    restarted, first_again = 0, None
    pending = False
    for index, step in enumerate(steps):
        pending = pending or index in starts
        back = bool(kept) and step.iteration <= kept[-1].iteration
        seen = place.get(step.iteration)
        if back and not pending and seen is not None and len(kept) - seen <= _LAG:
            restarted, first_again = restarted + 1, first_again or step.line
            continue
        if back or pending:
            if kept and back:
                what = f"restarted: iteration {step.iteration} follows {kept[-1].iteration}"
                remarks.append(Remark("restarted", what, step.line))
            elif kept:
                remarks.append(Remark("restarted", f"restarted before iteration {step.iteration}", step.line))
            restarts.append(len(kept))
            place, pending = {}, False
        place[step.iteration] = len(kept)
        kept.append(step)
    if restarted:
        what = f"several ranks' lines are interleaved: {restarted} lines repeat a step, which is counted once"
        remarks.append(Remark("interleaved", what, first_again))
    if len(restarts) > 8:  # a log of a run that restarts all the time
        some = [remark for remark in remarks if remark.kind == "restarted"]
        remarks[:] = [remark for remark in remarks if remark.kind != "restarted"]
        remarks.append(Remark("restarted", f"restarted {len(some)} times", some[0].line if some else None))
    return kept, restarts


def _with_covers(steps: Sequence[Step], restarts: Sequence[int]) -> list[Step]:
    """Return the steps with `covers`, the number of steps that each logged time is the mean of.

    It is the distance to the time before. The first after a start has the most frequent distance if its iteration is a
    multiple of it, else 1: newer Megatron prints the very first step alone, and includes it in the next mean, too.
    """
    begins = set(restarts) | {0}
    gaps = [step.iteration - before.iteration for before, step in pairwise(steps) if step.iteration > before.iteration]
    usual = Counter(gaps).most_common(1)[0][0] if gaps else 1
    result: list[Step] = []
    for index, step in enumerate(steps):
        if index not in begins:
            covers = step.iteration - steps[index - 1].iteration
        else:
            covers = usual if step.iteration % usual == 0 else 1
        result.append(replace(step, covers=max(1, covers)))
    return result


def _batch_size(collected: Collected, given: int | None) -> int | None:
    printed = collected.config.get("train_batch_size")
    if isinstance(printed, int) and not isinstance(printed, bool) and 0 < printed < 10**9:
        return printed
    return given


def _with_seconds(steps: Sequence[Step], batch: int | None, remarks: list[Remark]) -> list[Step]:
    """Return the steps with seconds and samples computed from samples per second.

    Without a batch size they are unchanged, and a remark is added if a time is missing.
    """
    if batch is None:
        if any(step.seconds is None for step in steps):
            what = "the log has samples per second and no global batch size, so there are no step times"
            remarks.append(Remark("batch", what, steps[0].line))
        return list(steps)
    return [
        replace(step, seconds=batch / step.samples_per_s if step.samples_per_s else step.seconds, samples=batch)
        for step in steps
    ]


def _average(steps: Sequence[Step], remarks: list[Remark]) -> Steady | None:
    """Return the last running mean as the steady step, with a remark; None if there is none."""
    timed = [(step.seconds, step) for step in steps if step.seconds is not None]
    if not timed:
        remarks.append(Remark("no steps", "no step's time can be read"))
        return None
    seconds, step = timed[-1]
    remarks.append(Remark("averaged", "the log has only means over the run, its first steps included", step.line))
    return Steady(seconds, seconds, seconds, 1, step.samples)


def _steady(steps: Sequence[Step], warm: set[int], collected: Collected, remarks: list[Remark]) -> Steady | None:
    """Return the steady step by the rules in the module's docstring, or None if no time remains; adds remarks.

    warm: indices of warm-up steps.
    """
    timed = [step for step in steps if step.seconds is not None]
    if not timed:
        if not any(remark.kind == "batch" for remark in remarks):
            remarks.append(Remark("no steps", "no step's time is printed: the run ended, or was cut off, before"))
        return None
    rest = [step for index, step in enumerate(steps) if index not in warm and step.seconds is not None]
    left = [f"{len(timed) - len(rest)} of warm-up"] if len(rest) < len(timed) else []
    if not rest:
        which = f"all {len(timed)} logged times are" if len(timed) > 1 else "the only logged time is"
        what = f"{which} of the first {WARM_UP} steps, so there is no steady step time"
        remarks.append(Remark("no steps", what, timed[-1].line))
        return None
    calm = [step for step in rest if not step.disturbed]
    if calm and len(calm) < len(rest):
        reasons = Counter(step.disturbed for step in rest if step.disturbed)
        left += [
            f"{count} before which {why}" if "skipped" not in why else f"{count} where {why}"
            for why, count in reasons.items()
        ]
        rest = calm
    if any(step.samples for step in rest):  # a line that is cut off has lost its batch size
        rest = [step for step in rest if step.samples]
    sizes = Counter(step.samples for step in rest)
    samples = sizes.most_common(1)[0][0]
    if len(sizes) > 1:
        left.append(f"{len(rest) - sizes[samples]} of another batch size than {samples}")
        remarks.append(Remark("batch", "the batch size changes during the run", rest[0].line))
        rest = [step for step in rest if step.samples == samples]
    if left:
        remarks.append(Remark("left out", f"of {len(timed)} logged times left out: {', '.join(left)}"))
    times = sorted(step.seconds for step in rest if step.seconds is not None)
    rates = [step.tflops_per_gpu for step in rest if step.tflops_per_gpu]
    low, high = times[(len(times) - 1) // 4], times[(3 * (len(times) - 1) + 3) // 4]
    if samples is None:
        samples = _batch_size(collected, None)
    return Steady(median(times), low, high, len(times), samples, median(rates) if rates else None)


def _warm_up_singly(steps: Sequence[Step]) -> set[int]:
    """Return the indices of warm-up steps for DeepSpeed's timer: those numbered up to WARM_UP."""
    return {index for index, step in enumerate(steps) if step.iteration <= WARM_UP}


def _warm_up(steps: Sequence[Step], restarts: Sequence[int]) -> set[int]:
    """Return the indices of times whose interval begins before WARM_UP steps have run since a start.

    The log's first steps count only if they are also the run's first.
    """
    result = set()
    begins = set(restarts)
    if steps and steps[0].iteration - steps[0].covers < WARM_UP:
        begins.add(0)
    ran = WARM_UP
    for index, step in enumerate(steps):
        if index in begins:
            ran = 0
        if ran < WARM_UP:
            result.add(index)
        ran += step.covers
    return result
