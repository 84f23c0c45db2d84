"""What a target hands out: texts by relative path, and writing them all or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from symconfig.errors import InputError, Problem, Problems
from symconfig.format import lone
from symconfig.resources import MARKER, cannot_be_written, write_folder

ENDING = ".j2"  # of a template; the rest of its name is its file's
# Characters that no shell, shell array or shellcheck reads a meaning into. The comma is left out: SC2054.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:./-]+")


@dataclass(frozen=True, slots=True)
class File:
    """One text. `path` is relative, with forward slashes, and stays inside the output folder."""

    path: str
    text: str
    executable: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if the path is empty, absolute, or has a `..`."""
        parts = PurePosixPath(self.path)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ValueError(f"not a path inside the output folder: {self.path!r}")


@dataclass(frozen=True, slots=True)
class Files:
    """Files in the order in which they are shown."""

    items: tuple[File, ...]

    def __iter__(self) -> Iterator[File]:
        return iter(self.items)

    def __getitem__(self, path: str) -> str:
        """Return the text of the file at this path. Raises KeyError."""
        for item in self.items:
            if item.path == path:
                return item.text
        raise KeyError(path)

    def paths(self) -> tuple[str, ...]:
        return tuple(item.path for item in self.items)


def word(value: object) -> str:
    """Return a value as the parser reads it: floats with every digit, all else as text."""
    return repr(value) if isinstance(value, float) else str(value)


def sh(value: object) -> str:
    """Return the value quoted as one word for bash: bare if safe, else in single quotes, or as `$'...'`; '' for empty
    text. `$'...'` is for text with control or bidi characters, whose UTF-8 bytes are written in hex.
    """
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    if all(map(_shown, text)):
        return "'" + text.replace("'", "'\"'\"'") + "'"
    written = (f"\\{c}" if c in "\\'" else c if _shown(c) else "".join(f"\\x{b:02x}" for b in c.encode()) for c in text)
    return "$'" + "".join(written) + "'"


def _shown(char: str) -> bool:
    """Return whether an editor shows this character as it is; lone surrogates count, as `write` refuses them."""
    return char.isprintable() or char in "\n\t" or lone(char)


def line(value: object) -> str:
    """Return the value as one printable line; line ends and control characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def slug(value: object) -> str:
    """Return the value with each run of other characters than A-Z a-z 0-9 . _ - as one "-", cut to 64; "job" if that is
    empty."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-.")[:64] or "job"


def write(files: Files, out: Path, force: bool = False, look: Callable[[], None] = lambda: None) -> tuple[Path, ...]:
    """Write all files under `out`, or none, and return their absolute paths; missing folders are created.

    force: also into a folder that exists, whose other files stay. look: called before files of an existing folder
    are replaced, while no other process writes there. Raises InputError as `check_folder`, or if writing fails.
    """
    out = Path(os.path.abspath(out))  # without following links
    with cannot_be_written(out):
        check_folder(out, force, files.paths())
        contents = [(item.path, item.text.encode(), 0o777 if item.executable else 0o666) for item in files]
        out.parent.mkdir(parents=True, exist_ok=True)
        write_folder(out, contents, look)
    return tuple(out / item.path for item in files)


def check_folder(out: Path, force: bool, files: Iterable[str] = ()) -> None:
    """Raise InputError if files cannot be written into the folder `out`: it has an invalid or too long name, is a link
    or a file, holds something without `force`, or its innermost existing parent is a file or not writable. Else one
    with all obstacles to the paths `files` inside it.
    """
    try:
        taken, folder = os.path.lexists(out), out.is_dir()
        out.exists()  # raises for a name that is too long
        if "\0" in str(out):
            raise ValueError("a NUL in the name")
    except (OSError, ValueError) as error:  # longer than a path may be, or not ours to look at
        reason = getattr(error, "strerror", None) or str(error)
        what = f"the output folder cannot be used: {reason}"
        raise InputError(what, field="out", hint="another --out") from None
    if out.is_symlink():
        what, hint = "is a symbolic link; symconfig does not write through links", "the folder that it points to"
        raise InputError(what, file=str(out), hint=hint)
    if taken and not folder:
        raise InputError("the output folder is a file", file=str(out), hint="another --out")
    if taken and not force and any(os.scandir(out)):
        raise InputError("the output folder exists already", file=str(out), hint="--force, or another --out")
    # The innermost folder that is there, in which the others are made.
    above = next((path for path in (out, *out.absolute().parents) if path.exists()), Path(out.anchor))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "in a folder that is not yours to write" if above.is_dir() else "below a file"
        what = f"the output folder cannot be made {why}"
        raise InputError(what, file=str(out), got=str(above), hint="another --out")
    problems = Problems()
    for path in (*files, MARKER) if taken else ():
        for step in (out / path, *(out / path).parents):
            if step == out:
                break
            if step.is_symlink():
                problems.add(Problem("is a symbolic link in the way", file=str(step)))
            elif step == out / path and step.is_dir():
                problems.add(Problem("is a folder where a file must go", file=str(step)))
            elif step != out / path and step.exists() and not step.is_dir():
                problems.add(Problem("is a file where a folder must go", file=str(step)))
    problems.check()
