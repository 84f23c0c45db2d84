"""A user's own templates: over those of a target, beside them, or as targets of their own."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from symconfig.descriptor.strict import Strict
from symconfig.descriptor.validate import validate
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.errors import InputError, Problem, nearest
from symconfig.render.files import ENDING
from symconfig.render.target import Target

ABOUT = "target.yaml"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
# Files that symconfig writes itself, whatever the target.
_RESERVED = ("plan.json", "manifest.json", "trace.json")


class About(Strict):
    """target.yaml: what makes a folder of templates a target of its own."""

    schema_: Literal["symconfig.target/1"] = Field(alias="schema")
    base: str = Field(min_length=1, description="the target whose variables its templates are given")
    does: str = Field(min_length=1, description="what it writes, in a line")
    texts: bool = Field(default=False, description="whether the base's files that no template makes are written, too")


def overlaid(known: Mapping[str, Target], templates: Path) -> dict[str, Target]:
    """Return the targets with the user's folders in `templates` on top. Raises InputError with all that is wrong there.

    A folder named like a target adds templates and replaces those of the same name; any other folder needs a
    target.yaml that says whose variables its templates use (`base`) and what it `does`. Hidden folders are ignored.
    """
    if not templates.is_dir():
        what = "this is no folder" if templates.exists() else "there is no such folder"
        raise InputError(what, file=str(templates), field="--templates")
    problems = [*_links(templates), *_misnamed(templates)]
    targets = dict(known)
    for folder in sorted(path for path in templates.iterdir() if path.is_dir() and not path.is_symlink()):
        if folder.name.startswith("."):
            continue  # a version control's
        try:
            targets[folder.name] = _source(folder, known)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return targets


def _source(folder: Path, known: Mapping[str, Target]) -> Target:
    """Return the target of one folder: a known one with these templates first, or a new one. Raises InputError."""
    about, base = folder / ABOUT, known.get(folder.name)
    if base is not None and about.exists():
        raise InputError(
            f"there is a target {folder.name!r} already; without this file the folder's templates go over its own",
            file=str(about),
        )
    if base is not None:
        return replace(base, folders=(folder, *base.folders), foreign=True)
    if about.exists():
        return _own(folder, known)
    meant = nearest(folder.name, known)
    raise InputError(
        "is neither a target nor a new one",
        file=str(folder),
        need=", ".join(known),
        hint=f"{meant}, or {ABOUT} in it" if meant else f"{ABOUT} in it, with base: and does:",
    )


def _own(folder: Path, known: Mapping[str, Target]) -> Target:
    """Return a new target that uses the variables of the one in its target.yaml, and only its own templates.

    Raises InputError. Its templates can extend or include those of any target by their path, as megatron/launch.sh.j2.
    """
    document = load_yaml_strict(folder / ABOUT)
    about = validate(document, About)
    problems = []
    if not _NAME.fullmatch(folder.name):
        problems.append(
            Problem(
                "is no name of a target",
                file=str(folder),
                got=repr(folder.name),
                need="lower case letters, digits, dots, dashes and underscores",
            )
        )
    base = known.get(about.base)
    if base is None:
        problems.append(
            document.problem(
                "is not a target",
                ("base",),
                got=repr(about.base),
                need=" or ".join(known),
                hint=nearest(about.base, known),
            )
        )
    if not any(folder.rglob(f"*{ENDING}")):
        problems.append(Problem("has no template", file=str(folder), need=f"a file that ends in {ENDING}"))
    if problems or base is None:
        raise InputError(problems)
    return replace(
        base,
        name=folder.name,
        does=about.does,
        texts=base.texts if about.texts else lambda plan: (),
        folders=(folder,),
        foreign=True,
    )


def _links(templates: Path) -> Iterator[Problem]:
    """Yield a problem for each symbolic link in the folder."""
    for path in _walk(templates, Path.is_symlink):
        yield Problem(
            "is a symbolic link, and templates are read from this folder only",
            file=str(path),
            hint="copy what it points to",
        )


def _misnamed(templates: Path) -> Iterator[Problem]:
    """Yield a problem for each template that has no name, or whose file symconfig writes itself."""
    for path in _walk(templates, Path.is_file):
        names = path.relative_to(templates).parts[1:]
        if not names or not path.name.endswith(ENDING):
            continue
        if path.name == ENDING:
            yield Problem(f"is a template without a name before {ENDING}, which would be its file's", file=str(path))
        elif names[0] in _RESERVED or (len(names) == 1 and names[0].removesuffix(ENDING) in _RESERVED):
            yield Problem("would stand in the place of a file that symconfig writes itself", file=str(path))


def _walk(templates: Path, wanted: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield the paths under the folder for which `wanted` is true, in sorted order; links are not followed.

    Raises InputError for a NUL in the folder's name.
    """
    if "\0" in str(templates):
        raise InputError("is no folder: a NUL in the name", file=repr(str(templates)))
    for folder, folders, files in os.walk(templates):
        folders.sort()
        yield from (path for name in sorted((*folders, *files)) if wanted(path := Path(folder, name)))


def digest(templates: Path | None) -> str | None:
    """Return the SHA-256 over names and bytes of all visible files in the folder; None without a folder."""
    if templates is None:
        return None
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(templates).as_posix(), path) for path in _walk(templates, Path.is_file)):
        if not any(part.startswith(".") for part in name.split("/")):
            content = path.read_bytes()
            total.update(f"{name}\0{len(content)}\0".encode())
            total.update(content)
    return total.hexdigest()
