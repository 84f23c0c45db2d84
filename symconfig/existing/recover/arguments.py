"""Arguments of a training program that is not Megatron-LM's: each by its name, as numbers, switches and text; and what
Accelerate's file and launcher set.

Source: Accelerate 1.14, commands/config/config_args.py, commands/launch.py, utils/dataclasses.py (DeepSpeedPlugin,
FullyShardedDataParallelPlugin).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.launch.text import Place
from symconfig.existing.launch.world import launcher_options
from symconfig.formats.deepspeed import section
from symconfig.frameworks.deepspeed.keys import AUTO

TRUE = ("", "true", "1", "yes", "on")  # "": a switch without a value
DIGITS = 12  # of no quantity of a run there are more
WRONG, ABOVE_ZERO = "has a wrong value", "a whole number above zero"
FALSE = ("false", "0", "no", "off", "none")


@dataclass(frozen=True, slots=True)
class Arguments:
    """A program's arguments by name, with `-` and `_` alike; of a repeated one the last counts.

    Reading a value that is malformed appends to `problems`, each problem once, and returns None.
    """

    settings: Sequence[Setting] = ()
    problems: list[Problem] = field(default_factory=list)

    def find(self, *names: str) -> Setting | None:
        """Return the setting of the first of `names` (with underscores) that is given, its last if repeated."""
        for name in names:
            for setting in reversed(self.settings):
                if setting.key == name:
                    return setting
        return None

    def given(self, *names: str) -> bool:
        return self.find(*names) is not None

    def place(self, *names: str) -> Place | None:
        setting = self.find(*names)
        return setting.place if setting else None

    def text(self, *names: str) -> str | None:
        """Return the first value, "" for a switch without one; None if absent or, recorded in `problems`, unknown."""
        setting = self.find(*names)
        if setting is None:
            return None
        if setting.unknown:
            self._wrong(setting, f"its value {setting.unknown}")
            return None
        return setting.values[0].text if setting.values else ""

    def words(self, *names: str) -> tuple[str, ...]:
        """Return all values, also split at commas and spaces; () if absent or, recorded in `problems`, unknown."""
        if self.text(*names) is None:
            return ()
        setting = self.find(*names)
        values = setting.values if setting else ()
        return tuple(part for word in values for part in word.text.replace(",", " ").split())

    def whole(self, *names: str) -> int | None:
        """Return the argument as a positive integer; None if absent or, recorded in `problems`, malformed."""
        text = self.text(*names)
        if text is None:
            return None
        if text.isascii() and text.isdigit() and len(text) <= DIGITS and int(text) > 0:
            return int(text)
        self._not(names, text, ABOVE_ZERO)
        return None

    def number(self, *names: str) -> float | None:
        """Return the argument as a finite float; None if absent or, recorded in `problems`, malformed."""
        text = self.text(*names)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
        self._not(names, text, "a number")
        return None

    def switch(self, *names: str) -> bool | None:
        """Return whether a switch is on (TRUE) or off (FALSE); None if absent or, recorded in `problems`, neither."""
        text = self.text(*names)
        if text is None:
            return None
        if text.lower() not in (*TRUE, *FALSE):
            self._not(names, text, "True or False")
            return None
        return text.lower() in TRUE

    def _not(self, names: Sequence[str], text: str, need: str) -> None:
        setting = self.find(*names)
        if setting is not None:
            self._wrong(setting, WRONG, got=shorten(text) or "nothing", need=need)

    def _wrong(self, setting: Setting, what: str, **words: str | None) -> None:
        problem = setting.problem(what, **words)
        if problem not in self.problems:
            self.problems.append(problem)


_DEEPSPEED, _FSDP = "DEEPSPEED", "FSDP"
_NONE = ("", "none", "None", None)


@dataclass(frozen=True, slots=True)
class Launched:
    """What Accelerate's configuration file and launcher options set for the training processes.

    Args:
        shards: whether FSDP shards weights, gradients and optimizer states.
        config: the DeepSpeed JSON that Accelerate builds from its own keys; None without DeepSpeed or with a JSON file.
        precision: the value of mixed_precision, such as "bf16"; None if it is absent or "no".
        sharded: options of FSDP by their names without the prefix `fsdp_`.
        parallel: degrees of the device mesh by their names without the prefix `parallelism_config_`.
    """

    shards: bool = False
    config: Mapping[str, Any] | None = None
    precision: str | None = None
    sharded: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, Any] = field(default_factory=dict)


def accelerate_settings(reading: Reading) -> Launched:
    """Return what Accelerate's options, else its file, set; `sharded` may also hold the Trainer's fsdp_config.

    DeepSpeed is on by --use_deepspeed or --zero_stage, FSDP by --use_fsdp, else either by the file's distributed_type.
    """
    tree = reading.accelerate
    data: dict[str, Any] = dict(tree.data) if tree is not None else {}
    options = {each.key: each.value.text for each in launcher_options(reading.launcher)}
    words = {word.text.lstrip("-") for word in reading.launcher}
    kind = str(data.get("distributed_type", "")).upper()
    if "use_deepspeed" in words or "zero_stage" in options:
        kind = _DEEPSPEED
    elif "use_fsdp" in words:
        kind = _FSDP
    given = {**section(data, "deepspeed_config"), **options}
    trainer = reading.fsdp.data if reading.fsdp is not None else {}
    precision = options.get("mixed_precision", data.get("mixed_precision"))
    return Launched(
        kind == _FSDP,
        _config(given, precision) if kind == _DEEPSPEED and "deepspeed_config_file" not in given else None,
        None if precision in ("no", *_NONE) else str(precision),
        _plain("fsdp_", {**trainer, **section(data, "fsdp_config"), **options}),
        _plain("parallelism_config_", section(data, "parallelism_config")),
    )


def _config(given: Mapping[str, Any], precision: Any) -> dict[str, Any]:
    """Return the JSON that Accelerate builds for DeepSpeed: ZeRO stage (2 by default), offload and precision.

    Both precisions are "auto" if `precision` is neither "bf16" nor "fp16".
    """
    stage = str(given.get("zero_stage", 2))
    zero: dict[str, Any] = {"stage": int(stage) if stage.isascii() and stage.isdigit() else stage}
    for part in ("optimizer", "param"):
        device = given.get(f"offload_{part}_device")
        if device not in _NONE:
            zero |= {f"offload_{part}": {"device": str(device)}}
    known = ("bf16", "fp16")
    enabled = {name: {"enabled": precision == name if precision in known else AUTO} for name in known}
    return {"zero_optimization": zero, **enabled}


def _plain(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).removeprefix(prefix): value for key, value in values.items()}
