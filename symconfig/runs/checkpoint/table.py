"""The table of rules, rules.yaml, and what its evaluation says: whether a checkpoint loads, what is lost, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.job import Backend
from symconfig.descriptor.strict import Strict, validate

DATA = Path(__file__).with_name("rules.yaml")


class Verdict(StrEnum):
    """Verdicts from the best to the worst."""

    AS_IS = "as it is"
    RESHARDED = "resharded on load"
    CONVERTED = "converted first"
    WEIGHTS = "weights only"
    NO = "no"

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)

    @property
    def unconverted(self) -> bool:
        """Return whether the checkpoint loads completely without a conversion."""
        return self.rank <= Verdict.RESHARDED.rank


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.AS_IS)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. `words`: of `kind` options, what the run of `run` is started with besides its own; of a command,
    the command; of config, keys of the DeepSpeed JSON as JSON. `CHECKPOINT` in them stands for the folder.

    run: old: with the old plan's files and release; new: with the new plan's; between: neither.
    """

    run: Literal["old", "between", "new"]
    kind: Literal["options", "command"]
    words: str
    does: str


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence and its source: file@release, or how it was measured."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Loadable:
    """Whether a run of one plan can load another plan's checkpoint.

    kind: the checkpoint's, a name of `kinds`. how: steps in order. otherwise, otherwise_how: verdict and steps without
    the conversion that `verdict` requires. lost: what restarts in the new run. reasons: the worst first.
    """

    kind: str
    verdict: Verdict
    how: tuple[Step, ...]
    otherwise: Verdict
    otherwise_how: tuple[Step, ...]
    lost: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def loads(self) -> bool:
        """Return whether at least the weights load."""
        return self.verdict is not Verdict.NO

    def options(self, run: Literal["old", "new"]) -> tuple[str, ...]:
        """Return the words of the steps' options for the old or the new run, besides its own."""
        return tuple(
            word for step in self.how if step.run == run and step.kind == "options" for word in step.words.split()
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Span(Strict):
    """Releases of Megatron-LM that write something; without bounds all do."""

    since: str | None = None
    until: str | None = None


class Way(Span):
    """A way to hold the optimizer's state. options: what makes a run save so that would do otherwise; costs: what that
    is paid with, and where it is read."""

    options: str = ""
    costs: str = ""
    source: str = ""


class Format(Span):
    """A kind of checkpoint. framework: whose plans can save it; optimizer: ways in which it can hold the optimizer's
    state, where it has several."""

    framework: tuple[Backend, ...]
    does: str
    optimizer: dict[str, Way] = Field(default_factory=dict)


class ConversionRow(Span):
    """A step of a conversion. since, until: releases of the old run that are told this."""

    run: Literal["old", "between"]
    kind: Literal["options", "command"]
    words: str
    does: str


class Conversion(Strict):
    """A conversion from one form of a checkpoint to another, which then lies `at` a place."""

    reads: tuple[str, ...]
    makes: str
    at: str
    rows: tuple[ConversionRow, ...]


class Load(Strict):
    """A way in which the new run takes a form."""

    kind: Literal["options", "command"]
    words: str
    does: str


class Tell(Load):
    """An option of the new run where it loads a form of `reads`, unless it has one of `useless_with`."""

    reads: tuple[str, ...]
    useless_with: tuple[str, ...] = ()


class Rule(Strict):
    """A rule on what a change does to a checkpoint.

    It holds for a checkpoint of one of `formats` (and of `optimizer`, where named) that a release of written_since to
    written_until wrote and one of read_since to read_until reads, when one of `any_of`, each of `all_of` and none of
    `none_of` is found; {changed} in `says` is what was found of `any_of`. Between two frameworks only those hold that
    are `across` them, or about them. how: names of conversions and of what the new run is told; otherwise: what is left
    without a conversion.
    seen: the case of tests/runs/checkpoint in which the real framework did so; absent: only read in its source.
    """

    name: str
    formats: tuple[str, ...]
    optimizer: tuple[str, ...] = ()
    written_since: str | None = None
    written_until: str | None = None
    read_since: str | None = None
    read_until: str | None = None
    any_of: tuple[str, ...] = ()
    all_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()
    across: bool = False
    verdict: Verdict
    otherwise: Verdict | None = None
    says: str
    how: tuple[str, ...] = ()
    otherwise_how: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    source: str
    seen: str | None = None


class Table(Strict):
    formats: dict[str, Format]
    lost: dict[str, str]
    conversions: dict[str, Conversion]
    loads: dict[str, Load]
    tells: dict[str, Tell]
    rules: tuple[Rule, ...]


@cache
def table() -> Table:
    return validate(load_yaml_strict(DATA), Table)
