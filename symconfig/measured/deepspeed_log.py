"""Lines that DeepSpeed and Transformers' Trainer print while training.

Formats as in deepspeed/utils/timer.py (`ThroughputTimer`), runtime/pipe/engine.py (`train_batch`), runtime/utils.py
(`see_memory_usage`) and runtime/config.py (`print`) of 0.3 to 0.19; transformers' trainer_utils.py (`speed_metrics`);
symconfig's own templates/deepspeed/train.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

from symconfig.measured.log_lines import prefix
from symconfig.measured.log_records import Collected, Step
from symconfig.measured.megatron_log import positive, value
from symconfig.units import GIB, MIB

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_ALLOCATED = rf"(?:,\s*MemAllocated={_NUMBER}GB,\s*MaxMemAllocated={_NUMBER}GB)?"
_THROUGHPUT = re.compile(
    r"micro_step=\d+/global_step=(\d{1,12}),\s*RunningAvgSamplesPerSec="
    + _NUMBER
    + r",\s*CurrSamplesPerSec="
    + _NUMBER
    + r"(?=\s*(?:,|$))"
    + _ALLOCATED
)
_AVERAGE = re.compile(r"\b\d+/(\d{1,12}),\s*SamplesPerSec=" + _NUMBER + r"(?=\s*(?:,|$))" + _ALLOCATED)
_PIPELINE = re.compile(
    r"steps?:\s*(\d{1,12})(?:\s*/\s*\d+)?\s+loss:[^\r\n]{0,400}?iter time \(s\):\s*"
    + _NUMBER
    + r"\s+samples/sec:\s*"
    + _NUMBER
)
_BYTES = {
    name: re.compile(rf"(?<![A-Za-z_]){word}\s+{_NUMBER}\s*([GM])B")
    for name, word in (("allocated", "MA"), ("max_allocated", "Max_MA"), ("reserved", "CA"), ("max_reserved", "Max_CA"))
}
_RANK = re.compile(r"\[Rank (\d{1,9})\]", re.IGNORECASE)
_SETTING = re.compile(r"config\w*\.py:\d+:print\w*\]\s+([A-Za-z_]\w*) \.* ?(\S.*?)\s*$")
_JSON = re.compile(r"\bjson = (\{.*)")
_TRAINER = re.compile(r"'train_(samples|steps)_per_second':\s*'?" + _NUMBER)
# The Trainer's own summary before the first step, where it logs at level INFO.
_TRAINER_SETTINGS = {
    "train_batch_size": re.compile(r"Total train batch size \(.{0,100}\) = ([\d,]{1,12})"),
    "train_micro_batch_size_per_gpu": re.compile(r"Instantaneous batch size per device = ([\d,]{1,12})"),
    "gradient_accumulation_steps": re.compile(r"Gradient Accumulation steps = ([\d,]{1,12})"),
}
_OWN = re.compile(
    r"\b(\d{1,9}) ranks: tp (\d{1,9}), cp (\d{1,9}), dp (\d{1,9}); micro-batch (\d{1,9}) x (\d{1,9}) x \d+ "
    r"sequences of (\d{1,9})"
)
_OWN_STEP = re.compile(rf"\bstep (\d{{1,12}}) loss \S+ lr \S+ time {_NUMBER} s tokens/s/GPU \S+ peak {_NUMBER} GiB")
_LONGEST_JSON = 2000  # lines

WANTED = (
    b"SamplesPerSec",
    b"iter time (s)",
    b"Max_MA",
    b":print",
    b"OVERFLOW",
    b"_per_second",
    b"eval_loss",
    b"DeepSpeedEngine configuration",
    b"DeepSpeed info: version",
    b"Running Evaluation",
    b"aving model checkpoint",
    b"checkpoint saved",
    b"otal train batch size",
    b"batch size per device",
    b"Gradient Accumulation steps",
    b" ranks: tp ",
    b"tokens/s/GPU",
)


class DeepSpeedReader:
    """A reader of a log, line by line, into what is collected.

    `wants_all`: within the printed JSON every line counts.
    """

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self._json: list[str] = []
        self._depth = 0

    @property
    def wants_all(self) -> bool:
        return bool(self._json)

    def read(self, number: int, line: str) -> None:
        """Read one line into `collected`: settings, memory, starts, disturbances and steps. number: its line number."""
        if self._json:
            self._more_json(prefix(line)[1])
        self._settings(line)
        if "OVERFLOW" in line:
            self.collected.disturb("the update was skipped")
        elif "aving model checkpoint" in line or "checkpoint saved" in line:
            self.collected.disturb("a checkpoint was saved")
        elif "Running Evaluation" in line or "eval_loss" in line:
            self.collected.disturb("the model was evaluated")
        elif "DeepSpeedEngine configuration" in line or "DeepSpeed info: version" in line:
            self.collected.deepspeed = True
            self.collected.starting += 1
        self._steps(number, line)
        self._memory(line)

    def _settings(self, line: str) -> None:
        """Read settings from a config line, the Trainer's summary, symconfig's own script or the start of printed JSON.

        The first value of a setting is kept; JSON, once complete, overrides.
        """
        if match := _SETTING.search(line):
            self.collected.deepspeed = True
            self.collected.config.setdefault(match[1], value(match[2]))
        for name, pattern in _TRAINER_SETTINGS.items():
            if match := pattern.search(line):
                self.collected.config.setdefault(name, value(match[1].replace(",", "")))
        if match := _OWN.search(line):
            world, tp, cp, dp, micro, accumulate, length = map(int, match.groups())
            self.collected.deepspeed = True
            self.collected.starting += 1
            self.collected.config = {
                "world_size": world,
                "tensor_parallel.autotp_size": tp,
                "sequence_parallel_size": cp,
                "train_micro_batch_size_per_gpu": micro,
                "gradient_accumulation_steps": accumulate,
                "train_batch_size": micro * accumulate * dp * tp,
                "seq_length": length,
            } | self.collected.config
        if (match := _JSON.search(line)) and not self._json:
            self.collected.deepspeed = True
            self._more_json(match[1])

    def _more_json(self, line: str) -> None:
        """Add a line to the JSON being read. When its braces close, merge it into the settings, or drop it if invalid.

        Dropped, too, after _LONGEST_JSON lines unless it parses.
        """
        self._json.append(line)
        self._depth += line.count("{") - line.count("}")
        if self._depth > 0 and len(self._json) < _LONGEST_JSON:
            return
        try:
            data = json.loads("\n".join(self._json))
        except (ValueError, RecursionError):
            data = None
        self._json, self._depth = [], 0
        if isinstance(data, dict):
            self.collected.config |= _flat(data)

    def _steps(self, number: int, line: str) -> None:
        """Read step times or samples per second of the pipeline engine, throughput timer, own script and Trainer."""
        collected = self.collected
        for match in _PIPELINE.finditer(line):
            collected.deepspeed = True
            if (seconds := positive(match[2])) is not None:
                rate = positive(match[3])
                collected.step("pipeline", Step(int(match[1]), number, seconds, samples_per_s=rate))
        for match in _OWN_STEP.finditer(line):
            collected.deepspeed = True
            if (seconds := positive(match[2])) is not None:
                collected.step("step", Step(int(match[1]), number, seconds))
            self._remember(line, max_allocated=float(match[3]) * GIB)
        for kind, pattern in (("throughput", _THROUGHPUT), ("average", _AVERAGE)):
            for match in pattern.finditer(line):
                collected.deepspeed = True
                *_, rate_word, allocated, peak = match.groups()
                if (rate := positive(rate_word)) is not None:
                    collected.step(kind, Step(int(match[1]), number, None, samples_per_s=rate))
                if allocated and peak:
                    self._remember(line, allocated=float(allocated) * GIB, max_allocated=float(peak) * GIB)
        rates = {name: positive(word) for name, word in _TRAINER.findall(line)}
        if rates.get("steps") or rates.get("samples"):
            steps = rates.get("steps")
            collected.trainer = True
            collected.step("average", Step(0, number, 1 / steps if steps else None, samples_per_s=rates.get("samples")))

    def _memory(self, line: str) -> None:
        """Read the figures of `see_memory_usage` in bytes; nothing without a peak."""
        if "Max_MA" not in line:
            return
        matches = {name: match for name, pattern in _BYTES.items() if (match := pattern.search(line))}
        if "max_allocated" in matches:
            self.collected.deepspeed = True
            units = {"G": GIB, "M": MIB}
            self._remember(line, **{name: float(match[1]) * units[match[2]] for name, match in matches.items()})

    def _remember(self, line: str, **figures: float) -> None:
        match = _RANK.search(line)
        rank = int(match[1]) if match else prefix(line)[0]
        self.collected.remember(rank, **{name: number for name, number in figures.items() if number < 1e15})


def _flat(data: dict[str, Any], path: str = "", depth: int = 0) -> dict[str, Any]:
    """Return nested settings with dotted keys, up to eight levels deep."""
    result: dict[str, Any] = {}
    for key, item in data.items():
        name = f"{path}{key}"
        if isinstance(item, dict) and depth < 8:
            result |= _flat(item, name + ".", depth + 1)
        else:
            result[name] = item
    return result
