"""The result of adapting a configuration: what was changed, what could not be placed, and the files as they are now."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.text import Place

SCHEMA = "symconfig.adapt/1"
NO_PLACE = "no place was found where it would reach the training and change nothing else"
ELSE_TOO = "to write it there would change something else as well"
NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed option, launcher number, environment variable or key.

    was, now: its value before and after; None: it was added or removed; "": a switch. place: where it was; for an
    addition, where it is now.
    """

    option: str
    was: str | None
    now: str | None
    place: Place

    def __str__(self) -> str:
        """Return "place: option was -> now" on one line, or "... added", "... removed"."""
        if self.was is None:
            done = f"{f'{self.option} {self.now}'.strip()} added"
        elif self.now is None:
            done = f"{f'{self.option} {self.was}'.strip()} removed"
        else:
            done = f"{self.option} {self.was} -> {self.now}"
        return f"{self.place}: {done}"


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A value of the plan that could not be written and has to be set by hand.

    now: the value; None: the option has to be removed. why: a clause to follow "because". place: where to look, if
    known.
    """

    option: str
    now: str | None
    why: str
    place: Place | None = None

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place is not None else ""
        what = f"remove {self.option}" if self.now is None else f"put {f'{self.option} {self.now}'.strip()}"
        return f"{where}{what} by hand, because {self.why}"


@dataclass(frozen=True, slots=True)
class Flaw:
    """An error that an audit finds in the result. rule: its name. before: the original had it, too."""

    rule: str
    problem: Problem
    before: bool

    def __str__(self) -> str:
        whose = "It was there before." if self.before else "The plan's values bring it."
        return f"{self.problem} [{self.rule}] {whose}"


@dataclass(frozen=True, slots=True)
class Adapted:
    """The result of adapting a configuration.

    reading: the original. files: new bytes of the changed files, by name. unplaced: values to be set by hand. notes:
    sentences about the result. flaws: errors in its audit.
    """

    reading: Reading
    files: Mapping[str, bytes]
    changes: tuple[Change, ...]
    unplaced: tuple[Unplaced, ...]
    notes: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()

    @property
    def done(self) -> bool:
        """Return whether no value is left to be set by hand, and the audit of the result finds no error."""
        return not self.unplaced and not self.flaws

    @property
    def diff(self) -> str:
        """Return the unified diff of all changed files, in the order in which they were read; empty if none changed."""
        return "".join(
            _unified(text.file, text.data, self.files[text.file])
            for text in self.reading.texts
            if text.file in self.files
        )

    def to_dict(self, written: bool) -> dict[str, Any]:
        """Return the document that --json prints, but for the path of the plan, which the command adds. written:
        whether the changed files are on disk already.
        """

        def at(place: Place | None) -> dict[str, Any]:
            return {"file": place and place.file, "line": place and place.line}

        return {
            "schema": SCHEMA,
            "file": self.reading.file,
            "changes": [
                {"option": each.option, "from": each.was, "to": each.now, **at(each.place)} for each in self.changes
            ],
            "unplaced": [
                {"option": each.option, "to": each.now, "why": each.why, **at(each.place)} for each in self.unplaced
            ],
            "errors": [
                {
                    "rule": flaw.rule,
                    "option": flaw.problem.field,
                    **{name: getattr(flaw.problem, name) for name in ("what", "got", "need", "file", "line")},
                    "before": flaw.before,
                }
                for flaw in self.flaws
            ],
            "notes": list(self.notes),
            "diff": self.diff,
            "written": written,
        }


def _unified(file: str, before: bytes, after: bytes) -> str:
    """Return the unified diff of two versions of a file, as `patch` takes it; empty where they are equal.

    Lines end at line feeds only, so carriage returns stay in them; bytes that are not UTF-8 are replaced.
    """
    name = file.lstrip("/")
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", data.decode("utf-8", "replace")) for data in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in lines)
