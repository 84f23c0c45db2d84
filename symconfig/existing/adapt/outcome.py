"""What adapting a configuration came to: what was changed, what could not be placed, and the files as they are now."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.text import Place

SCHEMA = "symconfig.adapt/1"

NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Change:
    """One option, launcher number, variable or key that says something else now.

    was, now: its value; None: it was not there, or is not any more; "" for a switch. place: where it stood; of what was
    added, where it stands now.
    """

    option: str
    was: str | None
    now: str | None
    place: Place

    def __str__(self) -> str:
        if self.was is None:
            return f"{self.place}: {f'{self.option} {self.now}'.strip()} added"
        if self.now is None:
            return f"{self.place}: {f'{self.option} {self.was}'.strip()} removed"
        return f"{self.place}: {self.option} {self.was} -> {self.now}"


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Something that the plan decides and that a person has to put in. now: the value; None: the option has to go.

    why: a clause that follows "because". place: where to look.
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
class Adapted:
    """reading: the configuration as it was. files: the bytes of every file that changes, by its name.

    notes: what a person should know of the result, as sentences.
    """

    reading: Reading
    files: Mapping[str, bytes]
    changes: tuple[Change, ...]
    unplaced: tuple[Unplaced, ...]
    notes: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """All that changes, as `diff -u` prints it."""
        return "".join(
            _unified(text.file, text.data, self.files[text.file])
            for text in self.reading.texts
            if text.file in self.files
        )

    def to_dict(self, written: bool) -> dict[str, Any]:
        """The contract of --json. written: whether the files have it now."""
        return {
            "schema": SCHEMA,
            "file": self.reading.file,
            "changes": [
                {
                    "option": change.option,
                    "from": change.was,
                    "to": change.now,
                    "file": change.place.file,
                    "line": change.place.line,
                }
                for change in self.changes
            ],
            "unplaced": [
                {
                    "option": item.option,
                    "to": item.now,
                    "why": item.why,
                    "file": None if item.place is None else item.place.file,
                    "line": None if item.place is None else item.place.line,
                }
                for item in self.unplaced
            ],
            "notes": list(self.notes),
            "diff": self.diff,
            "written": written,
        }


def _unified(file: str, before: bytes, after: bytes) -> str:
    """Show two versions of a file as `diff -u` does, whatever their line ends; nothing where they are the same.

    `patch` takes it.
    """
    name = file.lstrip("/")
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in lines)


def _lines(data: bytes) -> list[str]:
    """Lines as diff knows them: only a line feed ends one."""
    parts = data.decode("utf-8", "replace").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
