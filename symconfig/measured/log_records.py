"""What a training log holds, whichever framework wrote it. Seconds, bytes, sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from symconfig.descriptor.job import Backend

Value = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One logged time: the mean of `covers` optimizer steps, the last of which is `iteration`.

    seconds: of one step; None where the log prints only samples per second and no batch size. samples: sequences of
    one step, all ranks together. disturbed: why the time is not that of an ordinary step; empty if it is.
    """

    iteration: int
    line: int
    seconds: float | None
    covers: int = 1
    samples: int | None = None
    samples_per_s: float | None = None
    tflops_per_gpu: float | None = None
    disturbed: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank by torch's allocator: the last figures, and the highest of the `max_` ones.

    rank None: the log does not say which. A figure that is not printed is None.
    """

    rank: int | None
    allocated: float | None = None
    max_allocated: float | None = None
    reserved: float | None = None
    max_reserved: float | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about the log for a person. `kind` is one of the words in KINDS."""

    kind: str
    text: str
    line: int | None = None

    def __str__(self) -> str:
        return self.text if self.line is None else f"line {self.line}: {self.text}"


KINDS = (
    "truncated",  # the last line, or the archive, is cut off
    "out of memory",
    "interleaved",  # several ranks print the same step
    "restarted",  # iteration numbers go back
    "no steps",
    "left out",  # steps that the steady-state time does not count, and why
    "averaged",  # only means over the whole run, warm-up included
    "not read",  # lines that look like figures and cannot be read; encoding
    "batch",  # batch size changes, or is not known
)


@dataclass(frozen=True, slots=True)
class Steady:
    """Seconds of a step after the warm-up: the median, and the quartiles around it, of `n` logged times.

    samples: sequences of such a step, if the log says it.
    """

    seconds: float
    low: float
    high: float
    n: int
    samples: int | None
    tflops_per_gpu: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """A log as far as it could be read.

    arguments: Megatron's printed namespace by its own names (`num_layers`), or empty. config: DeepSpeed's settings
    by dotted key (`zero_optimization.stage`), or empty. degrees: of Megatron's line "using world size", by the names
    world, dp, tp, pp, cp. vocab_size: true size, from the line about padding.
    out_of_memory: the iteration after which it ran out, 0 if before the first, None if it did not.
    """

    path: str
    framework: Backend
    steps: tuple[Step, ...]
    steady: Steady | None
    memory: tuple[Memory, ...]
    arguments: Mapping[str, Value]
    config: Mapping[str, Any]
    degrees: Mapping[str, int]
    vocab_size: int | None
    out_of_memory: int | None
    remarks: tuple[Remark, ...]

    def of_kind(self, kind: str) -> tuple[Remark, ...]:
        """Return the remarks of one of the KINDS, in order."""
        return tuple(remark for remark in self.remarks if remark.kind == kind)


# How a step's time is printed, the best first: Megatron's step; DeepSpeed's pipeline engine's; one step's samples per
# second; a running mean.
STEP_KINDS = ("step", "pipeline", "throughput", "average")
MOST_STEPS = 200_000  # of a log, so that it takes little memory


@dataclass(slots=True)
class Collected:
    """The collection that the readers of lines fill while the file goes by; mutable, private to this room."""

    steps: dict[str, list[Step]] = field(default_factory=lambda: {kind: [] for kind in STEP_KINDS})
    starts: dict[str, set[int]] = field(default_factory=lambda: {kind: set() for kind in STEP_KINDS})
    memory: dict[int | None, Memory] = field(default_factory=dict)
    arguments: dict[str, Value] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    degrees: dict[str, int] = field(default_factory=dict)
    vocab_size: int | None = None
    megatron: bool = False
    deepspeed: bool = False
    trainer: bool = False  # Transformers' summary
    starting: int = 0  # how often a start of the program was seen
    disturbed: dict[str, str] = field(default_factory=dict)  # by kind of step, since the last one
    dropped: int = 0
    out_of_memory: int | None = None  # the iteration after which the run ran out
    _started: dict[str, int] = field(default_factory=dict)

    def remember(self, rank: int | None, **figures: float) -> None:
        """Update one rank's memory figures: the latest allocated and reserved, and the maximum of the `max_` ones.

        Figures that are not given keep their value. rank: None if the log does not say it.
        """
        old = self.memory.get(rank) or Memory(rank)
        new = {name: getattr(old, name) for name in ("allocated", "max_allocated", "reserved", "max_reserved")}
        for name, value in figures.items():
            before = new[name]
            new[name] = value if before is None or not name.startswith("max_") else max(before, value)
        self.memory[rank] = Memory(rank, **new)

    def disturb(self, why: str) -> None:
        """Mark the next step of every kind as disturbed, with the reason."""
        self.disturbed = dict.fromkeys(STEP_KINDS, why)

    def step(self, kind: str, step: Step) -> None:
        """Append a printed step, with the reason marked by `disturb` since the last step of its kind.

        Records where the program was started anew. Beyond MOST_STEPS of a kind, steps are only counted in `dropped`.
        """
        steps = self.steps[kind]
        if len(steps) >= MOST_STEPS:
            self.dropped += 1
            return
        if self._started.get(kind, 0) != self.starting:
            self._started[kind] = self.starting
            self.starts[kind].add(len(steps))
        steps.append(replace(step, disturbed=self.disturbed.pop(kind, "")))
