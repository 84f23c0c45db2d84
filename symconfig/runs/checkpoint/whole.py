"""Whether files of a checkpoint are there to their last byte, by what stands at the start and the end of each.

A file that a run was killed over, or that a full disk or a copy cut short, is empty or stops in the middle; frameworks
find that out only after every rank has started.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from symconfig.errors import InputError, Problem
from symconfig.runs.checkpoint.folder import shown

# What torch.save starts with where it writes no zip (torch/serialization.py, MAGIC_NUMBER, pickled).
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_STOP = b"."  # the last instruction of every pickle
_MAX_HEADER = 100_000_000  # bytes; safetensors refuses longer ones (tensor.rs, MAX_HEADER_SIZE)


def demand(data: Path, files: Iterable[Path]) -> None:
    """Raises InputError that names those of the files that are empty or cut off. They have to be there."""
    broken = [str(file.relative_to(data)) for file in files if not _CHECKS.get(file.suffix or file.name, _filled)(file)]
    if broken:
        raise InputError(
            Problem(
                "is not whole: files are empty or cut off",
                file=str(data),
                got=shown(broken),
                need="files as they were saved",
            )
        )


def _filled(file: Path) -> bool:
    return file.stat().st_size > 0


def _archive(file: Path) -> bool:
    """What torch.save wrote: a zip, whose directory is its end; of the older format only the start shows."""
    if zipfile.is_zipfile(file):
        return True
    with file.open("rb") as stream:
        return stream.read(len(_LEGACY)) == _LEGACY


def _pickle(file: Path) -> bool:
    with file.open("rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read() == _STOP


def _tensors(file: Path) -> bool:
    """safetensors: 8 bytes with the length of a JSON header, the header, and the tensors as long as it says."""
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


_CHECKS: Mapping[str, Callable[[Path], bool]] = {
    ".pt": _archive,
    ".bin": _archive,
    ".safetensors": _tensors,
    ".metadata": _pickle,
}
