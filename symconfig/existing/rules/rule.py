"""A rule: its name and reasons, what it is asked, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import yaml

from symconfig.errors import Problem
from symconfig.existing.launch.text import Place
from symconfig.existing.rules.facts import NotKnown, undivided
from symconfig.frameworks.constraint import Constraint
from symconfig.resources import opened

Severity = Literal["error", "warning", "note"]
Facts = TypeVar("Facts")

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Rule(Generic[Facts]):
    """One thing that can be wrong.

    name: stable, kebab-case; people silence and search by it. severity: error: it does not start, fails in the first
    step or trains something else; warning: slower or other than it seems; note: worth knowing. title: what is wrong, in
    a line. why: what happens and how that is known, with the framework's file. since, until: the first and the last
    version of the framework that it holds for; None: all that are known. constraints: of the framework's table, whose
    sentences it says. example: a configuration that breaks it, as a user would write it (options of one line; JSON for
    DeepSpeed). gpus: of the example; joined: those of them that the fastest links join; None: those of a node.
    check: yields a Problem for each place where it is broken; `Problem.field` is the option (or JSON key) it is about.
    """

    name: str
    severity: Severity
    title: str
    why: str
    example: str
    check: Callable[[Facts], Iterator[Problem]]
    gpus: int = 8
    since: str | None = None
    until: str | None = None
    environment: Mapping[str, str] | None = None  # of the example
    architecture: str | None = None  # of the example's GPUs, where they matter
    joined: int | None = None
    constraints: tuple[Constraint, ...] = ()


Check: TypeAlias = Callable[[Facts], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a rule has found, with the rule's name and severity."""

    rule: str
    severity: Severity
    problem: Problem


def findings(rules: Sequence[Rule[Facts]], facts: Facts, place: Place | None = None) -> list[Finding]:
    """Return a finding for each problem of the rules, by line and column; problems without a file get `place`.

    A check ends silently at the first fact that is not known.
    """
    where: dict[str, Any] = {} if place is None else {"file": place.file, "line": place.line, "column": place.column}
    found = []
    for rule in rules:
        with suppress(NotKnown):
            for problem in rule.check(facts):
                found.append(Finding(rule.name, rule.severity, replace(problem, **({} if problem.file else where))))
    return sorted(found, key=lambda finding: (finding.problem.line or 0, finding.problem.column or 0))


Row = Mapping[str, Any]
OF_RULE = ("severity", "title", "why", "example", "gpus", "since", "until", "environment", "architecture", "joined")
TEXTS = ("what", "got", "need", "hint")
ROWS = Path(__file__).with_name("rows")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Language(Generic[Facts]):
    """How rows of rules about one framework are read.

    value: returns a name's value. problem: makes a problem of the facts, the keys that it is about, its texts and the
    row; None: there is none. name_tests: tests of a name that need more than its value. bases: beginnings of examples
    by $NAME.
    """

    value: Callable[[Facts, str], Any]
    problem: Callable[[Facts, list[str], dict[str, Any], Row], Problem | None]
    name_tests: Mapping[str, Callable[[Facts, str], bool]]
    bases: Mapping[str, str] = field(default_factory=dict)

    def holds(self, facts: Facts, conditions: Row) -> bool:
        """Return whether all conditions hold. Raises NotKnown if a value that is needed is not known."""
        return all(self._passes(facts, name, wanted) for name, wanted in conditions.items())

    def _passes(self, facts: Facts, name: str, wanted: Any) -> bool:
        """Return whether a value passes all tests in `wanted`: {test's name: value}, or one value for the test "is".

        In tests of numbers a text is the name of another value to compare with. Raises NotKnown, or KeyError.
        """
        tests = wanted if isinstance(wanted, dict) else {"is": wanted}
        return all(
            self.name_tests[test](facts, name) == than
            if test in self.name_tests
            else TESTS[test](
                self.value(facts, name),
                self.value(facts, than) if test in NUMBERS and isinstance(than, str) else than,
            )
            for test, than in tests.items()
        )


def _among(value: Any, wanted: Any) -> bool:
    return any(
        (isinstance(value, bool) == isinstance(each, bool) and value == each)
        or (isinstance(each, str) and str(value) == each)
        for each in (wanted if isinstance(wanted, list) else [wanted])
    )


def _has(value: Any, part: str) -> bool:
    return part in (value if isinstance(value, tuple) else str(value or ""))


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a test that compares two numbers, and is False if either is no number (or a bool)."""
    return lambda *both: all(type(each) in (int, float) for each in both) and compare(*both)


NUMBERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "above": _compared(lambda value, than: value > than),
    "below": _compared(lambda value, than: value < than),
    "least": _compared(lambda value, than: value >= than),
    "most": _compared(lambda value, than: value <= than),
    "differs": _compared(lambda value, than: value != than),
    "over": _compared(undivided),  # a positive value that leaves a rest
    "rest": _compared(lambda value, than: value < 1 or value % than > 0),
}
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "is": lambda value, wanted: bool(value) == wanted if isinstance(wanted, bool) else _among(value, wanted),
    "not": lambda value, wanted: not _among(value, wanted),
    "has": _has,
    "lacks": lambda value, part: not _has(value, part),
    "text": lambda value, wanted: isinstance(value, str) == wanted,
    **NUMBERS,
}


class Lookup(dict[str, Any]):
    """A mapping for `str.format_map` that looks each name up when it is used."""

    def __init__(self, value: Callable[[str], Any]) -> None:
        self.value = value

    def __missing__(self, name: str) -> Any:
        return self.value(name)


def _problem(language: Language[Facts], row: Row, conditions: Sequence[Row], facts: Facts) -> Problem | None:
    """Return a case's problem at the row's `at`, its texts formatted by the facts' values ({value}: of `at`).

    None if a condition does not hold, or a value is not known.
    """
    with suppress(NotKnown):
        if all(language.holds(facts, each) for each in conditions):
            values = Lookup(lambda name: language.value(facts, about[0] if name == "value" else name))
            about = str(row["at"]).format_map(values).split()
            texts = {key: str(row[key]).format_map(values) for key in TEXTS if key in row}
            return language.problem(facts, about, texts, row)
    return None


def bases_of(framework: str) -> Mapping[str, str]:
    """Return the beginnings of examples by name, those that others begin with put in."""
    bases: dict[str, str] = {}
    for name, text in rows_of("bases")[framework].items():
        bases[name] = Template(text).substitute(bases)
    return bases


def rules_of(name: str, language: Language[Facts], checks: Mapping[str, Any]) -> tuple[Rule[Facts], ...]:
    """Return the rules of rows/{name}.yaml. Raises KeyError if one needs a function and `checks` lacks its name."""
    return tuple(_rule(name, row, language, checks) for name, row in rows_of(name).items())


def rows_of(name: str) -> Mapping[str, Row]:
    with opened(ROWS / f"{name}.yaml") as file:
        rows: Mapping[str, Row] = yaml.load(file, Loader=_LOADER)
    return rows


def _rule(name: str, row: Row, language: Language[Facts], checks: Mapping[str, Any]) -> Rule[Facts]:
    """Return the rule of a row: checked by its cases if it has texts, else by the function of its name in `checks`."""
    of_rule = {key: value for key, value in row.items() if key in OF_RULE}
    of_rule["example"] = Template(row["example"]).substitute(language.bases)
    of_case = {key: value for key, value in row.items() if key not in OF_RULE}
    check = _check(of_case, language) if of_case else checks[name.replace("-", "_")]
    return Rule(name=name, check=check, **of_rule)


def _check(row: Row, language: Language[Facts]) -> Check[Facts]:
    """Return a check that yields a problem for each case of a row that applies; only the first one with `once`.

    A row without `cases` is one case. A case with `each` is repeated for each of its words, put where {each} stands.
    """
    own = {key: value for key, value in row.items() if key not in ("cases", "once", "if")}
    cases = []
    for case in row.get("cases", ({},)):
        whole = {**own, **case, "if": [each["if"] for each in (row, case) if "if" in each]}
        for word in whole.pop("each", "-").split():
            filled = filled_with(whole, word)
            cases.append((filled, filled.pop("if")))

    def check(facts: Facts) -> Iterator[Problem]:
        for case, conditions in cases:
            if (problem := _problem(language, case, conditions, facts)) is not None:
                yield problem
                if row.get("once"):
                    return

    return check


BASES = bases_of("megatron")
BASE = BASES["WHOLE"]  # before examples that have no --hidden-size


def filled_with(part: Any, word: str) -> Any:
    """Return a copy of the data with {each} in all texts and keys replaced by the word."""
    if isinstance(part, dict):
        return {filled_with(key, word): filled_with(value, word) for key, value in part.items()}
    if isinstance(part, list):
        return [filled_with(each, word) for each in part]
    return part.replace("{each}", word) if isinstance(part, str) else part
