"""Files written in place: whole or not at all, with the mode and the owner that they had."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from symconfig.errors import InputError
from symconfig.existing.launch.files import leads_out
from symconfig.existing.launch.text import Text


@dataclass(frozen=True, slots=True)
class _Staged:
    """New bytes beside the file that they are for."""

    part: Path
    target: Path
    before: bytes


def write(files: Mapping[str, bytes], texts: Mapping[str, Text], root: Path) -> None:
    """Replace each file by its new bytes, in one rename each, after all of them are on the disk.

    A link is followed inside `root`, the configuration's folder. Should a rename fail, those before it are undone.
    Raises InputError: a file has changed since it was read, a link leads out of `root`, or the disk refuses.
    """
    staged: list[_Staged] = []
    try:
        for name in files:
            staged.append(_staged(Path(name), files[name], texts[name].data, root))
        _publish(staged)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=_named(error, files)) from None
    finally:
        for item in staged:
            with suppress(OSError):
                item.part.unlink(missing_ok=True)


def _staged(path: Path, data: bytes, before: bytes, root: Path) -> _Staged:
    if path.is_symlink() and leads_out(path, root):
        raise InputError(
            f"is a link that leads out of {root}, and is not followed to write",
            file=str(path),
            got=str(path.resolve()),
            hint="adapt the file that it points to",
        )
    target = path.resolve(strict=True)
    if target.read_bytes() != before:
        raise InputError("has changed since it was read", file=str(path), hint="the same command again")
    if not os.access(target, os.W_OK):
        raise InputError("is read-only", file=str(path))
    return _Staged(_part(target, data), target, before)


def _part(target: Path, data: bytes) -> Path:
    """Write the bytes in a file beside the target, on the disk, with its mode and, where that may be set, its owner."""
    status = target.stat()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(OSError, AttributeError):  # only root may give a file away
            os.chown(part, status.st_uid, status.st_gid)
        part.chmod(status.st_mode & 0o7777)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _publish(staged: list[_Staged]) -> None:
    done: list[_Staged] = []
    try:
        for item in staged:
            os.replace(item.part, item.target)
            done.append(item)
    except OSError:
        for item in done:
            with suppress(OSError):
                os.replace(_part(item.target, item.before), item.target)
        raise


def _named(error: OSError, files: Mapping[str, bytes]) -> str:
    return next(iter(files)) if len(files) == 1 or not error.filename else str(error.filename)
