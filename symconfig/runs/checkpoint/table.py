"""The table of rules, rules.yaml: what it holds, and its one reading."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from symconfig.descriptor.job import Backend
from symconfig.descriptor.strict import Strict
from symconfig.descriptor.validate import validate
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.runs.checkpoint.verdict import Verdict

DATA = Path(__file__).with_name("rules.yaml")


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
