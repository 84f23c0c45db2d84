"""The one error hierarchy. Every error is a list of sentences to a person, and knows its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict, TypeVar, Unpack

T = TypeVar("T")
G = TypeVar("G")

# What is wrong with a field, where those who read a file for a purpose of their own say more of it.
MISSING_FIELD = "this field is missing"
UNKNOWN_FIELD = "unknown field"
FEW = 8  # names that a message lists beside the nearest ones
_WITHIN = 0.05  # of the best similarity: another name that may be meant


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
        """Return `file:line:column: field: what (got X, need Y). Try: hint. By hand: edit.` without the parts that are
        not set. Line and column appear only with a file, the column only with a line. Without a hint, "Try" lists
        `--pin PIN` for each pin, joined by "or".
        """
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


class Right(TypedDict, total=False):
    """What would be right, as a problem says it."""

    need: str | None
    hint: str | None


class Place(Right, total=False):
    """The fields of a problem, but for what is wrong."""

    file: str | None
    line: int | None
    column: int | None
    field: str | None
    got: str | None
    pins: tuple[str, ...]
    edit: str | None


def nearest(word: str, known: Iterable[str], alike: float = 0.6, *, most: int = 3) -> str | None:
    """Return up to `most` known names similar to a word, the most similar first, joined as `a or b`; None if none is
    similar. A name counts if its difflib ratio is at least `alike` (0 to 1) and within 0.05 of the best one; if the
    best is equal (ratio 1), only equal ones count. Case, leading dashes, and `-` for `_` are ignored; 200 characters of
    the word are compared. Equally similar names are in the order of `known`, of a set in alphabetical order.
    """
    matcher, scored = difflib.SequenceMatcher(b=_plain(word[:200])), list[tuple[float, str]]()
    for name in sorted(known) if isinstance(known, (set, frozenset)) else known:
        matcher.set_seq1(_plain(name))
        scored.append((matcher.ratio(), name))
    scored.sort(key=lambda item: -item[0])
    least = max(alike, scored[0][0] - (_WITHIN if scored[0][0] < 1 else 0.0)) if scored else 1.0
    return " or ".join(name for score, name in scored[:most] if score >= least) or None


def _plain(name: str) -> str:
    return name.lower().lstrip("-").replace("_", "-")


def among(word: str, known: Iterable[str]) -> Right:
    """Return the fields `need` and `hint` of a problem about a word that is not a known name. hint: the nearest names
    (`nearest`), or None. need: all names as "one of …" if none is near or there are at most FEW, else None.
    """
    names = list(known)
    hint = nearest(word, names)
    return {"need": f"one of {', '.join(names)}" if hint is None or len(names) <= FEW else None, "hint": hint}


class SymconfigError(Exception):
    """Base of all errors that are shown to a person without a traceback. place: of a problem that is given as text."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | Problem | str, **place: Unpack[Place]) -> None:
        """Store `problems` as a tuple, and their texts, one a line, as the exception's message. A text becomes one
        Problem without its final period, with the fields in `place`; these are ignored otherwise.
        """
        if isinstance(problems, str):
            problems = Problem(problems.rstrip("."), **place)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@contextmanager
def reworded(change: Callable[[Problem], Problem]) -> Iterator[None]:
    """Re-raise a SymconfigError of the `with` block as the same class, each of its problems replaced by
    `change(problem)`. Other exceptions pass.
    """
    try:
        yield
    except SymconfigError as error:
        raise type(error)([change(problem) for problem in error.problems]) from None


class InputError(SymconfigError):
    """The input is wrong: exit code 2."""


class Problems:
    """A collector of problems from independent checks, to report them at once."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self._found = list(problems)

    @property
    def all(self) -> tuple[Problem, ...]:
        """Return the problems so far without duplicates."""
        return tuple(dict.fromkeys(self._found))

    def add(self, *problems: Problem) -> None:
        self._found += problems

    def collect(self, make: Callable[[], T]) -> T | None:
        """Return `make()`; after an InputError record its problems and return None. Other errors pass."""
        try:
            return make()
        except InputError as error:
            self._found += error.problems
            return None

    def read(self, make: Callable[[G], T], given: G | None) -> T | None:
        """Return `make(given)`; None if `given` is None, or after an InputError as of `collect`."""
        return None if given is None else self.collect(lambda: make(given))

    def check(self) -> None:
        """Raise InputError with the problems so far, if there are any."""
        if self._found:
            raise InputError(self.all)

    def need(self, value: T | None) -> T:
        """Return a collected value. Raises InputError with the problems so far, if there are any or it is None."""
        self.check()
        assert value is not None, "None without a problem"
        return value


class InfeasibleError(SymconfigError):
    """The input is right, but no plan fits: exit code 1."""

    exit_code = 1


class FailedError(SymconfigError):
    """The input is right, but what was asked for failed or cannot be had here: exit code 1."""

    exit_code = 1
