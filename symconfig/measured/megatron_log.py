"""Lines that Megatron-LM, Megatron-Bridge, NeMo and their kin print while training.

Formats as in megatron/training/training.py (`training_log`), utils.py (`report_memory`) and arguments.py
(`_print_args`, `validate_args`) of core_v0.5 to main; Megatron-Bridge's training/utils/train_utils.py; NeMo 2's
progress printer. Lines may be glued together, and may have anything in front.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise

from symconfig.measured.log_records import Collected, Step, Value
from symconfig.units import MIB

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_ITERATION = re.compile(r"iteration\s+(\d{1,12})\s*/\s*(?:\d+|infinity)\s*\|")
_MILLISECONDS = re.compile(r"elapsed time per iteration \(ms\):\s*" + _NUMBER + r"(?=\s*[|/])")
_TFLOPS = re.compile(r"throughput per GPU \(TFLOP/s/GPU\):\s*" + _NUMBER)
_BATCH = re.compile(r"global batch size:\s*(\d{1,9})\b")
_SKIPPED = re.compile(r"number of skipped iterations:\s*([1-9]\d*)")
_MEMORY = re.compile(
    r"\[Rank\s+(\d{1,9})\]\s[^|\[]{0,200}memory \(MB\)"
    + "".join(rf"\s*\|\s*{name}:\s*{_NUMBER}" for name in ("allocated", "max allocated", "reserved", "max reserved"))
)
_MEMORY_NAMES = ("allocated", "max_allocated", "reserved", "max_reserved")
_STEP_TIME = re.compile(rf"Step Time\s*:\s*{_NUMBER}\s*s\s+GPU utilization:\s*{_NUMBER}\s*MODEL_TFLOP/s/GPU")
_NEMO = re.compile(r"global_step:\s*(\d{1,12})\b[^\n]{0,2000}?train_step_timing in s:\s*" + _NUMBER)
_NEMO_BATCH = re.compile(r"global_batch_size:\s*(\d{1,9})\b")
_NEMO_TFLOPS = re.compile(r"TFLOPS_per_GPU:\s*" + _NUMBER)
_WORLD = re.compile(r"using world size:\s*(\d{1,9})")
_SIZES = {
    "dp": re.compile(r"data-parallel[ -]size:\s*(\d{1,9})"),
    "cp": re.compile(r"(?<!hierarchical )context-parallel[ -]size:\s*(\d{1,9})"),
    "tp": re.compile(r"(?<!encoder-)tensor-model-parallel[ -]size:\s*(\d{1,9})"),
    "pp": re.compile(r"(?<!encoder-)pipeline-model-parallel[ -]size:\s*(\d{1,9})"),
}
_VOCAB = re.compile(r"> padded vocab \(size:\s*(\d{1,9})\)")
_ARGUMENTS = re.compile(r"-{8,}\s*arguments\s*-{8,}")
_END = re.compile(r"-{8,}\s*end of arguments\s*-{8,}")
# Dots fill the name up to 48 characters; longer names have none.
_ARGUMENT = re.compile(r"(?:^|\s)(?:([A-Za-z_]\w{0,46}) \.+|([A-Za-z_]\w{47,99}) ) (.*?)\s*$")
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
_LONGEST_BLOCK = 4000  # lines; Megatron has about 700 arguments
_WORDS: dict[str, Value] = {"True": True, "False": False, "None": None}

# What a line that this reader wants holds, in bytes, since most lines of a log are none of them.
WANTED = (
    b"iteration",
    b"memory (MB)",
    b"Step Time",
    b"train_step_timing",
    b"using world size",
    b"padded vocab",
    b"arguments -",
    b"checkpoint",
    b"validation loss",
    b"Evaluating on",
)


def value(word: str) -> Value:
    """Return a printed value as True, False, None, int, finite float, or else the text."""
    if word in _WORDS:
        return _WORDS[word]
    if _WHOLE.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word):
        number = float(word)
        return number if math.isfinite(number) else word
    return word


def positive(word: str | None, scale: float = 1.0) -> float | None:
    """Return a printed number times `scale`, or None if there is none or it is not between 0 and 1e12."""
    number = float(word) * scale if word else 0.0
    return number if 0.0 < number < 1e12 else None


class MegatronReader:
    """A reader of a log, line by line, into what is collected.

    `wants_all`: within the block of arguments every line counts.
    """

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self._block = 0  # lines left of the block of arguments
        self._bridge: tuple[float, float] | None = None  # seconds and TFLOP/s of a step whose number comes later

    @property
    def wants_all(self) -> bool:
        return self._block > 0

    def read(self, number: int, line: str) -> None:
        """Read one line into `collected`: arguments, memory, degrees, vocabulary size, starts, disturbances and steps.

        number: the line's number in the file.
        """
        collected = self.collected
        if _ARGUMENTS.search(line):
            self._block, collected.megatron = _LONGEST_BLOCK, True
            collected.starting += 1
            return
        if self._block:
            self._argument(line)
        for report in _MEMORY.finditer(line):
            collected.megatron = True
            sizes = zip(_MEMORY_NAMES, report.groups()[1:], strict=True)
            collected.remember(int(report[1]), **{name: float(word) * MIB for name, word in sizes if float(word) < 1e9})
        if match := _WORLD.search(line):
            collected.megatron = True
            collected.starting += 1
            collected.degrees = {"world": int(match[1])} | {
                name: int(size[1]) for name, pattern in _SIZES.items() if (size := pattern.search(line))
            }
        if match := _VOCAB.search(line):
            collected.vocab_size = int(match[1])
        if "checkpoint" in line and ("saving checkpoint" in line or "saved checkpoint" in line):
            self.collected.disturb("a checkpoint was saved")
        elif "validation loss" in line or "Evaluating on" in line:
            self.collected.disturb("the model was evaluated")
        elif "loaded checkpoint" in line:
            self.collected.starting += 1
        self._steps(number, line)

    def _argument(self, line: str) -> None:
        """Read a line of the block of arguments; ends the block at its end mark or after _LONGEST_BLOCK lines."""
        if _END.search(line):
            self._block = 0
        elif match := _ARGUMENT.search(line):
            self.collected.arguments[match[1] or match[2]] = value(match[3])
            self._block -= 1
        else:
            self._block -= 1

    def _steps(self, number: int, line: str) -> None:
        """Read all steps in a line, which may hold several, in Megatron's, Megatron-Bridge's and NeMo's formats."""
        for match in _STEP_TIME.finditer(line):
            self.collected.megatron = True
            seconds, tflops = positive(match[1]), positive(match[2])
            if seconds is not None:
                self._bridge = seconds, tflops or 0.0
        for part in _parts(line):
            self._step(number, part)
        for match in _NEMO.finditer(line):
            batch, rate = _NEMO_BATCH.search(line), _NEMO_TFLOPS.search(line)
            self._add(number, int(match[1]), positive(match[2]), batch, rate)

    def _step(self, number: int, part: str) -> None:
        """Read one step that begins with its iteration; ignored if neither it nor a line before has a time.

        A skipped update marks the step as disturbed.
        """
        iteration = _ITERATION.match(part)
        time, rate = _MILLISECONDS.search(part), _TFLOPS.search(part)
        if not iteration:
            return
        seconds = positive(time[1], 1e-3) if time else None
        if time is None and self._bridge is not None:
            seconds = self._bridge[0]
        if seconds is None:
            return
        if _SKIPPED.search(part):
            self.collected.disturb("the update was skipped")
        self._add(number, int(iteration[1]), seconds, _BATCH.search(part), rate)

    def _add(
        self,
        number: int,
        iteration: int,
        seconds: float | None,
        batch: re.Match[str] | None,
        rate: re.Match[str] | None,
    ) -> None:
        """Add a step to `collected`, with batch and rate if they match; nothing without seconds."""
        if seconds is None:
            return
        collected = self.collected
        collected.megatron = True
        tflops = positive(rate[1]) if rate else self._bridge[1] or None if self._bridge else None
        samples = int(batch[1]) or None if batch else None
        collected.step("step", Step(iteration, number, seconds, samples=samples, tflops_per_gpu=tflops))
        self._bridge = None


def _parts(line: str) -> Iterator[str]:
    """Yield the parts of a line that begin with an iteration number, each up to the next one."""
    starts = [match.start() for match in _ITERATION.finditer(line)]
    for start, end in pairwise([*starts, len(line)]):
        yield line[start:end]
