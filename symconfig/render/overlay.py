"""A user's own templates: over those of a target, beside them, or as targets of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from symconfig.errors import InputError, Problem
from symconfig.render.target import Source

ABOUT = "target.yaml"


def overlaid(known: Mapping[str, Source], templates: Path) -> dict[str, Source]:
    """The targets with the folders of `templates` over them. Raises InputError with all that is wrong there.

    A folder with a target's name adds to its templates and replaces those of the same name; another one needs a
    target.yaml that says whose variables its templates use (`base`) and what it `does`.
    """
    if not templates.is_dir():
        what = "this is no folder" if templates.exists() else "there is no such folder"
        raise InputError(Problem(what, file=str(templates), field="--templates"))
    found = dict(known)
    problems: list[Problem] = []
    for folder in sorted(path for path in templates.iterdir() if path.is_dir()):
        if (folder / ABOUT).exists():
            try:
                found[folder.name] = _own(folder, known)
            except InputError as error:
                problems += error.problems
        elif folder.name in known:
            base = known[folder.name]
            found[folder.name] = replace(base, folders=(folder, *base.folders))
        else:
            problems.append(Problem("is neither a target nor a new one", file=str(folder), need=", ".join(known),
                                    hint=f"{ABOUT} in it, with base: and does:"))
    if problems:
        raise InputError(problems)
    return found


def _own(folder: Path, known: Mapping[str, Source]) -> Source:
    """A target that target.yaml makes of another one's variables."""
    from symconfig.descriptor.yaml_strict import load_yaml_strict

    document = load_yaml_strict(folder / ABOUT)
    data = document.data if isinstance(document.data, dict) else {}
    base = known.get(str(data.get("base")))
    if base is None:
        raise InputError(Problem("is not a target", file=str(folder / ABOUT), field="base", got=repr(data.get("base")),
                                 need=" or ".join(known)))
    return replace(base, name=folder.name, does=str(data.get("does", "")), texts=lambda plan: (), folders=(folder,))


def digest(templates: Path | None) -> str | None:
    """SHA-256 over the names and bytes of all that lies in the folder; none of no folder."""
    if templates is None:
        return None
    total = hashlib.sha256()
    for path in sorted(path for path in templates.rglob("*") if path.is_file()):
        content = path.read_bytes()
        total.update(f"{path.relative_to(templates).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
