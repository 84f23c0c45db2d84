"""Pins: what the user fixes or bounds before the search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.job import PIN_NAMES
from symconfig.errors import Problem, Problems, among, nearest
from symconfig.plans.configuration import EXTRAS, SWITCH

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "zero", "instances", "gtp")
WORDS: Mapping[str, tuple[str, ...]] = {
    "sp": tuple(SWITCH),
    "activation_offload": tuple(SWITCH),
    "precision": ("bf16", "fp16", "fp8", "mxfp8", "nvfp4"),
    "cp_comm": ("p2p", "a2a"),
    **{extra.pin: tuple(extra.values) for extra in EXTRAS if extra.values},
}
MOST_ZERO = 3
RECOMPUTE = ("none", "selective", "full")
# Words for layout instead of a string: equally many layers in all chunks, or in all but the first and last stage's.
EQUAL, ENDS = "equal", "ends"
_NO_END = 2**31
_RANGE = re.compile(r"(\d{0,9})\.\.(\d{0,9})")


@dataclass(frozen=True, slots=True)
class Pins:
    """Parsed pins. ranges: (low, high) of degrees; words: values of options."""

    ranges: Mapping[str, tuple[int, int]]
    words: Mapping[str, str]
    fraction: float | None = None  # optimizer_offload
    layout: str | None = None  # pipeline layout string as for --pipeline-model-parallel-layout
    dealt: str | None = None  # EQUAL or ENDS

    def allows(self, name: str, value: int) -> bool:
        low, high = self.ranges.get(name, (0, 2**62))
        return low <= value <= high

    def leaves(self, name: str, word: str) -> bool:
        """Return whether the pin of an option, if any, allows this word; a word for a number must be in the range."""
        return word == self.words.get(name, word) and (name not in self.ranges or self.allows(name, int(word)))

    @property
    def modules(self) -> frozenset[str]:
        """Return the modules that a pin such as recompute=selective:core_attn,mlp names; empty if it names none."""
        return frozenset(filter(None, self.words.get("recompute", "").partition(":")[2].split(",")))

    def fixes(self, name: str) -> bool:
        """Return whether a range or a word is pinned for this name."""
        return name in self.words or name in self.ranges

    def switch(self, name: str) -> bool | None:
        """Return whether an on/off pin is on; None if it is not pinned or is no on/off pin."""
        word = self.words.get(name)
        return SWITCH[word] if word is not None and WORDS.get(name) == tuple(SWITCH) else None


def parse(pins: Mapping[str, str]) -> Pins:
    """Return the parsed pins: ranges of degrees (`number_range`), words, offloaded share of the optimizer, layout.

    A layout is `dealt` if it is "equal" or "ends", else a string that is not checked here; nor are modules after
    "recompute=selective:". Raises InputError with a problem for every pin that is unknown or malformed.
    """
    problems = Problems()
    ranges: dict[str, tuple[int, int]] = {}
    words: dict[str, str] = {}
    fraction = layout = dealt = None
    for name, raw in pins.items():
        value = raw.strip()
        if name in DEGREES:
            bounds = number_range(value)
            if bounds is None or bounds[0] > bounds[1] or (name != "zero" and bounds[1] < 1):
                problems.add(_problem(name, raw, "a whole number from 1, or a range as 2..8, ..8 or 2.."))
            elif name == "zero" and bounds[0] > MOST_ZERO:
                problems.add(_problem(name, raw, f"a stage from 0 to {MOST_ZERO}, or a range as 1..{MOST_ZERO}"))
            else:
                ranges[name] = bounds
        elif name == "recompute":
            if value.split(":")[0] not in RECOMPUTE:
                need = "none, selective, full, or selective:core_attn,mlp"
                problems.add(_problem(name, raw, need, nearest(value, RECOMPUTE)))
            words[name] = value
        elif name == "optimizer_offload":
            fraction = _fraction(value)
            if fraction is None:
                problems.add(_problem(name, raw, "a share from 0 to 1"))
        elif name == "layout" and value in (EQUAL, ENDS):
            dealt = value
        elif name == "layout":
            layout = value  # held against the model and the target where they are known
        elif name in WORDS:
            if value not in WORDS[name]:
                problems.add(_problem(name, raw, "one of " + ", ".join(WORDS[name]), nearest(value, WORDS[name])))
            words[name] = value
        else:
            problems.add(Problem("is not something that can be pinned", field=f"pins.{name}", **among(name, PIN_NAMES)))
    problems.check()
    return Pins(ranges, words, fraction, layout, dealt)


def agree(name: str, one: str, another: str) -> bool:
    """Return whether a plan can have both values of a pin. Raises InputError for one that cannot be pinned.

    Ranges of degrees agree if they overlap, other values if equal; but "equal" and "ends" agree, as do words for the
    same switch, and recompute with modules with its kind alone.
    """
    first, second = (parse({name: value}) for value in (one, another))
    if name in DEGREES:
        return max(first.ranges[name][0], second.ranges[name][0]) <= min(first.ranges[name][1], second.ranges[name][1])
    if name == "recompute":
        return one == another or one.startswith(f"{another}:") or another.startswith(f"{one}:")
    return first == second or bool(first.dealt and second.dealt) or SWITCH.get(one, one) == SWITCH.get(another, another)


def number_range(value: str) -> tuple[int, int] | None:
    """Return (low, high) of "8", "2..8", "..8" or "2.."; None for other text. Open ends are 0 and 2**31."""
    if re.fullmatch(r"\d{1,9}", value):
        return int(value), int(value)
    match = _RANGE.fullmatch(value)
    if match is None or value == "..":
        return None
    return int(match[1] or 0), int(match[2] or _NO_END)


def _fraction(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0.0 <= number <= 1.0 else None


def _problem(name: str, got: Any, need: str, hint: str | None = None) -> Problem:
    return Problem("is not a value that can be pinned", field=f"pins.{name}", got=repr(got), need=need, hint=hint)
