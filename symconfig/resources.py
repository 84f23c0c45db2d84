"""Files: where the package, its data (beside it in a checkout, inside it in a wheel) and the user's cache are, and how
files that a person names are written, and opened: regular ones only, without waiting for a pipe or a terminal."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fcntl import LOCK_EX, flock
from functools import cache
from io import BufferedReader
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self

from symconfig.errors import InputError, Problem, nearest

PACKAGE = Path(__file__).parent
MARKER = ".symconfig-incomplete"  # of a folder whose files are of two runs
_LONGEST = 200  # letters of a path that a message repeats
_ALIKE = 0.8  # least similarity of a name that a message suggests for a missing file
_KINDS = (
    (stat.S_ISDIR, "this is a folder, a file is needed"),
    (stat.S_ISFIFO, "this is a named pipe, a regular file is needed"),
    (stat.S_ISSOCK, "this is a socket, a regular file is needed"),
    (stat.S_ISCHR, "this is a device, a regular file is needed"),
    (stat.S_ISBLK, "this is a device, a regular file is needed"),
)


@cache
def data_dir(name: str) -> Path:
    """Return symconfig's folder `name` (`templates`, `model_zoo`): the checkout's, else the one in the package's
    `_data`. A folder beside the package counts only with a pyproject.toml. Cached. Raises FileNotFoundError if there is
    neither.
    """
    package = PACKAGE.resolve()
    for candidate in (package.parent / name, package / "_data" / name):
        if candidate.is_dir() and (candidate.parent != package.parent or (package.parent / "pyproject.toml").exists()):
            return candidate
    raise FileNotFoundError(f"symconfig's data folder {name!r} is missing; reinstall the package")


@cache
def json_data(path: Path) -> dict[str, Any]:
    """Return the object of one of the package's JSON files; cached, so it must not be changed."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def cache_dir() -> Path | None:
    """Return `symconfig` in $XDG_CACHE_HOME, or in ~/.cache if that is unset or relative; the folder may not exist.
    Return None for a user without a home folder.
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
    """Within the block, let `may_read` and `opened` accept only files below these folders; links are resolved. It
    replaces an outer restriction, which is restored at the end.
    """
    token = _ONLY.set(tuple(folder.resolve() for folder in folders))
    try:
        yield
    finally:
        _ONLY.reset(token)


def may_read(path: str | Path) -> bool:
    """Return whether a file, with links resolved, is below a folder of `only_below`; True without a restriction."""
    only = _ONLY.get()
    return only is None or any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in only)


def missing(path: str | Path, what: str = "there is no such file", hint: str | None = None) -> Problem:
    """Return the problem that nothing lies at a path (cut to 200 characters in the message). It suggests the
    path with the most similar name in the same folder (of its first 1,000; hidden ones do not count), else `hint`.
    """
    place, shown = Path(path), str(path)
    try:
        with os.scandir(place.parent) as entries:
            beside = [entry.name for entry in islice(entries, 1000)] if may_read(path) else []
    except (OSError, ValueError):
        beside = []
    similar = nearest(place.name, sorted(name for name in beside if name[:1] != "."), _ALIKE, most=1)
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
    return Problem(what, file=shown, hint=str(place.with_name(similar)) if similar else hint)


@contextmanager
def opened(path: str | Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading bytes and close it at the end of the block; a pipe is not waited for. Raises
    InputError with the path (cut to 200 characters) if it is missing, not allowed (`may_read`, as if missing), not a
    regular file, or cannot be opened, and for an OSError inside the block.
    """
    shown = str(path)
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
    try:
        if not may_read(path):
            raise FileNotFoundError
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise InputError([missing(path)]) from None
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
    """Return the bytes of a regular file. Raises InputError as `opened` does, and if it has more than `most_bytes`."""
    with opened(path) as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        need = f"<= {most_bytes:,}"
        raise InputError("the file is too large", file=str(path), got=f"over {most_bytes:,} bytes", need=need)
    return data


def check_output(out: Path, field: str, endings: Sequence[str], what: str, need: str) -> None:
    """Raise InputError if the output file cannot be written; nothing is created. Refused in this order: an ending (in
    lower case) not among `endings`, with the sentence `what`, `need` and the file's name; a missing parent
    folder; one without write permission; a folder at the path. field: the option that the error names.
    """
    if out.suffix.lower() not in endings:
        raise InputError(what, field=field, got=out.name, need=need)
    if not out.parent.is_dir():
        raise InputError("there is no such folder", field=field, got=str(out.parent))
    if not os.access(out.parent, os.W_OK):
        raise InputError("this folder cannot be written to", field=field, got=str(out.parent))
    if out.is_dir():
        raise InputError("this is a folder, a file is needed", field=field, got=str(out))


def check_free(path: Path, force: bool) -> None:
    """Raise InputError if the path is a symbolic link (even with force), or exists and `force` is False."""
    if path.is_symlink():
        what = "is a symbolic link; symconfig does not write through links"
        raise InputError(what, file=str(path), hint="name the file that it points to")
    if path.exists() and not force:
        raise InputError("this file exists already", file=str(path), hint="--force, or another name")


def write_file(path: Path, data: bytes) -> None:
    """Write a file by renaming a new one over the old; its folder must exist. Raises InputError if the system refuses
    it; the old file is then unchanged.
    """
    with cannot_be_written(path), Staged() as staged:
        staged.add(staged.folder(path.parent), path.name, data)
        staged.publish()


@contextmanager
def cannot_be_written(path: Path) -> Iterator[None]:
    """Turn an OSError or UnicodeEncodeError of the block into InputError "cannot be written" with the path."""
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
        """Delete the files that were not published, ignoring errors, and close all folders; exceptions are not
        suppressed.
        """
        for folder, random, _name in self._files:
            with suppress(OSError):
                os.unlink(random, dir_fd=folder)
        for folder in self._folders:
            os.close(folder)

    def folder(self, name: str | Path, above: int | None = None) -> int:
        """Open a folder and return its descriptor, which is closed at the end of the context. above: the descriptor of
        an open folder in which `name` is created if it is missing, and refused (OSError) if a link.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if above is not None:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
            flags |= os.O_NOFOLLOW
        self._folders.append(os.open(name, flags, dir_fd=above))
        return self._folders[-1]

    def add(self, folder: int, name: str, data: bytes, mode: int = 0o666, like: os.stat_result | None = None) -> None:
        """Write the bytes to a new, randomly named file in the open folder, for `publish` to rename to `name`. mode,
        like: see `create`."""
        self._files.append((folder, _random(), name))
        create(folder, self._files[-1][1], data, mode, like)

    def publish(self) -> None:
        """Rename each file over the old one, in the order of `add`, then fsync all opened folders. If a rename fails,
        later files keep their random names, and `__exit__` deletes them.
        """
        while self._files:
            folder, random, name = self._files[0]
            os.rename(random, name, src_dir_fd=folder, dst_dir_fd=folder)
            del self._files[0]
        for folder in self._folders:
            os.fsync(folder)


def create(folder: int, name: str, data: bytes, mode: int = 0o666, like: os.stat_result | None = None) -> None:
    """Write a new file in an open folder and fsync it; `like`: its owner, if allowed, and mode are copied. mode:
    permissions, before umask. Raises FileExistsError if the name exists, also as a link.
    """
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
    """Write files (relative path, bytes, permissions) into a folder, all or none; the file MARKER stays if renames are
    cut off.

    A new folder is written under a random name and renamed, without `ready` and markers. In an existing one other files
    stay, a lock is held if the file system has locks, and `ready` is called before anything but subfolders is written;
    the marker is in each folder that gets files until all are renamed. If writing fails before the renames, new markers
    are removed. Raises OSError.
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
    """Write the files into a new folder beside `out`, and rename it to `out`; if that fails, delete it and re-raise."""
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
    """Return the descriptor of the file's parent folder; missing folders are created, and opened ones added to
    `folders`.
    """
    for above in reversed(path.parents):
        if above not in folders:
            folders[above] = staged.folder(above.name, folders[above.parent])
    return folders[path.parent]


def _marked(folder: int) -> bool:
    """Create the marker in an open folder and fsync the folder; return False if a marker is there already."""
    try:
        create(folder, MARKER, b"symconfig writes this folder, or was cut off: run it again with --force.\n")
    except FileExistsError:
        return False
    os.fsync(folder)
    return True


def _random() -> str:
    return f".symconfig-{os.urandom(8).hex()}"


def appending(path: Path, fresh: bool = False) -> BinaryIO:
    """Open a regular file for reading and appending bytes; created if missing, emptied first with `fresh`. Raises
    InputError for a link, for anything but a regular file, or if it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with cannot_be_written(path):
        handle = os.open(path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise InputError("this is no regular file", file=str(path))
        if fresh:
            os.ftruncate(handle, 0)
        return os.fdopen(handle, "a+b")
