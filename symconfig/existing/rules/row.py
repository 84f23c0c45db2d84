"""Rules as rows of data: an expression tells where a rule is broken, and texts with expressions in them what is said.

A file of rows maps names to rules, in the order of the page. A row has the fields of `Rule`, and either nothing more,
where the function of its name checks it (heads-over-tp: heads_over_tp), or the keys of a case, or several `cases`, each
of which takes from the row what it does not say itself:

    each         words; the case is judged once for each, by the name `each`
    let          names of its own, each with its expression
    where, when  expressions that must hold: of the whole row, and of the case
    at           what the problem is about, and whose place serves where that is absent
    what, got, need, hint    of the problem; an expression in braces stands for its value
    once         only the first case that holds is reported

An expression is Python's, over the words of its language (`Language`). What is not known of one case is no matter to
another. Every other key is the language's: it makes cases of it, or passes it on to its problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter, Template
from types import CodeType
from typing import Any, Generic

import yaml

from symconfig.errors import Problem
from symconfig.existing.rules.facts import NotKnown
from symconfig.existing.rules.rule import Check, Facts, Rule
from symconfig.resources import opened

Row = Mapping[str, Any]
OF_RULE = ("severity", "title", "why", "example", "gpus", "since", "until", "environment", "architecture", "joined")
OF_CASE = ("each", "let", "where", "when", "at", "what", "got", "need", "hint")
TEXTS = ("got", "need", "hint")
BUILTINS = ("all", "any", "bool", "float", "int", "isinstance", "len", "list", "max", "repr", "str", "tuple")
ROWS = Path(__file__).with_name("rows")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Language(Generic[Facts]):
    """How the rows about a framework are read.

    word: the value of a name in an expression. problem: of the facts, what it is about, what is wrong, and the other
    keys of a case. expanded: the cases that one stands for. bases: of examples, by the $NAME that they begin with.
    """

    word: Callable[[Facts, str], Any]
    problem: Callable[..., Problem]
    expanded: Callable[[Row], Iterable[Row]]
    bases: Mapping[str, str] = field(default_factory=dict)


class _Words(dict[str, Any]):
    """The names of an expression: its own, and those of the language, each looked up when it is needed."""

    def __init__(self, language: Language[Any], facts: Any, each: str) -> None:
        super().__init__(each=each)
        self.language, self.facts = language, facts

    def __missing__(self, name: str) -> Any:
        if name in BUILTINS:
            raise KeyError(name)  # Python's own
        return self.language.word(self.facts, name)

    def value(self, code: CodeType) -> Any:
        return eval(code, {}, self)


@dataclass(frozen=True, slots=True)
class _Text:
    """A text, and between its parts the expressions whose values stand there, each with its format."""

    parts: tuple[tuple[str, CodeType | None, str], ...]

    @classmethod
    def of(cls, text: str) -> _Text:
        parsed = Formatter().parse(text)
        return cls(tuple((before, _code(inside) if inside else None, form or "") for before, inside, form, _ in parsed))

    def filled(self, words: _Words) -> str | None:
        """Fill the values in. A text that is one value is None where that is."""
        values = [None if code is None else words.value(code) for _, code, _ in self.parts]
        if values == [None] and self.parts[0][1] is not None and not self.parts[0][0]:
            return None
        return "".join(
            before + (format(value, form) if code is not None else "")
            for (before, code, form), value in zip(self.parts, values, strict=True)
        )


def _code(expression: object) -> CodeType:
    return compile(str(expression).strip(), str(expression), "eval")


@dataclass(frozen=True, slots=True)
class _Case(Generic[Facts]):
    """One way in which a rule is broken. more: keys that its language's problem takes."""

    language: Language[Facts]
    each: tuple[str, ...]
    let: tuple[tuple[str, CodeType], ...]
    conditions: tuple[CodeType, ...]
    at: _Text
    what: _Text
    texts: tuple[tuple[str, _Text], ...]
    more: Row

    @classmethod
    def of(cls, language: Language[Facts], row: Row) -> _Case[Facts]:
        return cls(
            language=language,
            each=tuple(row["each"].split()) if "each" in row else ("",),
            let=tuple((name, _code(expression)) for name, expression in row.get("let", {}).items()),
            conditions=tuple(_code(row[key]) for key in ("where", "when") if key in row),
            at=_Text.of(row["at"]),
            what=_Text.of(row["what"]),
            texts=tuple((key, _Text.of(str(row[key]))) for key in TEXTS if key in row),
            more={key: value for key, value in row.items() if key not in OF_CASE},
        )

    def broken(self, facts: Facts) -> Iterator[Problem]:
        """Yield a problem for each word of `each` for which all conditions are known to hold."""
        for each in self.each:
            try:
                words = _Words(self.language, facts, each)
                for name, code in self.let:
                    words[name] = words.value(code)
                if not all(words.value(condition) for condition in self.conditions):
                    continue
                about = (self.at.filled(words) or "").split()
                texts = {key: text.filled(words) for key, text in self.texts}
                problem = self.language.problem(facts, about, self.what.filled(words), **texts, **self.more)
            except NotKnown:
                continue
            yield problem


def rules_of(name: str, language: Language[Facts], checks: Mapping[str, Any]) -> tuple[Rule[Facts], ...]:
    """Return the rules of a file of rows. checks: functions by their names, of rules that no row can say."""
    with opened(ROWS / f"{name}.yaml") as file:
        rows: Mapping[str, Row] = yaml.load(file, Loader=_LOADER)
    return tuple(_rule(name, row, language, checks) for name, row in rows.items())


def _rule(name: str, row: Row, language: Language[Facts], checks: Mapping[str, Any]) -> Rule[Facts]:
    of_rule = {key: value for key, value in row.items() if key in OF_RULE}
    of_rule["example"] = Template(row["example"]).substitute(language.bases)
    of_case = {key: value for key, value in row.items() if key not in OF_RULE}
    return Rule(name=name, check=_check(of_case, language) if of_case else checks[name.replace("-", "_")], **of_rule)


def _check(row: Row, language: Language[Facts]) -> Check[Facts]:
    """Make the check of a row: of its cases, or of the one that it is."""
    shared = {key: value for key, value in row.items() if key not in ("cases", "once")}
    cases = [
        _Case.of(language, each) for case in row.get("cases", ({},)) for each in language.expanded({**shared, **case})
    ]
    once = bool(row.get("once"))

    def check(facts: Facts) -> Iterator[Problem]:
        for case in cases:
            for problem in case.broken(facts):
                yield problem
                if once:
                    return

    return check
