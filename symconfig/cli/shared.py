"""What several commands share: printing, notes, the values of options, files as output."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig import resources
from symconfig.errors import InputError, Problem, reworded
from symconfig.format import masked

if TYPE_CHECKING:
    from symconfig.api.planning import Wanted
    from symconfig.api.problems import Problems
    from symconfig.descriptor.cluster import ClusterDescriptor
    from symconfig.plans.plan import Plan
    from symconfig.report.grid import Block
    from symconfig.report.progress import Progress

# A field of a problem that is about a cluster, or of one among several, and what of it is changed.
_CLUSTER = re.compile(r"cluster(?:\.(?P<field>.+))?|(?:job|sweep)\.cluster(?:\[\d+\])?(?:: (?P<swept>.+))?", re.DOTALL)
INTERRUPTED = 130  # exit code
MOST_TOP = 1000  # candidates, or other ways, that are ranked
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 1.0, 86400.0


def say(blocks: Sequence[Block]) -> None:
    from symconfig.report.grid import show

    show(blocks, sys.stdout)


def show(arguments: Namespace, data: Callable[[], Any], blocks: Callable[[], Sequence[Block]]) -> None:
    """Print an answer: as JSON where that is asked for, else as text."""
    if arguments.json:
        print_json(data())
    else:
        say(blocks())


def working() -> Progress:
    """Return a line of progress on standard error, as a context."""
    from symconfig.report.progress import Progress

    return Progress(sys.stderr)


def note(text: str) -> None:
    """Write a message beside the answer, as wide as the page."""
    from symconfig.format import clean
    from symconfig.report.grid import page_width, wrapped

    print(wrapped(clean(text), page_width(sys.stderr)), file=sys.stderr)


def one_at_a_time(problems: Problems, arguments: Namespace, places: Sequence[str], *names: str) -> None:
    """Refuse the options that are for one place alone where several are given."""
    if len(places) > 1:
        refuse(problems, arguments, names, "is for one at a time", got=f"{len(places)} places")


def refuse(problems: Problems, arguments: Namespace, names: Iterable[str], what: str, **more: Any) -> None:
    """Refuse those of the named options that are given. more: what else is said of each, as a Problem has it."""
    for name in names:
        if getattr(arguments, name) not in (None, False, []):
            problems.add(Problem(what, field="--" + name.replace("_", "-"), **more))


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

    with reworded(lambda problem: as_changes(problem, (), option)):
        return load_cluster(name)


def span_s(field: str, text: str, least_s: float, most_s: float) -> float:
    """Read the seconds that the option names."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (isfinite(value) and least_s <= value <= most_s):
        raise InputError("wrong value", field=field, got=text, need=f"seconds from {least_s:g} to {most_s:g}")
    return value


def whole(option: str, text: str | None) -> int | None:
    """Read the number that an option has. Raises InputError."""
    if text is None or (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        return None if text is None else int(text)
    raise InputError("wrong value", field=option, got=text, need="a whole number above 0")


def ranged(option: str, text: str, least: int, most: int) -> int:
    """Read the number within bounds that an option has. Raises InputError."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise InputError("out of range", field=option, got=text, need=f"a whole number from {least} to {most}")
    return int(text)


def timeout(text: str | None) -> float | None:
    """Read --timeout; nothing where it is not given."""
    return None if text is None else span_s("--timeout", text, LEAST_TIMEOUT_S, MOST_TIMEOUT_S)


# Kinds of files that are written: the name of each, and the endings that it may have.
YAML, JSON, SARIF, PYTHON, PAGE = (
    ("YAML", ".yaml", ".yml"),
    ("JSON", ".json"),
    ("SARIF", ".sarif", ".json"),
    ("Python", ".py"),
    ("a page", ".html", ".htm"),
)


def output(problems: Problems, option: str, text: str | None, force: bool, kind: tuple[str, ...]) -> Path | None:
    """Return the file that an option names, if it does; what keeps it from being written is added to `problems`."""
    path = file_of(text)
    problems.read(lambda path: check_output(option, path, force, kind), path)
    return path


def check_output(field: str, out: Path, force: bool, kind: tuple[str, ...]) -> None:
    """Refuse an output file that cannot be written: raise InputError. Asked before the work, not after it."""
    name, *endings = kind
    resources.check_output(out, field, endings, f"this file is {name}", f"a name that ends in {endings[0]}")
    resources.check_free(out, force)


def write_text(path: Path, text: str, force: bool) -> None:
    """Write one file, whole or not at all."""
    resources.check_free(path, force)
    resources.write_file(path, text.encode())


def write_page(path: Path, html: str, force: bool) -> None:
    """Write one page, and a note that it is there."""
    write_text(path, html, force)
    note(f"wrote {path}")


def file_of(text: str | None) -> Path | None:
    """Return the path that an option names, if it does."""
    return None if text is None else Path(text)


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


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that are asked for beside an answer: a plan's folder, and its page."""

    out: Path | None
    files: Wanted | None
    html: Path | None


def answer(
    arguments: Namespace,
    plan: Plan,
    outputs: Outputs,
    data: Callable[[], Any],
    shown: Sequence[Block],
    before: Sequence[Block] = (),
) -> None:
    """Write a plan's files, print the answer, and write what else is asked for. before: what its page says first."""
    from symconfig.api.planning import remarks, write

    out, files = outputs.out, outputs.files
    written = write(plan, out, files, force=arguments.force, tell=replaced) if out and files else []
    show(arguments, data, lambda: shown)
    if outputs.html is not None:
        from symconfig.api.page import plan_page

        write_page(outputs.html, plan_page(plan, files, before), arguments.force)
    if out and files:
        wrote(out, written, arguments.json, remarks(plan, files))


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
