"""A folder of rendered files held against its manifest, and against what would be written now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from symconfig.descriptor.document import shorten
from symconfig.errors import InputError
from symconfig.plans.file import MAX_BYTES
from symconfig.plans.plan import Plan
from symconfig.render.files import File, Files, line
from symconfig.render.manifest import NAME, Manifest, digest, read_manifest
from symconfig.resources import content
from symconfig.runs.replan.diff import differences

# edited: not what was written; stale: as it was written, and something else would be written now; input: a model or a
# cluster of that name is another one now; answer: another plan is best, or this one is predicted otherwise.
Kind = Literal["edited", "missing", "stale", "templates", "input"]
_SHOWN = 3  # fields of an input that are named
_WIDE, _BEFORE = 100, 30  # letters of a line that are shown, and of those the ones before what differs


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference from the files as written. line: the first differing one, from 1; written: its text as written;
    found: its present text, or for a stale file the text that would be written now.
    """

    kind: Kind
    path: str
    said: str
    line: int | None = None
    written: str | None = None
    found: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of `symconfig verify --frozen`.

    plan: path of the plan file. manifest: None if only a plan was checked. notes: what could not be checked. templates:
    own templates. inputs: {"model" or "cluster": name} of those that changed. again: the command that writes everything
    again, if it is not `render`.
    """

    place: Path
    plan: Path
    manifest: Manifest | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    templates: Path | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    again: str = ""

    @property
    def passed(self) -> bool:
        return not self.findings


def replaced(folder: Path, files: Files) -> list[str]:
    """Return the paths of existing files that `files` would overwrite with another content and that are not as
    symconfig wrote them. Without a readable manifest every differing file counts. Raises InputError for an unreadable
    file.
    """
    try:
        manifest = read_manifest(folder)
    except InputError:
        manifest = None
    known = {} if manifest is None else {**manifest.files, NAME: _sha256(_content_if_file(folder / NAME) or b"")}
    there = {item.path: _content_if_file(folder / item.path) for item in files}
    return [
        item.path
        for item in files
        if (content := there[item.path]) not in (None, item.text.encode())
        and _sha256(content or b"") != known.get(item.path)
    ]


def of_files(folder: Path, manifest: Manifest, now: Mapping[str, File]) -> Iterator[Finding]:
    """Yield a finding for each file of the manifest that is missing, edited or stale, and for files that are new now.
    now: files that would be written, by path; {}: unknown, then staleness is not checked. A file whose text is what
    would be written now is no finding, even if it was edited, unless it lost its executable bit. Raises InputError for
    an unreadable file.
    """
    for path, sha256 in manifest.files.items():
        content = _content_if_file(folder / path)
        fresh = now.get(path)
        if content is None:
            yield Finding("missing", path, "was written, and is not there")
        elif fresh is not None and content == fresh.text.encode():
            if fresh.executable and not os.access(folder / path, os.X_OK):
                yield Finding("edited", fresh.path, "was written as a program, and may not be executed any more")
        elif _sha256(content) != sha256 and fresh is None:
            yield Finding("edited", path, "is not what was written")
        elif fresh is not None:
            text, stale = fresh.text.encode(), _sha256(content) == sha256
            place, old, new = _first_difference(*((content, text) if stale else (text, content)))
            what = "symconfig would write something else now" if stale else "is not what was written"
            if not stale and _sha256(text) != sha256:
                what += "; and symconfig would write something else now, with which it is compared"
            yield Finding("stale" if stale else "edited", path, what, place, old, new)
        elif now:
            yield Finding("stale", path, "symconfig would not write it any more")
    for path in now:
        if path not in manifest.files:
            yield Finding("stale", path, "symconfig would write it now, and did not then")


def of_templates(manifest: Manifest, folder: Path | None) -> Iterator[Finding]:
    """Yield a finding if the digest of the own templates in `folder` is not the manifest's; None stands for the
    built-in templates in both. Raises InputError if the manifest has own templates and `folder` is None.
    """
    if manifest.templates is not None and folder is None:
        raise InputError(
            "these files were written with templates of your own, without which nothing can be said of them",
            field="--templates",
            hint="--templates DIR",
        )
    if digest(folder) != manifest.templates:
        what = "were none when this was written" if manifest.templates is None else "are not as when this was written"
        yield Finding("templates", str(folder), what)


def of_input(plan: Plan, kind: Literal["model", "cluster"], now: BaseModel) -> Iterator[Finding]:
    """Yield one finding if the model or cluster `now` differs from the plan's; its text has the first _SHOWN differing
    fields with both values, and how many more there are.
    """
    before: BaseModel = getattr(plan, kind)
    changed = differences(before.model_dump(mode="json", by_alias=True), now.model_dump(mode="json", by_alias=True))
    if changed:
        named = ", ".join(
            f"{each.field} {shorten(each.before, 40)} -> {shorten(each.after, 40)}" for each in changed[:_SHOWN]
        )
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        yield Finding("input", f"inputs.{kind}", f"{getattr(plan.job, kind)} is another one now: {named}{more}")


def _content_if_file(path: Path) -> bytes | None:
    """Return a file's bytes; None if it is missing, a folder or a pipe."""
    return content(path, MAX_BYTES) if path.is_file() else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _first_difference(one: bytes, other: bytes) -> tuple[int | None, str, str]:
    """Return (number of the first differing line from 1, the line in one, in the other), as printable text of at most
    _WIDE letters: of a longer line from shortly before the difference, after "…"; (None, "", "") if equal.
    """
    pairs = zip_longest(one.splitlines(keepends=True), other.splitlines(keepends=True), fillvalue=b"")
    for number, (first, second) in enumerate(pairs, start=1):
        if first != second:
            if first.rstrip(b"\r\n") != second.rstrip(b"\r\n"):  # else the line ends are what differs
                first, second = first.rstrip(b"\r\n"), second.rstrip(b"\r\n")
            same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
            start = max(0, sum(1 for _ in same) - _BEFORE)
            shown = []
            for raw in (first, second):
                cut = start if len(raw) > _WIDE else 0
                text = line(raw[cut:].decode("utf-8", errors="backslashreplace"))
                shown.append(("…" if cut else "") + shorten(text, _WIDE))
            return number, shown[0], shown[1]
    return None, "", ""
