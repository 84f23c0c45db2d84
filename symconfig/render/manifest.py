"""manifest.json: which files were written from a plan, for what, and what was in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.strict import Strict, validate
from symconfig.errors import InputError, Problem
from symconfig.format import json_text
from symconfig.render.files import File, Files
from symconfig.resources import MARKER

NAME = "manifest.json"
SCHEMA = "symconfig.files/1"
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(Strict):
    """manifest.json, as `manifest` writes it."""

    schema_: Literal["symconfig.files/1"] = Field(alias="schema")
    target: str = Field(min_length=1)
    launchers: tuple[str, ...]
    templates: Sha256 | None
    files: dict[str, Sha256]


def manifest(files: Files, target: str, launchers: Sequence[str], templates: Path | None) -> File:
    """Return manifest.json: the SHA-256 of every file by path, target, launchers, and the digest of the user's
    templates, if any.
    """
    data = {
        "schema": SCHEMA,
        "target": target,
        "launchers": list(launchers),
        "templates": digest(templates),
        "files": {item.path: hashlib.sha256(item.text.encode()).hexdigest() for item in files},
    }
    return File(NAME, json_text(data))


def read_manifest(folder: Path) -> Manifest | None:
    """Return the folder's manifest; None if it has none. Raises InputError if the folder holds MARKER (its writing was
    cut off), or the manifest is invalid or names a path outside the folder.
    """
    path = folder / NAME
    if os.path.lexists(folder / MARKER):
        what = "was written in part only: symconfig was cut off while it wrote this folder"
        raise InputError(what, file=str(folder), hint="the command that wrote it, with --force")
    if not path.is_file():
        return None
    manifest = validate(load_json_strict(path), Manifest)
    wrong = [name for name in manifest.files if os.path.isabs(name) or ".." in Path(name).parts or "\0" in name]
    if wrong:
        raise InputError(
            [
                Problem("is not a path inside the folder", file=str(path), field="files", got=repr(name))
                for name in wrong
            ]
        )
    return manifest


def digest(templates: Path | None) -> str | None:
    """Return the SHA-256 over paths, sizes and bytes of all files below the folder, sorted; None without a folder.
    Paths with a part that begins with a dot are skipped, and links to folders are not followed.
    """
    if templates is None:
        return None
    total = hashlib.sha256()
    found = (Path(folder, name) for folder, _, names in os.walk(templates) for name in names)
    for name, path in sorted((path.relative_to(templates).as_posix(), path) for path in found if path.is_file()):
        if not any(part.startswith(".") for part in name.split("/")):
            content = path.read_bytes()
            total.update(f"{name}\0{len(content)}\0".encode())
            total.update(content)
    return total.hexdigest()
