"""Files: where the package, its data (beside it in a checkout, inside it in a wheel) and the user's cache are, and how
files that a person names are written, and opened: regular ones only, without waiting for a pipe or a terminal."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path

from symconfig.errors import InputError

PACKAGE = Path(__file__).parent
_LONGEST = 200  # letters of a path that a message repeats
_KINDS = (
    (stat.S_ISDIR, "this is a folder, a file is needed"),
    (stat.S_ISFIFO, "this is a named pipe, a regular file is needed"),
    (stat.S_ISSOCK, "this is a socket, a regular file is needed"),
    (stat.S_ISCHR, "this is a device, a regular file is needed"),
    (stat.S_ISBLK, "this is a device, a regular file is needed"),
)


@cache
def data_dir(name: str) -> Path:
    """Return the folder `templates` or `model_zoo`. Raises FileNotFoundError on a broken installation."""
    package = PACKAGE.resolve()
    for candidate in (package.parent / name, package / "_data" / name):
        if candidate.is_dir() and (candidate.parent != package.parent or (package.parent / "pyproject.toml").exists()):
            return candidate
    raise FileNotFoundError(f"symconfig's data folder {name!r} is missing; reinstall the package")


def cache_dir() -> Path | None:
    """Return symconfig's folder in this user's cache, by XDG's rule; it may not be there.

    None for a user without a home, as in some containers.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # no HOME, and nobody of this number in the list of users
        return None
    return root / "symconfig"


@contextmanager
def opened(path: str | Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Raises InputError: missing, no regular file, or not to be read."""
    shown = str(path)
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise InputError("there is no such file", file=shown) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the file cannot be read: {reason}", file=shown) from None
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        what = next((what for kind, what in _KINDS if kind(mode)), "a regular file is needed")
        raise InputError(what, file=shown)
    with os.fdopen(handle, "rb") as stream:
        try:
            yield stream
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"the file cannot be read: {reason}", file=shown) from None


def content(path: str | Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file. Raises InputError as `opened` does, and for a larger one."""
    with opened(path) as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        need = f"<= {most_bytes:,}"
        raise InputError("the file is too large", file=str(path), got=f"over {most_bytes:,} bytes", need=need)
    return data


def check_output(out: Path, field: str, endings: Sequence[str], what: str, need: str, got: str | None = None) -> None:
    """Refuse an output file that cannot be written: raise InputError. Asked before the work, not after it. what: it is
    where it has none of the endings."""
    if out.suffix.lower() not in endings:
        raise InputError(what, field=field, got=got or out.name, need=need)
    if not out.parent.is_dir():
        raise InputError("there is no such folder", field=field, got=str(out.parent))
    if not os.access(out.parent, os.W_OK):
        raise InputError("this folder cannot be written to", field=field, got=str(out.parent))
    if out.is_dir():
        raise InputError("this is a folder, a file is needed", field=field, got=str(out))


def check_free(path: Path, force: bool) -> None:
    """Refuse to replace a file without force: raise InputError."""
    if path.exists() and not force:
        raise InputError("this file exists already", file=str(path), hint="--force, or another name")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a file beside `path`, which takes its place once it is written: whole, or not at all. Raises InputError."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror or error}", file=str(path)) from None
