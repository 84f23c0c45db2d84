"""Whether files of a checkpoint are there to their last byte, and ask for nothing that no checkpoint needs.

A file that a run was killed over, or that a full disk or a copy cut short, is empty or stops in the middle; frameworks
find that out only after every rank has started. A pickle that asks for another name than a checkpoint's is a program,
and whoever loads it runs it (`pickle_names`).
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

from symconfig.errors import InputError
from symconfig.runs.checkpoint.folder import shown
from symconfig.runs.checkpoint.pickle_names import Names, NotWholeError, TooLongError
from symconfig.runs.checkpoint.pickled import MAX_BYTES

# What torch.save starts with where it writes no zip (torch/serialization.py, MAGIC_NUMBER, pickled).
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LEGACY_PICKLES = 5  # its number, protocol, machine, state and keys of tensors, whose bytes follow
_STOP = b"."  # the last instruction of every pickle
_MAX_HEADER = 100_000_000  # bytes; safetensors refuses longer ones (tensor.rs, MAX_HEADER_SIZE)


def demand(data: Path, files: Iterable[Path]) -> None:
    """Demand whole and harmless files.

    Raise InputError that names the empty or cut ones, or what one of them would run. They have to be there.
    """
    names = Names()
    broken = [str(file.relative_to(data)) for file in files if not _whole(file, names)]
    if broken:
        raise InputError(
            "is not whole: files are empty or cut off",
            file=str(data),
            got=shown(broken),
            need="files as they were saved",
        )


def demand_stretch(file: Path, start: int, length: int) -> None:
    """Demand that an archive of torch.save within a file runs nothing: raise InputError.

    One that is cut off is let pass.
    """
    with file.open("rb") as stream:
        stream.seek(start)
        part = io.BytesIO(stream.read(min(length, MAX_BYTES)))
    names = Names()
    _judged(file, names, lambda: _zip(part, names))


def _whole(file: Path, names: Names) -> bool:
    return _judged(file, names, lambda: _CHECKS.get(file.suffix or file.name, _filled)(file, names))


def _judged(file: Path, names: Names, check: Callable[[], bool]) -> bool:
    try:
        whole = check()
    except NotWholeError:
        whole = False
    except TooLongError:
        raise InputError("has a longer pickle than any checkpoint's", file=str(file)) from None
    if names.foreign:
        raise InputError(
            "asks for names that no checkpoint needs, and to load it is to run them",
            file=str(file),
            got=shown(sorted(names.foreign)),
            hint="do not load it, and ask who wrote it",
        )
    return whole


def _filled(file: Path, names: Names) -> bool:
    return file.stat().st_size > 0


def _archive(file: Path, names: Names) -> bool:
    """Check an archive of torch.save: a zip, whose directory is its end, or pickles one after the other."""
    with file.open("rb") as stream:
        if zipfile.is_zipfile(stream):
            return _zip(stream, names)
        stream.seek(0)
        data, place = stream.read(MAX_BYTES), 0
    if not data.startswith(_LEGACY):
        return False
    for _ in range(_LEGACY_PICKLES):
        place = names.read(data, place)
    return True


def _zip(stream: IO[bytes], names: Names) -> bool:
    """Check every pickle of an archive: there is one, and of several nobody knows which is loaded."""
    try:
        with zipfile.ZipFile(stream) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
            for name in pickles:
                with archive.open(name) as pickle:
                    data = pickle.read(MAX_BYTES + 1)
                if len(data) > MAX_BYTES:
                    raise TooLongError
                names.read(data)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return False
    return bool(pickles)


def _pickle(file: Path, names: Names) -> bool:
    """Check a pickle: an index of tensors may be longer than what is read of it.

    Then its end shows that it is whole.
    """
    with file.open("rb") as stream:
        data = stream.read(MAX_BYTES)
        try:
            names.read(data)
        except NotWholeError:
            if len(data) < MAX_BYTES:
                return False
        except TooLongError:
            pass
        else:
            return True
        stream.seek(-1, os.SEEK_END)
        return stream.read() == _STOP


def _tensors(file: Path, names: Names) -> bool:
    """Check safetensors: 8 bytes with the length of a JSON header, the header, and the tensors as long as it says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            return False
        (length,) = struct.unpack("<Q", start)
        if length > min(_MAX_HEADER, size - 8):
            return False
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return bool(max(ends, default=0) == size - 8 - length)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return False


_CHECKS: Mapping[str, Callable[[Path, Names], bool]] = {
    ".pt": _archive,
    ".bin": _archive,
    ".safetensors": _tensors,
    ".metadata": _pickle,
}
