"""What several commands share: printing, notes, the values of options, files as output."""

from __future__ import annotations

import re
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

from symconfig import resources
from symconfig.errors import InputError, Problem
from symconfig.format import clean, masked

if TYPE_CHECKING:
    from symconfig.api.files import Wanted
    from symconfig.plans.plan import Plan
    from symconfig.report.grid import Block

INTERRUPTED = 130  # exit code
SILENT_S = 1.0
REDRAW_S = 0.1
Number = TypeVar("Number", int, float)


def say(blocks: Sequence[Block]) -> None:
    from symconfig.report.grid import show

    show(blocks, sys.stdout)


def show(arguments: Namespace, data: Callable[[], Any], blocks: Callable[[], Sequence[Block]]) -> None:
    """Print an answer: as JSON with --json, else as blocks; only the needed one of `data` and `blocks` is called."""
    if arguments.json:
        print_json(data())
    else:
        say(blocks())


class Progress:
    """A progress line on a terminal, drawn only after SILENT_S; nothing on pipes and files.

    Call it with a phase and its share done (0 to 1). As a context manager it clears the line at exit.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._drawn = float("-inf")
        self._width = 0
        self._terminal = stream.isatty()

    def __call__(self, phase: str, share: float) -> None:
        self.say(f"{phase}: {100 * min(max(share, 0.0), 1.0):.0f} %")

    def say(self, phase: str) -> None:
        """Show a phase without a share, cut to the terminal's width. Nothing if it is no terminal, in the first
        SILENT_S, or within REDRAW_S of the last redraw.
        """
        now = self._clock()
        if not self._terminal or now - self._started < SILENT_S or now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        text = clean(phase)[: shutil.get_terminal_size().columns - 1]  # a line that is broken is never cleared
        self._stream.write("\r" + text.ljust(self._width))
        self._width = len(text)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


def working() -> Progress:
    """Return a progress line on standard error, as a context manager."""
    return Progress(sys.stderr)


def note(text: str) -> None:
    """Print a message to standard error, wrapped to the page's width."""
    from symconfig.report.grid import page_width, wrapped

    print(wrapped(clean(text), page_width(sys.stderr)), file=sys.stderr)


def refuse(arguments: Namespace, names: Iterable[str], what: str, **more: Any) -> None:
    """Record a problem in `arguments.problems` for each of these options that is given (not None, False or []). what:
    the problem's text; more: further fields of the problem.
    """
    for name in names:
        if getattr(arguments, name) not in (None, False, []):
            arguments.problems.add(Problem(what, field="--" + name.replace("_", "-"), **more))


def plan_of(name: str) -> Plan:
    """Return the plan in a file or folder. Raises InputError."""
    from symconfig.plans.file import load_plan

    return load_plan(Path(name))


def within(kind: type[Number], least: float, most: float, need: str) -> Callable[[str], Number]:
    """Return a function that reads an option's text as an integer (of at most nine digits) or a float within bounds,
    both included; it raises InputError with `need` for any other text.
    """

    def read(text: str) -> Number:
        """Return the number that the text is; raise InputError if it is none or out of bounds."""
        try:
            value = kind(text) if kind is float or re.fullmatch("[0-9]{1,9}", text) else None
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise InputError("wrong value", got=text, need=need)
        return value

    return read


whole = within(int, 1, float("inf"), "a whole number above 0")

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
    """Return the output folder, --out; None if not given. A problem with it is recorded in `arguments.problems`."""
    out = file_of(arguments.out or None)
    if out is not None:
        from symconfig.render.files import check_folder

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
    from symconfig.api import files as made

    out, html = file_of(arguments.out), file_of(arguments.html)
    written = made.write(plan, out, files, arguments.force, replaced) if out and files else []
    show(arguments, data, lambda: shown)
    if html and files:
        from symconfig.report.page import plan_page

        write_text(html, plan_page(plan, made.page_files(plan, files), before), arguments.force)
    if out and files:
        wrote(out, written, arguments.json, made.remarks(plan, files))


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
