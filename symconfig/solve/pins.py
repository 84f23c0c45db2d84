"""Pins: what the user fixes or bounds before the search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.job import PIN_NAMES
from symconfig.errors import InputError, Problem

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "zero")
WORDS: Mapping[str, tuple[str, ...]] = {
    "sp": ("0", "1", "off", "on", "false", "true"),
    "moe_overlap": ("0", "1", "off", "on", "false", "true"),
    "activation_offload": ("0", "1", "off", "on", "false", "true"),
    "precision": ("bf16", "fp16", "fp8", "mxfp8", "nvfp4"),
    "cp_comm": ("p2p", "a2a", "all_gather"),
}
MOST_ZERO = 3
RECOMPUTE = ("none", "selective", "full")
_RANGE = re.compile(r"(\d{0,9})\.\.(\d{0,9})")


@dataclass(frozen=True, slots=True)
class Pins:
    """Parsed pins. `allows` is asked for every value of every degree."""

    ranges: Mapping[str, tuple[int, int]]
    words: Mapping[str, str]
    fraction: float | None = None  # optimizer_offload
    layout: str | None = None  # of the pipeline's chunks, as Megatron spells it

    def allows(self, name: str, value: int) -> bool:
        low, high = self.ranges.get(name, (0, 2**62))
        return low <= value <= high

    def switch(self, name: str) -> bool | None:
        word = self.words.get(name)
        return None if word is None else word in ("1", "on", "true")


def parse(pins: Mapping[str, str]) -> Pins:
    """Raises InputError with every pin that is unknown or not of its form."""
    problems: list[Problem] = []
    ranges: dict[str, tuple[int, int]] = {}
    words: dict[str, str] = {}
    fraction = layout = None
    for name, raw in pins.items():
        value = raw.strip()
        if name in DEGREES:
            bounds = _range(value)
            if bounds is None or bounds[0] > bounds[1] or (name != "zero" and bounds[1] < 1):
                problems.append(_problem(name, raw, "a whole number from 1, or a range as 2..8, ..8 or 2.."))
            elif name == "zero" and bounds[0] > MOST_ZERO:
                problems.append(_problem(name, raw, f"a stage from 0 to {MOST_ZERO}, or a range as 1..{MOST_ZERO}"))
            else:
                ranges[name] = bounds
        elif name == "recompute":
            if value.split(":")[0] not in RECOMPUTE:
                problems.append(_problem(name, raw, "none, selective, full, or selective:core_attn,mlp"))
            words[name] = value
        elif name == "optimizer_offload":
            fraction = _fraction(value)
            if fraction is None:
                problems.append(_problem(name, raw, "a share from 0 to 1"))
        elif name == "layout":
            layout = value  # held against the model and the target where they are known
        elif name in WORDS:
            if value not in WORDS[name]:
                problems.append(_problem(name, raw, "one of " + ", ".join(WORDS[name])))
            words[name] = value
        else:
            problems.append(
                Problem(
                    "is not something that can be pinned", field=f"pins.{name}", need="one of " + ", ".join(PIN_NAMES)
                )
            )
    if problems:
        raise InputError(problems)
    return Pins(ranges, words, fraction, layout)


def _range(value: str) -> tuple[int, int] | None:
    if re.fullmatch(r"\d{1,9}", value):
        return int(value), int(value)
    match = _RANGE.fullmatch(value)
    if match is None or value == "..":
        return None
    return int(match[1] or 0), int(match[2] or 2**31)


def _fraction(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0.0 <= number <= 1.0 else None


def _problem(name: str, got: Any, need: str) -> Problem:
    return Problem("is not a value that can be pinned", field=f"pins.{name}", got=repr(got), need=need)
