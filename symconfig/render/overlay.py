"""A user's own templates, over those of a target or beside them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from symconfig.errors import InputError, Problem, among
from symconfig.render.files import ENDING
from symconfig.render.target import Target

_RESERVED = tuple(f"{name}{ENDING}" for name in ("plan.json", "manifest.json", "trace.json"))  # files of any target


def overlaid(known: Mapping[str, Target], templates: Path) -> dict[str, Target]:
    """Return the targets with the user's folders in `templates` searched first.

    A folder named like a target adds templates and replaces those of the same name; hidden folders are ignored. Raises
    InputError with each folder of another name, and each template whose file symconfig writes itself.
    """
    if "\0" in str(templates) or not templates.is_dir():
        raise InputError("there is no such folder", file=repr(str(templates)), field="--templates")
    folders = {path.name: path for path in sorted(templates.iterdir()) if path.is_dir() and path.name[0] != "."}
    problems = [
        Problem("is no target", file=str(path), **among(name, known))
        for name, path in folders.items()
        if name not in known
    ]
    problems += [
        Problem("would stand in the place of a file that symconfig writes itself", file=str(path / name))
        for path in folders.values()
        for name in _RESERVED
        if (path / name).exists()
    ]
    if problems:
        raise InputError(problems)
    return {
        name: replace(target, folders=(folders[name], *target.folders)) if name in folders else target
        for name, target in known.items()
    }


def digest(templates: Path | None) -> str | None:
    """Return the SHA-256 over names and bytes of all visible files in the folder; None without a folder."""
    if templates is None:
        return None
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(templates).as_posix(), path) for path in _files(templates)):
        if not any(part.startswith(".") for part in name.split("/")):
            content = path.read_bytes()
            total.update(f"{name}\0{len(content)}\0".encode())
            total.update(content)
    return total.hexdigest()


def _files(templates: Path) -> Iterator[Path]:
    """Yield the paths of the files under the folder; links to folders are not followed."""
    for folder, _, names in os.walk(templates):
        yield from (path for name in names if (path := Path(folder, name)).is_file())
