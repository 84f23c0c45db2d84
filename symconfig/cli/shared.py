"""What several commands share: printing, notes, the values of options, files as output."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig import resources
from symconfig.errors import InputError, Problem, reworded
from symconfig.format import masked

if TYPE_CHECKING:
    from symconfig.api.planning import Wanted
    from symconfig.descriptor.cluster import ClusterDescriptor
    from symconfig.plans.plan import Plan
    from symconfig.report.grid import Block
    from symconfig.report.progress import Progress

INTERRUPTED = 130  # exit code
MOST_TOP = 1000  # candidates, or other ways, that are ranked


def say(blocks: Sequence[Block]) -> None:
    from symconfig.report.grid import show

    show(blocks, sys.stdout)


def show(arguments: Namespace, data: Callable[[], Any], blocks: Callable[[], Sequence[Block]]) -> None:
    """Print an answer: as JSON with --json, else as blocks; only the needed one of `data` and `blocks` is called."""
    if arguments.json:
        print_json(data())
    else:
        say(blocks())


def working() -> Progress:
    """Return a progress line on standard error, as a context manager."""
    from symconfig.report.progress import Progress

    return Progress(sys.stderr)


def note(text: str) -> None:
    """Print a message to standard error, wrapped to the page's width."""
    from symconfig.format import clean
    from symconfig.report.grid import page_width, wrapped

    print(wrapped(clean(text), page_width(sys.stderr)), file=sys.stderr)


def refuse(arguments: Namespace, names: Iterable[str], what: str, **more: Any) -> None:
    """Record a problem in `arguments.problems` for each of these options that is given (not None, False or []). what:
    the problem's text; more: further fields of the problem.
    """
    for name in names:
        if getattr(arguments, name) not in (None, False, []):
            arguments.problems.add(Problem(what, field="--" + name.replace("_", "-"), **more))


def as_changes(problem: Problem, changed: Iterable[str], named: str = "--cluster") -> Problem:
    """Return a cluster's problem with its field as `--set FIELD` (and without file) if that field or a section of it
    was changed, else as `named`, if it has no file; other problems are unchanged.
    """
    section, _, field = (problem.field or "").partition(".")
    if section != "cluster":
        return problem
    by_set = next((name for name in changed if f"{field}.".startswith(f"{name}.")), None)
    if by_set is not None:
        return replace(problem, field=f"--set {by_set}", file=None, line=None, column=None)
    return problem if problem.file else replace(problem, field=f"{named}: {field}" if field else named)


def cluster(name: str, option: str = "--cluster") -> ClusterDescriptor:
    """Return the cluster that an option names. Raises InputError naming the option."""
    from symconfig.descriptor.load import load_cluster

    with reworded(lambda problem: as_changes(problem, (), option)):
        return load_cluster(name)


def plan_of(name: str) -> Plan:
    """Return the plan in a file or folder. Raises InputError."""
    from symconfig.plans.file import load_plan

    return load_plan(Path(name))


def whole(text: str) -> int:
    """Return a text as an integer above 0. Raises InputError."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise InputError("wrong value", got=text, need="a whole number above 0")
    return int(text)


def within(least: int, most: int) -> Callable[[str], int]:
    """Return a function: at most nine ASCII digits -> integer within bounds (included), else it raises InputError."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
            raise InputError("out of range", got=text, need=f"a whole number from {least} to {most}")
        return int(text)

    return read


def seconds(least_s: float, most_s: float) -> Callable[[str], float]:
    """Return a function: text -> seconds within bounds (included); it raises InputError for others."""

    def read(text: str) -> float:
        """Return the text as seconds within the bounds. Raises InputError."""
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least_s <= value <= most_s:
            raise InputError("wrong value", got=text, need=f"seconds from {least_s:g} to {most_s:g}")
        return value

    return read


# Kinds of files that are written: the name of each, and the endings that it may have.
YAML, JSON, SARIF, PAGE = (
    ("YAML", ".yaml", ".yml"),
    ("JSON", ".json"),
    ("SARIF", ".sarif", ".json"),
    ("a page", ".html", ".htm"),
)


def output(arguments: Namespace, name: str, kind: tuple[str, ...]) -> Path | None:
    """Return the path that option `name` names; None if not given. A wrong ending or an existing file without --force
    is recorded in `arguments.problems`; the path is returned all the same. kind: (what the file is, allowed endings…).
    """

    def check(out: Path) -> None:
        what, *endings = kind
        need = f"a name that ends in {endings[0]}"
        resources.check_output(out, f"--{name}", endings, f"this file is {what}", need)
        resources.check_free(out, arguments.force)

    path = file_of(getattr(arguments, name))
    arguments.problems.read(check, path)
    return path


def folder(arguments: Namespace) -> Path | None:
    """Return the output folder, --out; a problem with it is recorded in `arguments.problems`."""
    from symconfig.render.files import check_folder

    out = file_of(arguments.out or None)
    arguments.problems.read(lambda out: check_folder(out, arguments.force), out)
    return out


def write_text(path: Path, text: str, force: bool) -> None:
    """Write a file atomically, and note that on standard error. Raises InputError if it exists without `force`."""
    resources.check_free(path, force)
    resources.write_file(path, text.encode())
    note(f"wrote {path}")


def file_of(text: str | None) -> Path | None:
    """Return an option's text as a path; None for None."""
    return None if text is None else Path(text)


def wrote(out: Path, written: Sequence[Path], as_json: bool, remarks: Sequence[str] = ()) -> None:
    """Print a line with the files written (relative to `out`) and the remarks: to standard output after an empty line,
    or with `as_json` to standard error.
    """
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


def answer(
    arguments: Namespace,
    plan: Plan,
    files: Wanted | None,
    data: Callable[[], Any],
    shown: Sequence[Block],
    before: Sequence[Block] = (),
) -> None:
    """Write a plan's files (--out), print the answer, and write its page (--html), whose first blocks are `before`.
    files: None: write neither files nor page. data: makes the JSON for --json; shown: blocks printed else. Edited files
    that are replaced are named on standard error. Raises InputError if a path is taken without --force.
    """
    from symconfig.api.planning import page_files, remarks, write

    out, html = file_of(arguments.out), file_of(arguments.html)
    written = write(plan, out, files, force=arguments.force, tell=replaced) if out and files else []
    show(arguments, data, lambda: shown)
    if html and files:
        from symconfig.report.page import plan_page

        write_text(html, plan_page(plan, page_files(plan, files), before), arguments.force)
    if out and files:
        wrote(out, written, arguments.json, remarks(plan, files))


def replaced(names: Sequence[str]) -> None:
    """Print a note naming edited files that --force replaced."""
    note(f"note: replaced what was not as symconfig had written it: {', '.join(names)}")


def write_data(text: str) -> None:
    """Write text for another program to standard output, in UTF-8 whatever the locale is."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout.write(text)


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    from symconfig.format import json_text

    write_data(masked(json_text(value)))
