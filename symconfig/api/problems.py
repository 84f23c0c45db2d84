"""What is wrong with what was asked for, gathered in all places before any of it is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from symconfig.descriptor.document import Document
from symconfig.errors import InputError, Problem

T = TypeVar("T")
G = TypeVar("G")


class Problems:
    """A collector of problems from independent checks, to report them at once."""

    def __init__(self, problems: Sequence[Problem] = ()) -> None:
        self._found = list(problems)

    @property
    def all(self) -> tuple[Problem, ...]:
        """Return the problems so far without duplicates."""
        return tuple(dict.fromkeys(self._found))

    def add(self, problem: Problem) -> None:
        self._found.append(problem)

    def collect(self, make: Callable[[], T], asked_in: Document | None = None) -> T | None:
        """Return `make()`; after an InputError record its problems and return None. Other errors pass. asked_in:
        document whose file and line are given to problems that have a field and no file.
        """
        try:
            return make()
        except InputError as error:
            self._found += [_placed(problem, asked_in) for problem in error.problems]
            return None

    def read(self, make: Callable[[G], T], given: G | None) -> T | None:
        """Return `make(given)`; None if `given` is None, or after an InputError as of `collect`."""
        return None if given is None else self.collect(lambda: make(given))


def _placed(problem: Problem, document: Document | None) -> Problem:
    """Return the problem with the document's file, and line and column of its field, or of the nearest section
    around it; without these if the document has no places. Unchanged if the problem has a file or no field, or the
    document is None or has no file.
    """
    if document is None or not document.file or problem.file is not None or problem.field is None:
        return problem
    place = document.place(tuple(problem.field.split(".")))
    return replace(
        problem, file=document.file, line=place.line if place else None, column=place.column if place else None
    )


def stated(problem: Problem, document: Document) -> Problem:
    """Return the problem with the line of its field if the document has that field; else unchanged."""
    there = problem.field is not None and document.place(tuple(problem.field.split("."))) is not None
    return _placed(problem, document) if there else problem
