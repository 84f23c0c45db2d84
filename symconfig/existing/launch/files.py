"""Opening a file that a configuration names: a regular text file of bearable size that stays in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from errno import ELOOP
from pathlib import Path
from types import MappingProxyType

from symconfig.errors import InputError
from symconfig.existing.launch.text import Text
from symconfig.format import learn
from symconfig.resources import may_read, opened

LIMIT_BYTES = 1 << 20  # a launch script has thousands of bytes; a parse of a mebibyte takes seconds

_NONE: Mapping[str, bytes] = MappingProxyType({})
_INSTEAD: ContextVar[Mapping[str, bytes]] = ContextVar("bytes that stand for a file's own", default=_NONE)


@contextmanager
def instead(files: Mapping[str, bytes]) -> Iterator[None]:
    """Replace the contents of files (new bytes by name) inside the block, as if they had been edited."""
    token = _INSTEAD.set(files)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


_ROOT: ContextVar[Path | None] = ContextVar("the folder outside of which nothing is read", default=None)
ROOT = "--root"


@contextmanager
def below(root: str | Path | None) -> Iterator[None]:
    """Allow reading only files below this folder inside the block; None changes nothing. Raises InputError."""
    if root is not None and not Path(root).is_dir():
        raise InputError("there is no such folder", field=ROOT, got=str(root))
    token = _ROOT.set(_ROOT.get() if root is None else Path(root).resolve())
    try:
        yield
    finally:
        _ROOT.reset(token)


def readable(root: Path) -> Path:
    """Return the folder below which files may be read: the one set by `below`, else `root`."""
    return _ROOT.get() or root.resolve()


def open_text(path: Path, *, root: Path) -> Text:
    """Return the file's contents, UTF-8 without NUL of at most 1 MiB, and learn its secrets for masking.

    Inside `instead` the contents given there count. Raises InputError for anything else, and for a file outside of
    `root`
    (or of the folder set by `below`), also through a link.
    """
    data = _bytes(path, root)
    data = _INSTEAD.get().get(str(path), data)
    if b"\0" in data:
        raise InputError("is a binary file: it has a NUL byte", file=str(path), need="a text file")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            "is no text in UTF-8",
            file=str(path),
            line=line,
            got=f"byte 0x{data[error.start]:02x}",
            hint="save it as UTF-8",
        ) from None
    learn(data.decode())
    return Text(str(path), data)


def _bytes(path: Path, root: Path) -> bytes:
    """Return the file's bytes; raise InputError if it may not be read.

    That is: it does not exist, may_read refuses it, its links form a loop, its real path is outside of
    `readable(root)`, `opened` refuses it (a folder, device or pipe), or it has more than 1 MiB.
    """
    try:
        if not may_read(path):
            raise FileNotFoundError
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror or "" if isinstance(error, OSError) else ""
        if isinstance(error, RuntimeError) or getattr(error, "errno", None) == ELOOP:
            raise InputError("is a link that leads back to itself", file=str(path)) from None
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        raise InputError(
            "does not exist" if absent else f"cannot be read ({why})".replace(" ()", ""), file=str(path)
        ) from None
    inside = readable(root)
    if not real.is_relative_to(inside):
        link = leads_out(path, inside)
        what = f"is reached through a link that leads out of {inside}" if link else f"lies outside of {inside}"
        raise InputError(
            what, file=str(path), got=str(real) if link else None, hint=f"{ROOT} DIR, a folder that holds both"
        )
    try:
        with opened(real) as stream:
            data, size = stream.read(LIMIT_BYTES + 1), os.fstat(stream.fileno()).st_size
    except InputError as error:
        raise InputError(error.problems[0].what, file=str(path)) from None
    if len(data) > LIMIT_BYTES:
        need = f"at most {LIMIT_BYTES:,}"
        raise InputError("is too large for a launch configuration", file=str(path), got=f"{size:,} bytes", need=need)
    return data


def leads_out(path: Path, root: Path) -> bool:
    """Return whether a symbolic link on the path leads outside of `root`."""
    real, inside = path.resolve(), root.resolve()
    if real.is_relative_to(inside):
        return False
    absolute = Path(os.path.abspath(path))
    base = Path(os.path.abspath(root))
    # The folder itself may lie behind links (/tmp on macOS): only what comes after it counts.
    written = Path(os.path.normpath(inside / os.path.relpath(absolute, base)))
    return real not in (absolute, written)
