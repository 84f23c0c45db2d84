"""What several commands share: printing, notes, the values of options, files as output."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.errors import InputError, Problem
from symconfig.format import masked

if TYPE_CHECKING:
    from symconfig.api.problems import Problems
    from symconfig.descriptor.cluster import ClusterDescriptor
    from symconfig.report.grid import Block

# A field of a problem that is about a cluster, or of one among several, and what of it is changed.
_CLUSTER = re.compile(r"cluster(?:\.(?P<field>.+))?|(?:job|sweep)\.cluster(?:\[\d+\])?(?:: (?P<swept>.+))?", re.DOTALL)
INTERRUPTED = 130  # exit code
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 1.0, 86400.0


def say(blocks: Sequence[Block]) -> None:
    from symconfig.report.grid import show

    show(blocks, sys.stdout)


def note(text: str) -> None:
    """Write a message beside the answer, as wide as the page."""
    from symconfig.format import clean
    from symconfig.report.grid import page_width, wrapped

    print(wrapped(clean(text), page_width(sys.stderr)), file=sys.stderr)


def one_at_a_time(problems: Problems, arguments: Namespace, places: Sequence[str], *names: str) -> None:
    """Refuse the options that are for one place alone where several are given."""
    for name in names if len(places) > 1 else ():
        if getattr(arguments, name):
            problems.add(Problem("is for one at a time", field=f"--{name}", got=f"{len(places)} places"))


def as_changes(problem: Problem, changed: Iterable[str], named: str = "--cluster") -> Problem:
    """Rewrite a problem of the cluster in the words of the options. named: the option that names it."""
    match = _CLUSTER.fullmatch(problem.field or "")
    if match is None:
        return problem
    field = match["field"] or match["swept"] or ""
    by_set = next((name for name in changed if f"{field}.".startswith(f"{name}.")), None)
    if by_set is not None:
        return replace(problem, field=f"--set {by_set}", file=None, line=None, column=None)
    return problem if problem.file else replace(problem, field=f"{named}: {field}" if field else named)


def named_cluster(name: str, option: str = "--cluster") -> ClusterDescriptor:
    """Load the cluster that the option names; a name that is none is the option's mistake."""
    from symconfig.descriptor.load import load_cluster

    try:
        return load_cluster(name)
    except InputError as error:
        raise InputError([as_changes(each, (), option) for each in error.problems]) from None


def span_s(field: str, text: str, least_s: float, most_s: float) -> float:
    """Read the seconds that the option names."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (isfinite(value) and least_s <= value <= most_s):
        raise InputError(Problem("wrong value", field=field, got=text, need=f"seconds from {least_s:g} to {most_s:g}"))
    return value


def whole(option: str, text: str | None) -> int | None:
    """Read the number that an option has. Raises InputError."""
    if text is None or (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        return None if text is None else int(text)
    raise InputError(Problem("wrong value", field=option, got=text, need="a whole number above 0"))


def timeout(text: str | None) -> float | None:
    """Read --timeout; nothing where it is not given."""
    return None if text is None else span_s("--timeout", text, LEAST_TIMEOUT_S, MOST_TIMEOUT_S)


def check_yaml(field: str, out: Path, force: bool) -> None:
    """Refuse a YAML file of this option that cannot be written. Asked before the work, not after it."""
    check_output(field, out, force, ("YAML", ".yaml", ".yml"))


def check_output(field: str, out: Path, force: bool, kind: tuple[str, ...]) -> None:
    """Refuse an output file of any kind that cannot be written: its name, and the endings that it may have."""
    name, *endings = kind
    if out.suffix.lower() not in endings:
        need = f"a name that ends in {endings[0]}"
        raise InputError(Problem(f"this file is {name}", field=field, got=out.name, need=need))
    if not out.parent.is_dir():
        raise InputError(Problem("there is no such folder", field=field, got=str(out.parent)))
    if not os.access(out.parent, os.W_OK):
        raise InputError(Problem("this folder cannot be written to", field=field, got=str(out.parent)))
    if out.is_dir():
        raise InputError(Problem("this is a folder, a file is needed", field=field, got=str(out)))
    if out.exists() and not force:
        raise InputError(Problem("this file exists already", file=str(out), hint="--force, or another name"))


def write_text(path: Path, text: str, force: bool) -> None:
    """Write one file, whole or not at all."""
    write_bytes(path, text.encode(), force)


def write_bytes(path: Path, content: bytes, force: bool) -> None:
    """Write one file, whole or not at all."""
    if path.exists() and not force:
        raise InputError(Problem("this file exists already", file=str(path), hint="--force, or another name"))
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(Problem(f"cannot be written: {error.strerror}", file=str(path))) from None


PAGE = ("a page", ".html", ".htm")


def page_path(text: str | None, force: bool, problems: Problems) -> Path | None:
    """Return the file that --html names, if it does; problems of its path are added to `problems`."""
    if text is None:
        return None
    path = Path(text)
    problems.collect(lambda: check_output("--html", path, force, PAGE))
    return path


def write_page(path: Path, html: str, force: bool) -> None:
    """Write one page, and a note that it is there."""
    write_text(path, html, force)
    note(f"wrote {path}")


def wrote(out: Path, written: Sequence[Path], as_json: bool, remarks: Sequence[str] = ()) -> None:
    """Name the files that were written, and say what a person should know of them."""
    names = ", ".join(str(path.relative_to(out)) for path in written)
    text = f"wrote {len(written)} files into {out}: {names}"
    if as_json:
        for line in (text, *remarks):
            note(line)
    else:
        sys.stdout.write("\n")
        say([text])
        for line in remarks:
            say([line])


def replaced(names: Sequence[str]) -> None:
    """Say whose edits went with --force."""
    note(f"note: replaced what was not as symconfig had written it: {', '.join(names)}")


def write_data(text: str) -> None:
    """Write what another program reads (JSON, words, a file) to standard output: in UTF-8, whatever the locale is."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout.write(text)


def print_json(value: Any) -> None:
    """Print JSON to standard output: the one place that does."""
    from symconfig.format import json_text

    write_data(masked(json_text(value)))
