"""A running job's log compared with the prediction of its configuration: the reverse of `calibrate`.

It answers three questions: how far off the prediction is, part by part as far as the log has timers; whether the job
runs with other options than its script has; and which single assumption, changed, would explain the measured step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.machine import cluster_constants
from symconfig.descriptor.cluster import SHARES
from symconfig.errors import InputError, Problem, Problems
from symconfig.existing.audit.audit import Audit
from symconfig.existing.audit.configuration import MegatronConfiguration
from symconfig.existing.audit.judge import Judged, judge
from symconfig.existing.recover.namespace import printed_namespace
from symconfig.existing.recover.uncounted import counted
from symconfig.formats.layer_pattern import layer_pattern
from symconfig.measured.training_log import TrainingLog
from symconfig.solve.predict import Timer

CLOSE = 0.02  # of a step: a smaller difference has no cause to look for
MOST = 3.0  # factor by which an assumption may be off, at most
_FACTORS = np.exp(np.linspace(-math.log(MOST), math.log(MOST), 121))
# Standard deviations between the ends of a 90 % interval.
_WIDTH = 3.29
# Constants of kernels that are off together, by what they are the rate of.
_RATES: Mapping[str, tuple[str, ...]] = {
    "matrix products": ("gemm_efficiency", "gemm_efficiency_low"),
    "attention kernels": ("attention_efficiency",),
    "memory bandwidth": ("hbm_efficiency",),
    "links within a node": ("link_efficiency",),
    "network between nodes": ("network_efficiency",),
}
_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_BALANCE = "load imbalance of experts"


@dataclass(frozen=True, slots=True)
class Part:
    """A figure of the prediction, and of the log. predicted: None if nothing is predicted of it."""

    name: str
    predicted: float | None
    measured: float

    @property
    def ratio(self) -> float | None:
        """Return measured over predicted; None without a prediction."""
        return self.measured / self.predicted if self.predicted else None


@dataclass(frozen=True, slots=True)
class Difference:
    """An option that the log prints with another value than the script gives it."""

    option: str
    script: str
    log: str


@dataclass(frozen=True, slots=True)
class Cause:
    """An assumption that explains the measured step, if it alone is off.

    assumed, needed: its value, and the one with which the prediction is the measured step: a share of a peak, or the
    load of the busiest rank over the mean. deviations: how far that is, in standard deviations of the assumption.
    """

    name: str
    assumed: float
    needed: float
    deviations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A log beside a prediction.

    seconds: the step and its parts; the first is the step. memory: peaks in bytes, of the rank that is fullest for what
    is predicted of its stage. interval: 90 % interval of the step, in seconds. causes: the likeliest first; empty if
    the step is within CLOSE of the prediction, or the log has no steady step.
    """

    log: TrainingLog
    interval: tuple[float, float]
    seconds: tuple[Part, ...]
    memory: tuple[Part, ...]
    differences: tuple[Difference, ...]
    causes: tuple[Cause, ...] = ()

    @property
    def as_usual(self) -> bool:
        """Return whether the measured step lies in the prediction's 90 % interval; True without a measured step."""
        low, high = self.interval
        return not self.seconds or low <= self.seconds[0].measured <= high

    @property
    def is_close(self) -> bool:
        """Return whether the measured step is within CLOSE of the prediction; True without a measured step."""
        ratio = self.seconds[0].ratio if self.seconds else None
        return ratio is None or abs(math.log(ratio)) <= CLOSE


def compare(audit: Audit, log: TrainingLog) -> Comparison:
    """Return a log compared with the prediction of an audit, with causes unless the step is within CLOSE of it.

    Raises InputError if the audit predicts nothing, or predicts a step with phases (RL), or if the log has another
    batch or number of GPUs than the configuration: then it is a log of another job.
    """
    judged = audit.judged
    if judged is None:
        hint = next((problem.hint for problem in audit.unpredicted), None)
        raise InputError("there is no prediction to compare the log with", field="--log", got=log.path, hint=hint)
    if judged.run.step is not None or judged.run.alone is not None:
        raise InputError("compares a training step, and this one has phases", field="--log", got=log.path)
    _check(judged, log)
    predicted = judged.plan.best.predicted
    seconds = tuple(_seconds(judged, log))
    found = Comparison(
        log=log,
        interval=predicted.interval["step_s"],
        seconds=seconds,
        memory=tuple(_memory(judged, log)),
        differences=tuple(_differences(audit, log)),
    )
    if found.is_close:
        return found
    causes = _causes(judged, seconds[0].measured)
    return replace(found, causes=tuple(sorted(causes, key=lambda one: one.deviations)))


def _check(judged: Judged, log: TrainingLog) -> None:
    """Raise InputError with all contradictions between the configuration and the log on GPUs and global batch."""
    ours = {
        "GPUs": (judged.plan.best.configuration.world_size, log.degrees.get("world")),
        "global batch": (judged.plan.best.configuration.global_batch, log.steady.samples if log.steady else None),
    }
    Problems(
        Problem(f"is of another job: its {name} differ", file=log.path, got=str(theirs), need=str(mine))
        for name, (mine, theirs) in ours.items()
        if theirs is not None and theirs != mine
    ).check()


def _seconds(judged: Judged, log: TrainingLog) -> Iterator[Part]:
    """Yield the step, then forward and backward, optimizer and data loading, as far as the log has timers of them.

    Nothing without a steady step. Data loading is part of the predicted overhead, so it has no prediction of its own;
    forward and backward is predicted as the step without optimizer and overhead.
    """
    if log.steady is None:
        return
    predicted = judged.plan.best.predicted
    optimizer, overhead = (predicted.time.get(name, 0.0) for name in ("optimizer", "overhead"))
    # Timers of Megatron-LM (training/training.py, training_log) that are a part of the step by themselves.
    timed = {
        "forward-backward": ("forward and backward", predicted.step_s - optimizer - overhead),
        "optimizer": ("optimizer", optimizer),
        "batch-generator": ("data loading", None),  # the prediction has it in the overhead
    }
    yield Part("step", predicted.step_s, log.steady.seconds)
    for timer, (name, own) in timed.items():
        if timer in log.timers:
            yield Part(name, own, log.timers[timer])


def _memory(judged: Judged, log: TrainingLog) -> Iterator[Part]:
    """Yield a part for the peak of allocated and one for that of reserved memory, each only if the log has it.

    It is of the rank with the largest measured peak over the predicted one of its stage. Pipeline stages are the
    outermost dim of the ranks; a rank that the log does not name counts as one of the fullest stage.
    """
    memory, p = judged.memory, judged.plan.best.configuration
    outside = {"allocated": ("allocator", "context and libraries"), "reserved": ("context and libraries",)}
    for kind, others in outside.items():
        parts = [part for name, part in memory.items() if name not in others]
        stages = [sum(stage) for stage in zip(*parts, strict=True)]
        ours = []
        for rank, peaks in log.peaks.items():
            stage = None if rank is None else rank * p.pp // p.world_size
            if peaks.get(kind):
                stage = stages.index(max(stages)) if stage is None or stage >= p.pp else stage
                ours.append(Part(f"stage {stage}'s peak {kind}", stages[stage], peaks[kind]))
        if ours:
            yield max(ours, key=lambda part: part.ratio or 0.0)


def _differences(audit: Audit, log: TrainingLog) -> Iterator[Difference]:
    """Yield the options that memory or time depends on and that the log prints otherwise than the script has them.

    Nothing unless the script is Megatron-LM's and was parsed, and the log prints its arguments; options of unknown
    value are left out.
    """
    if not isinstance(audit.reader, MegatronConfiguration) or not log.arguments or not audit.reader.parsed:
        return
    script = audit.reader.names()
    printed = printed_namespace(log.arguments, script.table)  # one table for both, so that equal values are
    for dest in sorted(counted() & script.written.keys()):
        if dest in script.dark or dest not in log.arguments or log.arguments[dest] is None:
            continue
        ours, theirs = _text(script[dest]), _text(printed[dest])
        if ours != theirs:
            yield Difference(script.spelled(dest), ours, theirs)


def _text(value: object) -> str:
    """Return a value as a text to compare: numbers as short as they are, several values with blanks between them, also
    those of a list expression such as ([0]*3+[1]*58), and torch's types by their short names.
    """
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    text = f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "").removeprefix("torch.")
    if text[:1] in ("[", "("):
        with suppress(ValueError):
            return _text(layer_pattern(text))
    return _TYPES.get(text, text)


def _causes(judged: Judged, measured_s: float) -> Iterator[Cause]:
    """Yield each constant (or the load imbalance) that, changed alone, makes the prediction the measured step.

    Changes are by a factor of at most MOST, and shares of a peak stay at most 1; rates of one kind, as of all
    precisions of matrix products, change together.
    """
    known, c = cluster_constants(judged.plan.cluster), judged.run.configuration
    timer = Timer(judged.plan.model, judged.plan.cluster, c)
    (own,) = timer.step_seconds({}, 1)
    target = measured_s / judged.plan.best.predicted.step_s  # of the step that the timer has, as loads are uneven there
    for name, constants in _RATES.items():
        rates = [constant for constant in constants if constant in known]
        if not rates:
            continue
        steps = timer.step_seconds({rate: known[rate].value * _FACTORS for rate in rates}, _FACTORS.size) / own
        if not float(steps.min()) < target < float(steps.max()):
            continue
        factor = float(np.exp(np.interp(-target, -steps, np.log(_FACTORS))))  # a step falls with the rate
        first = known[rates[-1] if c.precision not in ("bf16", "fp16") else rates[0]]
        if rates[0] in SHARES and first.value * factor > 1.0:
            continue
        yield Cause(name, first.value, first.value * factor, abs(math.log(factor)) / max(first.uncertainty, 0.01))
    yield from _imbalance(judged, measured_s)


def _imbalance(judged: Judged, measured_s: float) -> Iterator[Cause]:
    """Yield the load imbalance of experts that explains the measured step, if one does.

    A step is linear in it; it must be 1 (even loads) to MOST times the assumed one. Nothing if the plan's loads are
    even.
    """
    plan = judged.plan
    loads = (plan.best.predicted.untrained or {}).get("waited_load")
    if loads is None:
        return
    even, double = (
        judge(
            judged.run, plan.cluster, plan.job.limits.model_copy(update={"expert_imbalance": load})
        ).plan.best.predicted.step_s
        for load in (1.0, 2.0)
    )
    assumed = math.sqrt(loads[0] * loads[1])
    needed = 1.0 + (measured_s - even) / (double - even) if double > even else 0.0
    if 1.0 <= needed <= MOST * assumed:
        spread = math.log(loads[1] / loads[0]) / _WIDTH
        yield Cause(_BALANCE, assumed, needed, abs(math.log(needed / assumed)) / spread)
