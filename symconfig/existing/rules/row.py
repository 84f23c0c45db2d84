"""Rules as rows of data: conditions tell where a rule is broken, and texts with values in them what is said.

A file of rows maps names to rules, in the order of the page. A row has the fields of `Rule`, and either at most `if`,
where the function of its name checks it (heads-over-tp: heads_over_tp), or the keys of a case, or several `cases`, each
of which takes from the row what it does not say itself:

    each         words; the case is judged once for each, which stands wherever the case has {each}
    if           conditions that must all hold: of the whole row, and of the case
    at           what the problem is about, and whose place serves where that is absent
    what, got, need, hint    of the problem; a name in braces stands for its value, {value} for that of what it is about
    once         only the first case that holds is reported

A condition maps a name to true (on, or there), false, null, a value, a list of values, or tests that must all be
passed (`TESTS`; a number may be a name): {above: 1, not: 3}. The names are those of its language (`Language`). What is
not known of one case is no matter to another. Every other key is passed on to the language's problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Generic

import yaml

from symconfig.errors import Problem
from symconfig.existing.rules.facts import NotKnown, undivided
from symconfig.existing.rules.rule import Check, Facts, Rule
from symconfig.resources import opened

Row = Mapping[str, Any]
OF_RULE = ("severity", "title", "why", "example", "gpus", "since", "until", "environment", "architecture", "joined")
TEXTS = ("what", "got", "need", "hint")
ROWS = Path(__file__).with_name("rows")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Language(Generic[Facts]):
    """How the rows about a framework are read.

    value: of a name. problem: of the facts, what it is about, and the other keys of a case; None: there is none.
    name_tests: of a name, what does not follow from its value. bases: of examples, by the $NAME that they begin with.
    """

    value: Callable[[Facts, str], Any]
    problem: Callable[..., Problem | None]
    name_tests: Mapping[str, Callable[[Facts, str], bool]]
    bases: Mapping[str, str] = field(default_factory=dict)

    def holds(self, facts: Facts, conditions: Row) -> bool:
        """Return whether all conditions hold. Raises NotKnown where that is not known."""
        return all(self._passes(facts, name, wanted) for name, wanted in conditions.items())

    def _passes(self, facts: Facts, name: str, wanted: Any) -> bool:
        tests = wanted if isinstance(wanted, dict) else {"is": wanted}
        return all(
            self.name_tests[test](facts, name) == than
            if test in self.name_tests
            else TESTS[test](self.value(facts, name), self._number(facts, than) if test in NUMBERS else than)
            for test, than in tests.items()
        )

    def _number(self, facts: Facts, than: Any) -> Any:
        return self.value(facts, than) if isinstance(than, str) else than


def _is(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool):
        return bool(value) == wanted
    return _among(value, wanted)


def _among(value: Any, wanted: Any) -> bool:
    return any(
        (isinstance(value, bool) == isinstance(each, bool) and value == each)
        or (isinstance(each, str) and str(value) == each)
        for each in (wanted if isinstance(wanted, list) else [wanted])
    )


def _has(value: Any, part: str) -> bool:
    return part in (value if isinstance(value, tuple) else str(value or ""))


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a test that nothing passes but a number."""
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
    "is": _is,
    "not": lambda value, wanted: not _among(value, wanted),
    "has": _has,
    "lacks": lambda value, part: not _has(value, part),
    "text": lambda value, wanted: isinstance(value, str) == wanted,
    **NUMBERS,
}


class Looked(dict[str, Any]):
    """Values by name for the braces of a text, each looked up when it is needed."""

    def __init__(self, value: Callable[[str], Any]) -> None:
        self.value = value

    def __missing__(self, name: str) -> Any:
        return self.value(name)


@dataclass(frozen=True, slots=True)
class _Case(Generic[Facts]):
    """One way in which a rule is broken."""

    language: Language[Facts]
    row: Row
    conditions: tuple[Row, ...]

    def __call__(self, facts: Facts) -> Problem | None:
        """Return the problem where all conditions are known to hold."""
        try:
            if not all(self.language.holds(facts, each) for each in self.conditions):
                return None
            values = Looked(lambda name: self.language.value(facts, about[0] if name == "value" else name))
            about = str(self.row["at"]).format_map(values).split()
            texts = {key: str(self.row[key]).format_map(values) for key in TEXTS if key in self.row}
            return self.language.problem(facts, about, **{**self.row, **texts})
        except NotKnown:
            return None


def rules_of(name: str, language: Language[Facts], checks: Mapping[str, Any]) -> tuple[Rule[Facts], ...]:
    """Return the rules of a file of rows. checks: functions by their names, of rules that no row can say."""
    return tuple(_rule(name, row, language, checks) for name, row in rows_of(name).items())


def rows_of(name: str) -> Mapping[str, Row]:
    with opened(ROWS / f"{name}.yaml") as file:
        rows: Mapping[str, Row] = yaml.load(file, Loader=_LOADER)
    return rows


def _rule(name: str, row: Row, language: Language[Facts], checks: Mapping[str, Any]) -> Rule[Facts]:
    of_rule = {key: value for key, value in row.items() if key in OF_RULE}
    of_rule["example"] = Template(row["example"]).substitute(language.bases)
    of_case = {key: value for key, value in row.items() if key not in OF_RULE}
    if of_case.keys() - {"if"}:
        return Rule(name=name, check=_check(of_case, language), **of_rule)
    check: Check[Facts] = checks[name.replace("-", "_")]
    return Rule(name=name, check=_guarded(check, of_case["if"], language) if of_case else check, **of_rule)


def _guarded(inner: Check[Facts], conditions: Row, language: Language[Facts]) -> Check[Facts]:
    """Return a check that finds nothing where the conditions do not hold."""

    def check(facts: Facts) -> Iterator[Problem]:
        return inner(facts) if language.holds(facts, conditions) else iter(())

    return check


def _check(row: Row, language: Language[Facts]) -> Check[Facts]:
    """Make the check of a row: of its cases, or of the one that it is."""
    own = {key: value for key, value in row.items() if key not in ("cases", "once", "if")}
    cases = []
    for case in row.get("cases", ({},)):
        whole = {**own, **case, "if": [each["if"] for each in (row, case) if "if" in each]}
        for word in whole.pop("each", "-").split():
            filled = filled_with(whole, word)
            conditions = filled.pop("if")
            cases.append(_Case(language, filled, tuple(conditions)))

    def check(facts: Facts) -> Iterator[Problem]:
        for case in cases:
            if (problem := case(facts)) is not None:
                yield problem
                if row.get("once"):
                    return

    return check


def filled_with(part: Any, word: str) -> Any:
    """Put a word wherever {each} stands."""
    if isinstance(part, dict):
        return {filled_with(key, word): filled_with(value, word) for key, value in part.items()}
    if isinstance(part, list):
        return [filled_with(each, word) for each in part]
    return part.replace("{each}", word) if isinstance(part, str) else part
