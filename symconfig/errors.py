"""The one error hierarchy. Every error is a list of sentences to a person, and knows its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict, Unpack

# What is wrong with a field, where those who read a file for a purpose of their own say more of it.
MISSING_FIELD = "this field is missing"
UNKNOWN_FIELD = "unknown field"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: `file:line:col: field: what (got X, need Y). Try: Z.`

    pins: of a choice of the planner's, the pins (`tp=1`, `tp=..7`) of which every plan without this problem has one.
    edit: of a field of the model that changes no cost, the change of the framework's own code that makes it run so.
    """

    what: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    field: str | None = None
    got: str | None = None
    need: str | None = None
    hint: str | None = None
    pins: tuple[str, ...] = ()
    edit: str | None = None

    def __str__(self) -> str:
        place = self.file or ""
        if self.file and self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        head = ": ".join(part for part in (place, self.field or "") if part)
        values = ", ".join(
            f"{word} {value}" for word, value in (("got", self.got), ("need", self.need)) if value is not None
        )
        text = (f"{head}: " if head else "") + self.what + (f" ({values})" if values else "") + "."
        hint = self.hint or " or ".join(f"--pin {pin}" for pin in self.pins)
        text += f" Try: {hint}." if hint else ""
        return text + (f" By hand: {self.edit}." if self.edit else "")


class Place(TypedDict, total=False):
    """The fields of a problem, but for what is wrong."""

    file: str | None
    line: int | None
    column: int | None
    field: str | None
    got: str | None
    need: str | None
    hint: str | None
    pins: tuple[str, ...]
    edit: str | None


class SymconfigError(Exception):
    """Base of all errors that are shown to a person without a traceback. place: of a problem that is given as text."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | Problem | str, **place: Unpack[Place]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems.rstrip("."), **place)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@contextmanager
def reworded(change: Callable[[Problem], Problem]) -> Iterator[None]:
    """Raise an error of what is done inside with each of its problems changed."""
    try:
        yield
    except SymconfigError as error:
        raise type(error)([change(problem) for problem in error.problems]) from None


class InputError(SymconfigError):
    """The input is wrong: exit code 2."""


class InfeasibleError(SymconfigError):
    """The input is right, but no plan fits: exit code 1."""

    exit_code = 1


class FailedError(SymconfigError):
    """The input is right, but what was asked for failed or cannot be had here: exit code 1."""

    exit_code = 1
