"""Puts new files into a folder as one: a kill at any moment leaves its old files or its new ones, whole.

Linux swaps two folders in one step (renameat2, RENAME_EXCHANGE): the new one has the new files, and hard links to
whatever else is in the old one. Where that cannot be had, files are replaced one after the other, and a journal says
which, so that the next run ends what a kill has cut off. What kills leave beside the folder is swept up then, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE of linux/fs.h, AT_FDCWD of fcntl.h
_JOURNAL, _BEFORE = ".journal", ".before"


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Wait until nobody else writes beside `out`, whose parent exists, and end what was cut off there.

    The lock is on the parent itself: the system drops it with the process.
    """
    held = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        _finish(out)
        try:
            yield
        finally:
            _finish(out)  # of an interrupt
    finally:
        os.close(held)


def staging_for(out: Path) -> Path:
    """Return a new folder beside `out`, on the same file system, which only its owner may enter."""
    return Path(tempfile.mkdtemp(prefix=f"{_prefix(out)}new.", dir=out.parent))


def put(staging: Path, names: Sequence[str], out: Path) -> None:
    """Make the staged files those of `out`, which keeps all else that it has. names: the staged files."""
    here = out.exists() and out.samefile(Path.cwd())  # replaced, it would leave the caller's shell in a lost folder
    if not here and (not out.exists() or not any(out.iterdir())):
        staging.chmod(0o777 & ~_umask())
        os.rename(staging, out)  # over an empty folder, too
    elif here or not _swapped(staging, names, out):
        _replaced(staging, names, out)
    _synced(out.parent)


def write_synced(path: Path, text: str, mode: int) -> None:
    """Write a file so that it is on the disk."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(mode & ~_umask())


def _prefix(out: Path) -> str:
    return f".{out.name}.symconfig-"


def _finish(out: Path) -> None:
    """End or undo what earlier writers left beside `out`."""
    for left in sorted(out.parent.glob(f"{_prefix(out).replace('[', '[[]')}*")):
        kind, _, number = left.name.removeprefix(_prefix(out)).partition(".")
        if (left / _JOURNAL).is_file():
            _roll_forward(left, out)
        elif kind == "swap" and number != str(left.stat().st_ino) and out.is_dir():
            _moved_over(left, out)  # it was the old folder
        shutil.rmtree(left, ignore_errors=True)


def _swapped(staging: Path, names: Sequence[str], out: Path) -> bool:
    """Swap the folders; False where the system cannot, and nothing has changed."""
    with suppress(OSError):
        shutil.copymode(out, staging)
        _linked(out, staging, frozenset(names))
        _synced(staging)
        # A folder of this name that is not of this number was swapped.
        ready = staging.with_name(f"{_prefix(out)}swap.{staging.stat().st_ino}")
        os.rename(staging, ready)
        if _exchange(ready, out):
            _synced(out.parent)
            _moved_over(ready, out)
            shutil.rmtree(ready, ignore_errors=True)
            return True
        os.rename(ready, staging)
    return False


def _linked(old: Path, new: Path, but: frozenset[str]) -> None:
    """Give the new folder all that the old one has, but for some files. Raises OSError for what cannot be linked."""
    for folder, folders, files in os.walk(old):
        below = Path(folder).relative_to(old)
        for name in folders:
            if (old / below / name).is_symlink():
                files.append(name)
            else:
                (new / below / name).mkdir(exist_ok=True)
                shutil.copystat(old / below / name, new / below / name)
        for name in files:
            if (below / name).as_posix() not in but:
                os.link(old / below / name, new / below / name, follow_symlinks=False)


def _exchange(one: Path, other: Path) -> bool:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _moved_over(old: Path, out: Path) -> None:
    """Move what came into the old folder while the new one was made."""
    for folder, folders, files in os.walk(old):
        below = Path(folder).relative_to(old)
        for name in (*folders, *files):
            target = out / below / name
            if not os.path.lexists(target):
                os.rename(old / below / name, target)
        folders[:] = [name for name in folders if (old / below / name).is_dir()]


def _replaced(staging: Path, names: Sequence[str], out: Path) -> None:
    """Replace the files one after the other; an error puts back what was there."""
    saved = staging / _BEFORE
    for name in names:
        if (out / name).exists():
            (saved / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(out / name, saved / name)
    write_synced(staging / _JOURNAL, json.dumps(list(names)), 0o600)
    _synced(staging)
    try:
        _roll_forward(staging, out)
    except BaseException:  # an interrupt, too
        for name in names:
            with suppress(OSError):
                if (saved / name).exists():
                    os.replace(saved / name, out / name)
                elif not (staging / name).exists():
                    (out / name).unlink(missing_ok=True)
        (staging / _JOURNAL).unlink(missing_ok=True)
        raise


def _roll_forward(staging: Path, out: Path) -> None:
    for name in json.loads((staging / _JOURNAL).read_text(encoding="utf-8")):
        if (staging / name).exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, out / name)


def _synced(folder: Path) -> None:
    """Write a folder's names to the disk."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
