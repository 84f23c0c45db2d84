"""A checkpoint's folder: what it holds, of which run, and whether its files are whole, without unpickling anything.

pickletools walks over a pickle's instructions; a name that is followed by a plain value is taken for a key with its
value, as the attributes of an argparse Namespace and the entries of a dict are written. Nothing is built or run.
"""

from __future__ import annotations

import json
import os
import pickletools
import struct
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any

from symconfig.descriptor.job import Backend
from symconfig.errors import InputError
from symconfig.runs.checkpoint.table import table

Plain = str | int | float | bool | None
MAX_BYTES = 64 * 2**20  # the pickles of common state are kilobytes
MOST = 2_000_000  # instructions of theirs that are read, some seconds; an index of tensors may have more
# What `read` looks for, in the words of an error.
LOOKED_FOR = (
    "Megatron-LM's latest_checkpointed_iteration.txt or a folder iter_0000100, DeepSpeed's latest or a folder with "
    "mp_rank_00_model_states.pt, a universal checkpoint's zero/, Hugging Face's config.json beside safetensors, or "
    "PEFT's adapter_config.json"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as read from its folder.

    kind: a name of `kinds`, with the optimizer's layout if the folder shows it. folder: as given; data: where the
    tensors are. iteration: None if not stated (weights only, a release). since, until: first and last release that
    writes this format; None: open. degrees: tp, pp, ep, dp and world size of the run, as far as stated. says: arguments
    of the run by the framework's names. size_bytes: of all files in `data`.
    """

    kind: str
    folder: Path
    data: Path
    size_bytes: int
    iteration: int | None = None
    since: str | None = None
    until: str | None = None
    degrees: Mapping[str, int] = field(default_factory=dict)
    says: Mapping[str, Plain] = field(default_factory=dict)

    @property
    def frameworks(self) -> tuple[Backend, ...]:
        """Return the backends that can save this format."""
        return table().formats[self.kind.partition(":")[0]].framework

    def to_dict(self) -> dict[str, Any]:
        """Return the checkpoint as JSON values."""
        return {**asdict(self), "folder": str(self.folder), "data": str(self.data)}


def size_bytes(folder: Path) -> int:
    """Return the sum of the sizes of all files below a folder; links are not followed."""
    return sum((Path(root) / name).lstat().st_size for root, _, names in os.walk(folder) for name in names)


def shown(names: list[str]) -> str:
    """Return at most six names joined by ", ", and how many more there are."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def numbers(says: Mapping[str, Plain], names: Mapping[str, str]) -> dict[str, int]:
    """Return {our name: value} of the entries that are integers from 0 to below 2**40; others, and booleans, are left
    out. names: our name to the entry's.
    """
    return {
        ours: value
        for ours, theirs in names.items()
        if isinstance(value := says.get(theirs), int) and not isinstance(value, bool) and 0 <= value < 2**40
    }


def text(path: Path) -> str:
    """Return at most MAX_BYTES of a file as text; invalid UTF-8 is replaced."""
    with path.open("rb") as stream:
        return stream.read(MAX_BYTES).decode("utf-8", errors="replace")


def json_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object (of at most MAX_BYTES). Raises InputError if it is no JSON or no object, OSError as
    `open`.
    """
    try:
        value = json.loads(text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", file=str(path)) from None
    if not isinstance(value, dict):
        raise InputError("holds no keys", file=str(path), got=type(value).__name__)
    return value


# What torch.save starts with where it writes no zip (torch/serialization.py, MAGIC_NUMBER, pickled).
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MAX_HEADER = 100_000_000  # bytes; safetensors refuses longer ones (tensor.rs, MAX_HEADER_SIZE)


def demand(data: Path, files: Iterable[Path]) -> None:
    """Raise InputError naming, relative to `data`, the files that are empty or truncated (`_whole`); a missing file
    raises OSError.
    """
    if broken := [str(file.relative_to(data)) for file in files if not _whole(file)]:
        need = "files as they were saved"
        raise InputError("is not whole: files are empty or cut off", file=str(data), got=shown(broken), need=need)


def _whole(file: Path) -> bool:
    """Return whether a file is complete by its format: .pt and .bin a zip with its directory, or torch's old format.
    .safetensors: `_whole_tensors`; `.metadata`: ends as a pickle does; other files need one byte. Raises OSError.
    """
    with file.open("rb") as stream:
        head = stream.read(len(_LEGACY))
        if file.suffix in (".pt", ".bin"):
            return head == _LEGACY or zipfile.is_zipfile(stream)
        if file.suffix == ".safetensors":
            return _whole_tensors(file)
        if file.name == ".metadata" and head:
            stream.seek(-1, os.SEEK_END)
            return stream.read() == b"."
    return bool(head)


def _whole_tensors(file: Path) -> bool:
    """Return whether a safetensors file has a complete JSON header of at most 100 MB and exactly the bytes of the
    tensors that it lists. Raises OSError.
    """
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


_CONSTANTS: dict[str, Plain] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MEMO = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"})
_FETCH = frozenset({"BINGET", "LONG_BINGET", "GET"})
_SILENT = frozenset({"PROTO", "FRAME"})
_PLAIN = ("UNICODE", "INT", "LONG", "FLOAT")  # words in the names of those with a plain argument


def pairs(data: bytes, most: int | None = None) -> Iterator[tuple[str, Plain]]:
    """Yield (text, plain value) for each text in a pickle that a plain value follows directly, without unpickling. A
    text is itself such a value, and is then no key of the next one; memo instructions between are skipped, integers of
    64 bits or more are no values. Ends silently where the data are truncated or no pickle. most: instructions read;
    None: all.
    """
    key: str | None = None
    for value in _tokens(data, most):
        if key is not None and not isinstance(value, _Other):
            yield key, value
            key = None
        else:
            key = value if isinstance(value, str) else None


def entries(data: bytes, last: Collection[str] = ()) -> dict[str, Plain]:
    """Return {name: plain value} of the `pairs` in a pickle's first MOST instructions, from all levels of nesting. A
    repeated name has its first value, or its last if it is in `last`.
    """
    values: dict[str, Plain] = {}
    for key, value in pairs(data, MOST):
        if key in last:
            values[key] = value
        values.setdefault(key, value)
    return values


class _Other:
    """An instruction that makes no plain value."""


def _tokens(data: bytes, most: int | None) -> Iterator[Plain | _Other]:
    """Yield the plain value of each instruction: a constant, text, float or integer, the stored value for a memo fetch;
    an _Other for others and integers of 64 bits or more, nothing for memo stores. most: instructions read; None: all.
    Ends silently at invalid data.
    """
    memo: dict[object, Plain | _Other] = {}
    last: Plain | _Other = _Other()
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of escapes in the pickle's names
            for opcode, argument, _ in islice(pickletools.genops(data), most):
                if opcode.name in _SILENT:
                    continue
                if opcode.name in _MEMO:
                    memo[int(argument) if isinstance(argument, int) else len(memo)] = last
                    continue
                fits = isinstance(argument, str | float) or (isinstance(argument, int) and argument.bit_length() < 64)
                if opcode.name in _CONSTANTS:
                    last = _CONSTANTS[opcode.name]
                elif opcode.name in _FETCH:
                    last = memo.get(argument, _Other())
                else:
                    last = argument if fits and any(word in opcode.name for word in _PLAIN) else _Other()
                yield last
    except (ValueError, IndexError, struct.error):  # cut off, or no pickle
        return


def archived(file: Path, last: Collection[str] = (), *, start: int = 0, length: int | None = None) -> dict[str, Plain]:
    """Return the pairs name: value of all levels (see `entries`) of the first data.pkl (its first MAX_BYTES) in a file
    that torch.save wrote, or in an archive that fills `length` bytes of a file from `start` on (at most MAX_BYTES are
    read). last: names whose last value counts. {} if it is unreadable, truncated (also by that limit, as the zip's
    directory is at its end) or no zip.
    """
    try:
        with file.open("rb") as whole:
            stream: IO[bytes] = whole
            if length is not None:
                whole.seek(start)
                stream = BytesIO(whole.read(min(length, MAX_BYTES)))
            with zipfile.ZipFile(stream) as archive:
                name = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
                if name is None:
                    return {}
                with archive.open(name) as pickle:
                    return entries(pickle.read(MAX_BYTES), last)
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return {}
