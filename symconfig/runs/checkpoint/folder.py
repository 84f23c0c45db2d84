"""A checkpoint's folder: what it holds, of which run, and whether its files are whole, without unpickling anything."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symconfig.descriptor.job import Backend
from symconfig.errors import InputError
from symconfig.runs.checkpoint.pickled import MAX_BYTES, Plain
from symconfig.runs.checkpoint.table import table

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
    of the run by the framework's names. size_bytes: of all files in `data`. notes: sentences for the user.
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
    notes: tuple[str, ...] = ()

    @property
    def frameworks(self) -> tuple[Backend, ...]:
        """Return the backends that can save this format."""
        return table().formats[self.kind.partition(":")[0]].framework

    def to_dict(self) -> dict[str, Any]:
        """Return the checkpoint as JSON values."""
        return {
            "kind": self.kind,
            "folder": str(self.folder),
            "data": str(self.data),
            "size_bytes": self.size_bytes,
            "iteration": self.iteration,
            "since": self.since,
            "until": self.until,
            "degrees": dict(self.degrees),
            "says": dict(self.says),
            "notes": list(self.notes),
        }


def size_bytes(folder: Path) -> int:
    """Return the sum of the sizes of all files below a folder; links are not followed."""
    return sum((Path(root) / name).lstat().st_size for root, _, names in os.walk(folder) for name in names)


def shown(names: list[str]) -> str:
    """Return at most six names joined by ", ", and how many more there are."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def numbers(says: Mapping[str, Plain], names: Mapping[str, str]) -> dict[str, int]:
    """Return {our name: value} of the entries that are integers from 0 to 2**40; others are left out."""
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
    """Return a file's JSON object. Raises InputError if it is no JSON or no object."""
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
    """Raise InputError naming those of a checkpoint's existing files that are empty or truncated. A missing file
    raises OSError.
    """
    if broken := [str(file.relative_to(data)) for file in files if not _whole(file)]:
        need = "files as they were saved"
        raise InputError("is not whole: files are empty or cut off", file=str(data), got=shown(broken), need=need)


def _whole(file: Path) -> bool:
    """Return whether a file is complete by its format: a zip's directory, a pickle's end, a safetensors header;
    others if not empty.
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
    """Return whether a safetensors file has a complete header and exactly the bytes of the tensors that it lists."""
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
