"""Files: where the package, its data (beside it in a checkout, inside it in a wheel) and the user's cache are, and how
files that a person names are written, and opened: regular ones only, without waiting for a pipe or a terminal."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fcntl import LOCK_EX, flock
from functools import cache
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from symconfig.errors import InputError

PACKAGE = Path(__file__).parent
MARKER = ".symconfig-incomplete"  # of a folder whose files are of two runs
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


_ONLY: ContextVar[tuple[Path, ...] | None] = ContextVar("folders that named files are read in", default=None)


@contextmanager
def only_below(*folders: Path) -> Iterator[None]:
    """Let files that are named be read below these folders only, as if there were no others."""
    token = _ONLY.set(tuple(folder.resolve() for folder in folders))
    try:
        yield
    finally:
        _ONLY.reset(token)


def may_read(path: str | Path) -> bool:
    """Return whether a named file may be read."""
    only = _ONLY.get()
    return only is None or any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in only)


@contextmanager
def opened(path: str | Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Raises InputError: missing, no regular file, or not to be read."""
    shown = str(path)
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
    try:
        if not may_read(path):
            raise FileNotFoundError
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
    """Refuse to replace a file without force, and a link: raise InputError."""
    if path.is_symlink():
        what = "is a symbolic link; symconfig does not write through links"
        raise InputError(what, file=str(path), hint="name the file that it points to")
    if path.exists() and not force:
        raise InputError("this file exists already", file=str(path), hint="--force, or another name")


def write_file(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises InputError."""
    with cannot_be_written(path), Staged() as staged:
        staged.add(staged.folder(path.parent), path.name, data)
        staged.publish()


@contextmanager
def cannot_be_written(path: Path) -> Iterator[None]:
    """Raise InputError with the file's name for what the system refuses."""
    try:
        yield
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or error  # without the random name
        raise InputError(f"cannot be written: {reason}", file=str(path)) from None


class Staged:
    """New files, each under a random name in its own folder until `publish` renames them over the old ones.

    A context: what was not published by its end is removed. No link is followed, and no other file is touched.
    """

    def __init__(self) -> None:
        self._folders: list[int] = []
        self._files: list[tuple[int, str, str]] = []  # the folder, the random name, the name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for folder, random, _name in self._files:
            with suppress(OSError):
                os.unlink(random, dir_fd=folder)
        for folder in self._folders:
            os.close(folder)

    def folder(self, name: str | Path, above: int | None = None) -> int:
        """Open a folder, in an open one where that is given; there it is made, and may be no link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if above is not None:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
            flags |= os.O_NOFOLLOW
        self._folders.append(os.open(name, flags, dir_fd=above))
        return self._folders[-1]

    def add(self, folder: int, name: str, data: bytes, mode: int = 0o666, like: os.stat_result | None = None) -> None:
        """Write the bytes to the disk under a random name. like: the file whose owner and mode they get."""
        self._files.append((folder, _random(), name))
        create(folder, self._files[-1][1], data, mode, like)

    def publish(self) -> None:
        """Rename each file over the old one, and write the folders' names to the disk."""
        while self._files:
            folder, random, name = self._files[0]
            os.rename(random, name, src_dir_fd=folder, dst_dir_fd=folder)
            del self._files[0]
        for folder in self._folders:
            os.fsync(folder)


def create(folder: int, name: str, data: bytes, mode: int = 0o666, like: os.stat_result | None = None) -> None:
    """Write a new file in an open folder to the disk. Raises FileExistsError, also for a link of that name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, mode, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
        if like is not None:
            with suppress(OSError):  # only root may give a file away
                os.fchown(handle, like.st_uid, like.st_gid)
            os.fchmod(handle, like.st_mode & 0o7777)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_folder(out: Path, files: Sequence[tuple[str, bytes, int]], ready: Callable[[], None]) -> None:
    """Write files (relative path, bytes, mode) into a folder: all of them, or with MARKER where that is cut off.

    A new folder is made beside its place and renamed. A folder that exists stays itself, and so does all else in it: in
    each folder that gets files the marker is written first and removed last. ready: called before anything is written,
    when nobody else writes there. Raises OSError.
    """
    if not os.path.lexists(out):
        _new_folder(out, files)
        return
    with Staged() as staged:
        folders = {PurePosixPath(): staged.folder(out)}
        with suppress(OSError):  # a file system without locks
            flock(folders[PurePosixPath()], LOCK_EX)
        for path, _, _ in files:
            _open_above(PurePosixPath(path), folders, staged)
        ready()
        ours = []
        try:
            for folder in folders.values():
                if _marked(folder):
                    ours.append(folder)
            for path, data, mode in files:
                place = PurePosixPath(path)
                staged.add(folders[place.parent], place.name, data, mode)
        except BaseException:  # nothing has changed: an interrupt, too
            for folder in ours:
                os.unlink(MARKER, dir_fd=folder)
            raise
        staged.publish()
        for folder in folders.values():
            with suppress(FileNotFoundError):
                os.unlink(MARKER, dir_fd=folder)


def _new_folder(out: Path, files: Sequence[tuple[str, bytes, int]]) -> None:
    fresh = out.with_name(_random())
    fresh.mkdir()
    try:
        with Staged() as staged:
            folders = {PurePosixPath(): staged.folder(fresh)}
            for path, data, mode in files:
                place = PurePosixPath(path)
                create(_open_above(place, folders, staged), place.name, data, mode)
            staged.publish()
            os.rename(fresh, out)
            os.fsync(staged.folder(out.parent))
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _open_above(path: PurePosixPath, folders: dict[PurePosixPath, int], staged: Staged) -> int:
    """Return the open folder of a file, which is made with those above it."""
    for above in reversed(path.parents):
        if above not in folders:
            folders[above] = staged.folder(above.name, folders[above.parent])
    return folders[path.parent]


def _marked(folder: int) -> bool:
    """Write the marker; False where one is there, of a run that was cut off."""
    try:
        create(folder, MARKER, b"symconfig writes this folder, or was cut off: run it again with --force.\n")
    except FileExistsError:
        return False
    os.fsync(folder)
    return True


def _random() -> str:
    return f".symconfig-{os.urandom(8).hex()}"


def appending(path: Path, fresh: bool = False) -> BinaryIO:
    """Open a regular file to append to it; fresh: emptied first. Raises InputError, also for a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with cannot_be_written(path):
        handle = os.open(path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise InputError("this is no regular file", file=str(path))
        if fresh:
            os.ftruncate(handle, 0)
        return os.fdopen(handle, "a+b")
