"""Two plans side by side: every choice and every predicted part that is not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from symconfig.errors import SymconfigError
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import stage_layers
from symconfig.render import deepspeed, megatron
from symconfig.runs.replan.inputs import inputs, training


@dataclass(frozen=True, slots=True)
class Difference:
    """A field's dotted path and its two values; None where it is missing."""

    field: str
    before: Any
    after: Any

    @property
    def delta(self) -> float | None:
        """Return after - before; None unless both are numbers (booleans are not)."""
        if not (_number(self.before) and _number(self.after)):
            return None
        return float(self.after) - float(self.before)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def differences(before: Any, after: Any) -> tuple[Difference, ...]:
    """Return the differing fields of two nested mappings by dotted path, in the order of `before`, then those only in
    `after`. A missing field equals None; lists are compared as one value.
    """
    one, other = dict(_leaves(before)), dict(_leaves(after))
    fields = dict.fromkeys((*one, *other))
    return tuple(
        Difference(field, one.get(field), other.get(field)) for field in fields if one.get(field) != other.get(field)
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences of two plans by section, in the order of display: inputs, training, parallel, batch, options,
    stages, predicted, time, memory, arguments.

    arguments: options of Megatron-LM or keys of DeepSpeed's JSON; empty for two frameworks. time, memory: predicted
    seconds and bytes by part; predicted: other predicted numbers.
    """

    before: Plan
    after: Plan
    sections: Mapping[str, tuple[Difference, ...]]

    @property
    def same(self) -> bool:
        """Return whether all sections are empty."""
        return not any(self.sections.values())


def diff(before: Plan, after: Plan) -> Diff:
    """Return the differences of two plans by section; sections without differences are empty."""
    one, other = before.best.to_dict(), after.best.to_dict()
    predicted = one["predicted"], other["predicted"]
    sums = ({name: value for name, value in each.items() if isinstance(value, int | float)} for each in predicted)
    sections = {
        "inputs": differences(inputs(before), inputs(after)),
        "training": differences(training(before.job), training(after.job)),
        **{name: differences(one[name], other[name]) for name in ("parallel", "batch", "options")},
        "stages": tuple(_stages(before, after)),
        "predicted": differences(*sums),
        **{name: _parts(*(each[name] for each in predicted)) for name in ("time", "memory")},
        "arguments": _arguments(before, after),
    }
    return Diff(before, after, sections)


def _parts(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Difference, ...]:
    """Return the differences of two breakdowns (seconds or bytes); a part missing in one counts as 0 there."""
    names = dict.fromkeys((*before, *after))
    return differences({name: before.get(name, 0.0) for name in names}, {name: after.get(name, 0.0) for name in names})


def _stages(before: Plan, after: Plan) -> Iterator[Difference]:
    """Yield a Difference `stage N` (from 0), of texts, for each pipeline stage with other layers; None where a plan
    lacks the stage.
    """
    for number, (one, other) in enumerate(zip_longest(before.best.stages, after.best.stages)):
        holds = [None if stage is None else stage_layers(stage) for stage in (one, other)]
        if holds[0] != holds[1]:
            yield Difference(f"stage {number}", *holds)


def _arguments(before: Plan, after: Plan) -> tuple[Difference, ...]:
    """Return the differing options or JSON keys, by what the framework is configured with. () if the frameworks differ,
    are configured in code, or a plan cannot be expressed.
    """
    backend = after.best.target.backend
    if before.best.target.backend != backend:
        return ()
    try:
        match BACKENDS[backend].told_by:
            case Medium.JSON:
                return differences(deepspeed.config(before), deepspeed.config(after))
            case Medium.OPTIONS:
                return differences(*(dict(_options(megatron.arguments(plan))) for plan in (before, after)))
            case Medium.CODE:
                return ()
    except SymconfigError:
        return ()


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (option with its dashes, its values joined by spaces, or "on" without any) from a command's words.
    `--name=value` is one word, and so an option that is "on".
    """
    name, values = "", list[str]()
    for word in [*words, "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            yield name, " ".join(values) or "on"
        name, values = word, []
