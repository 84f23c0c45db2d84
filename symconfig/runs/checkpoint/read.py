"""`read(folder)`: which kind of checkpoint it is, by what lies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from symconfig.errors import InputError
from symconfig.runs.checkpoint import folder_deepspeed as deepspeed
from symconfig.runs.checkpoint import folder_megatron as megatron
from symconfig.runs.checkpoint import folder_weights as weights
from symconfig.runs.checkpoint.folder import LOOKED_FOR, Checkpoint, shown

# In this order: train.py's last folder has a model beside DeepSpeed's files, and each is the more special first.
KINDS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Checkpoint]], ...] = (
    (megatron.is_root, megatron.read_root),
    (deepspeed.is_root, deepspeed.read_root),
    (deepspeed.is_tag, lambda folder: deepspeed.read_tag(folder, folder)),
    (megatron.is_iteration, lambda folder: megatron.read_iteration(folder, folder)),
    (weights.is_adapter, weights.read_adapter),
    (weights.is_model, weights.read_model),
)


def exists(folder: Path) -> bool:
    """Tell whether there is anything that looks like a checkpoint, whole or not.

    Raises InputError where nobody can tell.
    """
    with _readable(folder):
        return folder.is_dir() and any(fits(folder) for fits, _ in KINDS)


def read(folder: Path) -> Checkpoint:
    """Read the checkpoint in `folder`. Raises InputError where it is no checkpoint, or not a whole one."""
    with _readable(folder):
        if not folder.exists():
            raise InputError("there is no such folder", file=str(folder))
        if not folder.is_dir():
            raise InputError("is a file, a checkpoint is a folder", file=str(folder))
        for fits, reader in KINDS:
            if fits(folder):
                return reader(folder)
        seen = shown(sorted(path.name for path in folder.iterdir())) or "an empty folder"
    raise InputError("is no checkpoint", file=str(folder), got=seen, need=LOOKED_FOR)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn the system's errors on its files into InputError."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or folder)
        raise InputError(f"cannot be read: {error.strerror or error}", file=where) from None
    except ValueError as error:  # a name with a NUL
        raise InputError(f"cannot be read: {error}", file=repr(str(folder))) from None
