"""A training log as Megatron-LM or DeepSpeed prints it: step times, peak memory, settings. Nothing in it is run.

Formats: megatron/training/training.py (training_log), utils.py (report_memory) and arguments.py (_print_args) of
core_v0.5 to main; deepspeed/utils/timer.py (ThroughputTimer), runtime/pipe/engine.py (train_batch), runtime/utils.py
(see_memory_usage) and runtime/config.py (print); transformers/trainer_utils.py (speed_metrics); symconfig's own
templates/deepspeed/train.py. Lines may have prefixes of launchers, colours and progress bars.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from symconfig.descriptor.job import Backend
from symconfig.errors import InputError
from symconfig.format import picked
from symconfig.resources import opened
from symconfig.units import GIB, MIB

Value = bool | int | float | str | None

WARM_UP = 2  # steps after the program's start that are not counted
_LONGEST = 1 << 16  # bytes of a line: what is longer comes in pieces
_LONGEST_BLOCK = 4000  # lines of arguments, of which Megatron has about 700, or of a JSON
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])|\0")
# srun -l "12: ", torchrun "[rank3]:", mpirun "[1,3]<stdout>:", pdsh "node-7: ".
_PREFIX = re.compile(r"\s*(?:\[[^\]\"]*\](?:<\w+>)?:?\s?|[\w.-]+:\s)*")
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,9})\]|\[\d+,(\d{1,9})\]<std|(\d{1,7}):\s)|\[Rank (\d{1,9})\]", re.I)
_OUT_OF_MEMORY = re.compile(r"(?:CUDA|HIP|NPU) (?:error: )?out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY")
# What a line that counts holds, since most lines of a log are none of them.
_WANTED = re.compile(
    r"iteration|forward-backward|optimizer|batch-generator|memory \(MB\)|using world size|padded vocab|arguments -"
    r"|SamplesPerSec|iter time \(s\)|Max_MA|:print"
    r"|_per_second|DeepSpeed info|otal train batch size|batch size per device|Gradient Accumulation steps| ranks: tp "
    r"|tokens/s/GPU|ut of memory|OutOfMemory|OUT_OF_MEMORY"
)
# Megatron-LM's.
_ITERATION = re.compile(r"(?=iteration\s+\d{1,12}\s*/\s*(?:\d+|infinity)\s*\|)")
_STEP = re.compile(r"iteration\s+(\d{1,12})\b.*?elapsed time per iteration \(ms\):\s*" + _NUMBER + r"(?=\s*[|/])")
_TFLOPS = re.compile(r"throughput per GPU \(TFLOP/s/GPU\):\s*" + _NUMBER)
_BATCH = re.compile(r"global batch size:\s*(\d{1,9})\b")
_MEMORY = re.compile(
    r"\[Rank\s+(\d{1,9})\]\s[^|\[]{0,200}memory \(MB\)"
    + "".join(rf"\s*\|\s*{name}:\s*{_NUMBER}" for name in ("allocated", "max allocated", "reserved", "max reserved"))
)
# core/timers.py, of --timing-log-level: slowest rank's milliseconds a step, behind the fastest's or alone.
_TIMER = re.compile(rf"(?:^|\s)(forward-backward|optimizer|batch-generator) \.+: (?:\({_NUMBER}, )?{_NUMBER}\)?\s*$")
_SIZES = {
    "world": re.compile(r"using world size:\s*(\d{1,9})"),
    "dp": re.compile(r"data-parallel[ -]size:\s*(\d{1,9})"),
    "cp": re.compile(r"(?<!hierarchical )context-parallel[ -]size:\s*(\d{1,9})"),
    "tp": re.compile(r"(?<!encoder-)tensor-model-parallel[ -]size:\s*(\d{1,9})"),
    "pp": re.compile(r"(?<!encoder-)pipeline-model-parallel[ -]size:\s*(\d{1,9})"),
}
_VOCAB = re.compile(r"> padded vocab \(size:\s*(\d{1,9})\)")
_ARGUMENTS = re.compile(r"-{8,}\s*(end of )?arguments\s*-{8,}")
# Dots fill the name up to 48 characters; longer names have none.
_ARGUMENT = re.compile(r"(?:^|\s)(?:([A-Za-z_]\w{0,46}) \.+|([A-Za-z_]\w{47,99}) ) (.*?)\s*$")
# DeepSpeed's, and those of programs above it.
_THROUGHPUT = re.compile(r"global_step=(\d{1,12}),.*?CurrSamplesPerSec=" + _NUMBER + r"(?=\s*(?:,|$))")
_PIPELINE = re.compile(r"steps?:\s*(\d{1,12})\b.{0,400}?iter time \(s\):\s*" + _NUMBER + r"\s+samples/sec:")
_MAXIMA = {
    "allocated": re.compile(rf"\b(?:Max_MA\s+|MaxMemAllocated=){_NUMBER}\s*([GM])B"),
    "reserved": re.compile(rf"\bMax_CA\s+{_NUMBER}\s*([GM])B"),
}
_SETTING = re.compile(r"config\w*\.py:\d+:print\w*\]\s+([A-Za-z_]\w*) \.* ?(\S.*?)\s*$")
_JSON = re.compile(r"\bjson = (\{.*)")
_TRAINER = re.compile(r"'train_(samples|steps)_per_second':\s*'?" + _NUMBER)
_TRAINER_SETTINGS = {
    "train_batch_size": re.compile(r"Total train batch size \(.{0,100}\) = ([\d,]{1,12})"),
    "train_micro_batch_size_per_gpu": re.compile(r"Instantaneous batch size per device = ([\d,]{1,12})"),
    "gradient_accumulation_steps": re.compile(r"Gradient Accumulation steps = ([\d,]{1,12})"),
}
_OWN = re.compile(r"\b(\d+) ranks: tp (\d+), cp (\d+), dp (\d+); micro-batch (\d+) x (\d+) x \d+ sequences of (\d+)")
_OWN_SIZES = ("world_size", "tensor_parallel.autotp_size", "sequence_parallel_size", "data_parallel_size",
              "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "seq_length")  # fmt: skip
_OF_BATCH = ("tensor_parallel.autotp_size", *_OWN_SIZES[3:6])  # DeepSpeed counts tensor-parallel ranks as data ranks
_KINDS = ("step", "pipeline", "throughput", "average")  # of lines with times, the best first
_OWN_STEP = re.compile(rf"\bstep (\d{{1,12}}) loss \S+ lr \S+ time {_NUMBER} s tokens/s/GPU \S+ peak {_NUMBER} GiB")


@dataclass(frozen=True, slots=True)
class Step:
    """One logged step, or the mean of the steps since the one logged before.

    seconds: None where the log prints samples per second alone. samples: sequences of one step, of all ranks together.
    """

    iteration: int
    seconds: float | None
    samples: int | None = None
    samples_per_s: float | None = None
    tflops_per_gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Steady:
    """Seconds of a step after the warm-up: the median of `n` logged times, and their quartiles.

    samples: sequences of such a step. tflops_per_gpu: the median. lost: share of the time that the slow steps take
    beyond the median.
    """

    seconds: float
    low: float
    high: float
    n: int
    samples: int | None
    tflops_per_gpu: float | None
    lost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """A log as far as it could be read.

    steady: None if no step after the warm-up has a time. peaks: the highest bytes by rank (None: not said) and kind,
    allocated or reserved. arguments: Megatron's printed namespace by its own names, or empty. config: DeepSpeed's
    settings by dotted key (`zero_optimization.stage`), or empty. degrees: of Megatron's line "using world size", by the
    names world, dp, tp, pp, cp. vocab_size: the true size, from the line about padding. needs_batch: it has samples per
    second and no batch size. timers: seconds of a part of the step on its slowest rank, the median of those that
    Megatron prints, by Megatron's name. remarks: what was not used and why, as sentences.
    """

    path: str
    framework: Backend
    steady: Steady | None
    peaks: Mapping[int | None, Mapping[str, float]]
    arguments: Mapping[str, Value]
    config: Mapping[str, Any]
    degrees: Mapping[str, int]
    vocab_size: int | None
    out_of_memory: bool
    needs_batch: bool
    remarks: tuple[str, ...]
    timers: Mapping[str, float] = field(default_factory=dict)


def read_log(path: Path, global_batch: int | None = None) -> TrainingLog:
    """Return a training log's steady step time, memory, settings and remarks.

    Of several kinds of lines the best is used: steps, pipeline's, throughput, means over the run. global_batch:
    sequences per step, for DeepSpeed logs that do not print it; samples per second give no time without.
    Raises InputError if the file cannot be opened, is empty, or is no training log.
    """
    reader, remarks = _Reader(), list[str]()
    for line in _lines(path, remarks):
        reader.read(line)
    kind = next((kind for kind, steps in reader.steps.items() if steps), None)
    if not (kind or reader.arguments or reader.deepspeed or reader.peaks):
        need = "lines that Megatron-LM or DeepSpeed print: `elapsed time per iteration (ms)`, `samples/sec`, …"
        raise InputError("is not a training log", file=str(path), need=need)
    steps = list(reader.steps[kind].values()) if kind else []
    printed = reader.config.get("train_batch_size")
    batch = printed if isinstance(printed, int) and 0 < printed < 10**9 else global_batch
    if batch and kind in ("throughput", "average"):
        steps = [Step(s.iteration, batch / s.samples_per_s if s.samples_per_s else s.seconds, batch) for s in steps]
    if reader.out_of_memory is not None:
        when = f"after iteration {reader.out_of_memory}" if reader.out_of_memory else "before the first step"
        remarks.append(f"out of memory {when}")
    if kind == "average":
        remarks.append("the log has only means over the run, its first steps included")
    needs_batch = any(step.seconds is None for step in steps)
    if needs_batch:
        remarks.append("the log has samples per second and no global batch size, so there are no step times")
    steady = _steady(steps, kind == "average", batch, remarks)
    return TrainingLog(
        path=str(path),
        framework="deepspeed" if reader.deepspeed or reader.arguments.get("deepspeed") is True else "megatron",
        steady=steady,
        **picked(reader, "peaks", "arguments", "config", "degrees", "vocab_size"),
        out_of_memory=reader.out_of_memory is not None,
        needs_batch=needs_batch,
        remarks=tuple(remarks),
        timers={name: median(times[1:] or times) for name, times in reader.timers.items()},
    )


def _steady(steps: list[Step], averaged: bool, batch: int | None, remarks: list[str]) -> Steady | None:
    """Return the median step after the warm-up, None without a time after it; add remarks on times left out.

    averaged: the steps are means over the run, of which the last counts, without warm-up. Times count if their interval
    begins after WARM_UP steps, and are of the most frequent batch size; the first time's interval is taken as long as
    that to the second. batch: sequences of a step if no step has them.
    """
    timed = [(step, step.seconds) for step in steps if step.seconds is not None]
    if not timed and not any(step.samples_per_s for step in steps):
        remarks.append("no step's time is printed, so there is no steady step time")
    if averaged or not timed:
        timed = rest = timed[-1:]
    else:
        gap = steps[1].iteration - steps[0].iteration if len(steps) > 1 else 1
        begin = {later.iteration: step.iteration for step, later in pairwise(steps)}
        begin[steps[0].iteration] = steps[0].iteration - max(gap, 1)
        rest = [(step, seconds) for step, seconds in timed if begin[step.iteration] >= WARM_UP]
        if not rest:
            remarks.append(f"no logged time is of steps after the first {WARM_UP}, so there is no steady step time")
    if not rest:
        return None
    warm, sizes = len(timed) - len(rest), Counter(step.samples for step, _ in rest if step.samples)
    samples = sizes.most_common(1)[0][0] if sizes else batch
    left = [f"{warm} of warm-up"] if warm else []
    if len(sizes) > 1:
        left.append(f"{sum(step.samples != samples for step, _ in rest)} of another batch size than {samples}")
        rest = [(step, seconds) for step, seconds in rest if step.samples == samples]
    if left:
        remarks.append(f"of {len(timed)} logged times left out: {', '.join(left)}")
    times = sorted(seconds for _, seconds in rest)
    rates = [step.tflops_per_gpu for step, _ in rest if step.tflops_per_gpu]
    low, high = times[(len(times) - 1) // 4], times[(3 * (len(times) - 1) + 3) // 4]
    middle = median(times)
    lost = sum(max(seconds - middle, 0.0) for seconds in times) / sum(times)
    return Steady(middle, low, high, len(times), samples, median(rates) if rates else None, lost)


def _lines(path: Path, remarks: list[str]) -> Iterator[str]:
    """Yield the lines of a plain or gzip file as text, without colours; a progress bar gives a line for each update.

    Of a line above _LONGEST bytes only the end is given. A last line without an end is left out, and so is what follows
    damage to an archive; both add a remark. Raises InputError for a file that cannot be read or has no line.
    """
    last = b""
    try:
        with opened(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            try:
                while line := stream.readline(_LONGEST):
                    last = line
                    if line.endswith(b"\n"):
                        for part in line.split(b"\r"):
                            yield _COLOUR.sub("", part.decode("utf-8", errors="replace"))
            except (EOFError, zlib.error, gzip.BadGzipFile):
                remarks.append("the gzip archive is cut off or damaged")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    if not last:
        raise InputError(f"is empty{', or a damaged archive' * packed}", file=str(path), need="a training log")
    if not last.endswith(b"\n"):
        remarks.append("the last line has no end: cut off, or still being written")


@dataclass(slots=True)
class _Reader:
    """What was read so far.

    steps: by how they are printed, the best first, and iteration, of which the first line counts: later ones are of
    other ranks, or of steps that ran again after a restart. block: lines left of the block of arguments. json: lines
    of a JSON that is being read. timers: seconds of each report by Megatron's name.
    """

    steps: dict[str, dict[int, Step]] = field(default_factory=lambda: {kind: {} for kind in _KINDS})
    peaks: dict[int | None, dict[str, float]] = field(default_factory=dict)
    arguments: dict[str, Value] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    degrees: dict[str, int] = field(default_factory=dict)
    vocab_size: int | None = None
    deepspeed: bool = False
    out_of_memory: int | None = None  # the iteration after which the run ran out, 0 before the first
    block: int = 0
    json: list[str] = field(default_factory=list)
    timers: dict[str, list[float]] = field(default_factory=dict)

    def read(self, line: str) -> None:
        """Add what one line prints: a step, memory, an argument or a setting; in a block of arguments only those."""
        if self.block:
            self.block -= 1
            if match := _ARGUMENT.search(line):
                self.arguments[match[1] or match[2]] = _value(match[3])
        elif self.json:
            self._more_json(_PREFIX.sub("", line, count=1))
        if not _WANTED.search(line):
            return
        if marks := _ARGUMENTS.search(line):
            self.block = 0 if marks[1] else _LONGEST_BLOCK
        elif not self.block:
            self._megatron(line)
            self._deepspeed(line)
            if _OUT_OF_MEMORY.search(line) and self.out_of_memory is None:
                self.out_of_memory = max((max(steps) for steps in self.steps.values() if steps), default=0)

    def _peak(self, rank: int | None, kind: str, peak_bytes: float) -> None:
        """Raise a rank's peak of a kind (allocated or reserved) to these bytes; 1e15 and more are ignored."""
        mine = self.peaks.setdefault(rank, {})
        if peak_bytes < 1e15:
            mine[kind] = max(mine.get(kind, 0.0), peak_bytes)

    def _megatron(self, line: str) -> None:
        """Add steps, timers, memory, degrees (of a line with the world size) and the vocabulary size that Megatron-LM
        prints; a line may hold several steps. Later degrees and vocabulary sizes replace earlier ones; a repeated
        iteration keeps its first step. Steps and timers without a time between 0 and 1e12 s are skipped.
        """
        for report in _MEMORY.finditer(line):
            self._peak(int(report[1]), "allocated", float(report[3]) * MIB)
            self._peak(int(report[1]), "reserved", float(report[5]) * MIB)
        if _SIZES["world"].search(line):
            found = {name: pattern.search(line) for name, pattern in _SIZES.items()}
            self.degrees = {name: int(match[1]) for name, match in found.items() if match}
        if match := _VOCAB.search(line):
            self.vocab_size = int(match[1])
        if (match := _TIMER.search(line)) and (seconds := _positive(match[3], 1e-3)):
            self.timers.setdefault(match[1], []).append(seconds)
        for part in _ITERATION.split(line):
            if (match := _STEP.match(part)) and (seconds := _positive(match[2], 1e-3)):
                rate, batch = _TFLOPS.search(part), _BATCH.search(part)
                samples = int(batch[1]) or None if batch else None
                tflops = _positive(rate[1]) if rate else None
                step = Step(int(match[1]), seconds, samples, tflops_per_gpu=tflops)
                self.steps["step"].setdefault(step.iteration, step)

    def _deepspeed(self, line: str) -> None:
        """Add steps, memory and settings that DeepSpeed, the Trainer or symconfig's script print; set `deepspeed`.

        The first value of a setting is kept, but a printed JSON, once complete, overrides.
        """
        rank = _RANK.search(line)
        of = int(next(group for group in rank.groups() if group)) if rank else None
        self.deepspeed |= "DeepSpeed info" in line
        if match := _SETTING.search(line):
            self.deepspeed = True
            self.config.setdefault(match[1], _value(match[2]))
        if (match := _JSON.search(line)) and not self.json:
            self._more_json(match[1])
        for name, pattern in _TRAINER_SETTINGS.items():
            if match := pattern.search(line):
                self.config.setdefault(name, _value(match[1].replace(",", "")))
        if match := _OWN.search(line):
            self.deepspeed = True
            sizes = dict(zip(_OWN_SIZES, (int(word[:9]) for word in match.groups()), strict=True))
            self.config = {**sizes, "train_batch_size": math.prod(sizes[name] for name in _OF_BATCH)} | self.config
        for kind, pattern in (("step", _OWN_STEP), ("pipeline", _PIPELINE), ("throughput", _THROUGHPUT)):
            if (match := pattern.search(line)) and (number := _positive(match[2])):
                self.deepspeed = True
                rate = kind == "throughput"
                step = Step(int(match[1]), None if rate else number, samples_per_s=number if rate else None)
                self.steps[kind].setdefault(step.iteration, step)
                if kind == "step":
                    self._peak(of, "allocated", float(match[3]) * GIB)
        for name, pattern in _MAXIMA.items():
            if match := pattern.search(line):
                self.deepspeed = True
                self._peak(of, name, float(match[1]) * (GIB if match[2] == "G" else MIB))
        if rates := {name: _positive(word) for name, word in _TRAINER.findall(line)}:
            steps = rates.get("steps")
            self.deepspeed = True
            step = Step(0, 1 / steps if steps else None, samples_per_s=rates.get("samples"))
            self.steps["average"].setdefault(0, step)

    def _more_json(self, line: str) -> None:
        """Add a line to the JSON being read; once its braces close, add it to `config`, or drop it if it is invalid.

        Settings of a section have dotted keys. A JSON is also closed after _LONGEST_BLOCK // 2 lines.
        """
        self.json.append(line)
        whole = "\n".join(self.json)
        if whole.count("{") > whole.count("}") and len(self.json) < _LONGEST_BLOCK // 2:
            return
        self.json = []
        try:
            data = json.loads(whole)
        except (ValueError, RecursionError):
            return
        self.deepspeed = True
        for key, item in data.items():
            self.config |= (
                {f"{key}.{name}": value for name, value in item.items()} if isinstance(item, dict) else {key: item}
            )


def _value(word: str) -> Value:
    """Return a printed value as True, False, None, int (up to 18 digits), finite float, or else the text."""
    if word in ("True", "False", "None"):
        return {"True": True, "False": False}.get(word)
    if re.fullmatch(r"[+-]?\d{1,18}", word):
        return int(word)
    if re.fullmatch(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?", word) and math.isfinite(float(word)):
        return float(word)
    return word


def _positive(word: str, scale: float = 1.0) -> float | None:
    """Return a printed number times `scale`, or None if it is not between 0 and 1e12."""
    number = float(word) * scale
    return number if 0.0 < number < 1e12 else None
