"""What is wrong with what was asked for, gathered in all places before any of it is said."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
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
    """Return the problem with the document's file, and line and column of its field if the document has that field.
    Unchanged if the problem has a file or no field, or the document is None or has no file.
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


def check_free(out: Path, force: bool) -> None:
    """Raise InputError if files cannot be written into the folder `out`: it is a file, exists without `force`, has an
    invalid or too long name, or its innermost existing parent is a file or not writable. Called before the search.
    """
    try:
        taken, folder = out.exists() or out.is_symlink(), out.is_dir()
        if "\0" in str(out):
            raise ValueError("a NUL in the name")
    except (OSError, ValueError) as error:  # longer than a path may be, or not ours to look at
        reason = getattr(error, "strerror", None) or str(error)
        what = f"the output folder cannot be used: {reason}"
        raise InputError(what, field="out", hint="another --out") from None
    if taken and not folder:
        raise InputError("the output folder is a file", file=str(out), hint="another --out")
    if taken and not force:
        raise InputError("the output folder exists already", file=str(out), hint="--force, or another --out")
    # The innermost folder that is there, in which the others are made.
    above = next((path for path in (out, *out.absolute().parents) if path.exists()), Path(out.anchor))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "in a folder that is not yours to write" if above.is_dir() else "below a file"
        what = f"the output folder cannot be made {why}"
        raise InputError(what, file=str(out), got=str(above), hint="another --out")
