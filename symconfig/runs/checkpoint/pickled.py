"""What a pickle says in plain words and numbers, read without unpickling: nothing in it is built or run.

pickletools walks over the instructions; a name that is followed by a plain value is taken for a key with its value, as
the attributes of an argparse Namespace and the entries of a dict are written.
"""

from __future__ import annotations

import pickletools
import struct
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any

Plain = str | int | float | bool | None
MAX_BYTES = 64 * 2**20  # the pickles of common state are kilobytes
MOST = 2_000_000  # instructions of theirs that are read, some seconds; an index of tensors may have more

_CONSTANTS: dict[str, Plain] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MEMO = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"})
_FETCH = frozenset({"BINGET", "LONG_BINGET", "GET"})
_SILENT = frozenset({"PROTO", "FRAME"})


def pairs(data: bytes, most: int | None = None) -> Iterator[tuple[str, Plain]]:
    """Yield (text, plain value) for each text in a pickle that a plain value follows, in order, without unpickling.

    Stops silently where the data are truncated or no pickle. most: instructions read; None: all.
    """
    key: str | None = None
    for value in _tokens(data, most):
        if key is not None and not isinstance(value, _Other):
            yield key, value
            key = None
        else:
            key = value if isinstance(value, str) else None


def entries(data: bytes, last: Collection[str] = ()) -> dict[str, Plain]:
    """Return the pairs of all levels as a dict; a repeated name has its first value, or its last if in `last`."""
    values: dict[str, Plain] = {}
    for key, value in pairs(data, MOST):
        if key in last:
            values[key] = value
        values.setdefault(key, value)
    return values


class _Other:
    """An instruction that makes no plain value."""


def _tokens(data: bytes, most: int | None) -> Iterator[Plain | _Other]:
    """Yield the plain value of each instruction, or an _Other; memo references are resolved. Ends at invalid data."""
    memo: dict[int, Plain | _Other] = {}
    last: Plain | _Other = _Other()
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of escapes in the pickle's names
            for opcode, argument, _ in islice(pickletools.genops(data), most):
                if opcode.name in _SILENT:
                    continue
                if opcode.name in _MEMO:
                    memo[int(argument) if isinstance(argument, int) else len(memo)] = last
                    continue
                last = _value(opcode.name, argument, memo)
                yield last
    except (ValueError, IndexError, struct.error):  # cut off, or no pickle
        return


def _value(opcode: str, argument: Any, memo: Mapping[int, Plain | _Other]) -> Plain | _Other:
    """Return an instruction's plain value; an _Other for other instructions and for integers of 64 bits or more."""
    if opcode in _CONSTANTS:
        return _CONSTANTS[opcode]
    if opcode in _FETCH:
        return memo.get(argument, _Other())
    plain = any(word in opcode for word in ("UNICODE", "INT", "LONG", "FLOAT"))
    fits = isinstance(argument, str | float) or (isinstance(argument, int) and argument.bit_length() < 64)
    return argument if plain and fits else _Other()


def archived_file(file: Path, last: Collection[str] = ()) -> dict[str, Plain]:
    """Return the entries of a file that torch.save wrote; {} if it is no such archive, unreadable or truncated."""
    try:
        with file.open("rb") as stream:
            return _archived(stream, last)
    except OSError:
        return {}


def archived_at(file: Path, start: int, length: int) -> dict[str, Plain]:
    """Return the entries of a torch.save archive at bytes start to start + length of a file; {} as `archived_file`."""
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            return _archived(BytesIO(stream.read(min(length, MAX_BYTES))))
    except (OSError, ValueError):
        return {}


def _archived(stream: IO[bytes], last: Collection[str] = ()) -> dict[str, Plain]:
    """Return the entries of the data.pkl in a zip; {} if there is none or the zip is broken."""
    try:
        with zipfile.ZipFile(stream) as archive:
            name = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
            if name is None:
                return {}
            with archive.open(name) as pickle:
                return entries(pickle.read(MAX_BYTES), last)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return {}
