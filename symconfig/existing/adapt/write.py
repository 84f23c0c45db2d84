"""Files written in place: whole or not at all, with the mode and the owner that they had."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from symconfig.errors import InputError
from symconfig.existing.launch.files import leads_out
from symconfig.existing.launch.text import Text
from symconfig.resources import Staged, cannot_be_written


def write(files: Mapping[str, bytes], texts: Mapping[str, Text], root: Path) -> None:
    """Replace each file by its new bytes, in one rename each, after all of them are on the disk.

    A link inside `root`, the configuration's folder, stands for the file that it points to there. Raises InputError: a
    file has changed since it was read, a link leads out of `root`, or the disk refuses.
    """
    with Staged() as staged:
        for name, data in files.items():
            with cannot_be_written(Path(name)):
                target = _target(Path(name), texts[name].data, root)
                staged.add(staged.folder(target.parent), target.name, data, like=target.stat())
        with cannot_be_written(root):
            staged.publish()


def _target(path: Path, before: bytes, root: Path) -> Path:
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
    return target
