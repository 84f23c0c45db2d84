"""Runs the jobs of docs/jobs and puts what they print into their pages: `python docs/jobs.py [PAGE…]`.

A page is what one person writes and types. A fenced block below `<!-- writes: FILE -->` is a file of theirs. A block
marked `console` holds commands, each with what it printed; they run in a folder of the page's own, in which the files
of docs/jobs/scripts, docs/examples and examples/ lie, too. docs/jobs/README.md lists all pages with the lines that a
person writes and the seconds of the first command. docs/tutorials, docs/systems.md and docs/replan.md are run in the
same way, and of README.md and other pages of docs/ what stands behind `<!-- output -->`, or `<!-- output, after:
COMMAND then COMMAND -->`; `<!-- columns: 100 -->` in a page says that its lines are longer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

from written import ROOT, fill, table

JOBS = ROOT / "docs" / "jobs"
FILES = (JOBS / "scripts", ROOT / "docs" / "examples", ROOT / "examples")  # that a person has already
TUTORIALS = ROOT / "docs" / "tutorials"
INDEX = JOBS / "README.md"
WIDTH = 80
WIDER = re.compile(r"<!-- columns: (\d+) -->")
SHOWN = re.compile(r"^<!-- output\b", re.MULTILINE)
BLOCK = re.compile(
    r"^(?:<!-- (?:writes: (?P<file>\S+)|(?P<output>output)(?:, after: (?P<before>[^\n]*?))?) -->\n)?"
    r"(?P<head>```(?P<kind>\w+)\n)(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
# On standard error, where a command takes longer than a second.
PROGRESS = re.compile(
    r".*: \d+ %|planned [\d,]+ of [\d,]+|trying .* GPUs.*|predicting what is there|looking for a better plan"
    r"|shellcheck and dry runs|Megatron \S+ on [\d,]+ claimed GPUs|Megatron .* (?:is done|rank \d+ of .*)"
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it was run. lines: of files that a person writes. typed: of the first command, which took first_s."""

    text: str
    lines: int
    typed: int
    first_s: float


def pages() -> list[Path]:
    """Return the pages of all jobs, in order."""
    return sorted(JOBS.glob("[0-9]*.md"))


def shown() -> list[Path]:
    """Return README.md and the pages of docs/ that show the output of some commands."""
    every = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    return [path for path in every if SHOWN.search(path.read_text(encoding="utf-8"))]


def run(path: Path) -> Page:
    """Run a page's commands in a new folder, and put what they print now into its text."""
    lines, typed, first = 0, 0, 0.0

    def block(match: re.Match[str]) -> str:
        nonlocal lines, typed, first
        if match["file"]:
            (folder / match["file"]).write_text(match["text"], encoding="utf-8")
            lines += sum(
                bool(line.strip()) and not line.lstrip().startswith("#") for line in match["text"].splitlines()
            )
            return match[0]
        if not match["output"] and (some or match["kind"] != "console"):
            return match[0]
        for command in match["before"].split(" then ") if match["before"] else ():
            _printed(command, folder, width)
        printed_all = []
        for command in _commands(match["text"]):
            started_s = time.perf_counter()
            printed = _printed(command, folder, width)
            first = first or time.perf_counter() - started_s
            typed = typed or len(command.splitlines())
            printed_all.append(f"$ {command}\n{printed}")
        return f"{text[match.start() : match.end('head')]}{''.join(printed_all)}```"

    text = path.read_text(encoding="utf-8")
    some, wider = SHOWN.search(text), WIDER.search(text)
    width = int(wider[1]) if wider else WIDTH
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "job"
        for files in FILES:
            copytree(files, folder, dirs_exist_ok=True)
        text = BLOCK.sub(block, text)
    return Page(text, lines, typed, first)


def _commands(block: str) -> Iterator[str]:
    """Yield the commands of a block, with their lines that go on."""
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)
            yield command


def _printed(command: str, folder: Path, width: int) -> str:
    """Return what a command prints, its messages after its answer, and how it ended where that is no success."""
    programs = folder.parent / "bin"
    if not programs.exists():
        programs.mkdir()
        for name, words in (("symconfig", "-m symconfig"), ("python", "")):
            shim = programs / name
            shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n', encoding="utf-8")
            shim.chmod(0o755)
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder.parent),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": str(width),
        },
    )
    said = [line for line in ended.stderr.splitlines() if not PROGRESS.fullmatch(line)]
    text = ended.stdout.rstrip("\n") + "\n" * bool(ended.stdout) + "".join(f"{line}\n" for line in said)
    if ended.returncode and "|" not in command:
        text += f"[exit status {ended.returncode}]\n"
    return text


def title(path: Path) -> str:
    """Return the heading of a page."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def row(path: Path, page: Page) -> tuple[str, ...]:
    """Return the row of a page in the list of all."""
    return f"[{title(path)}]({path.name})", str(page.lines or "none"), str(page.typed), f"{page.first_s:.1f}"


def main(names: Sequence[str]) -> None:
    """Run the pages that are named, or all, and write them; all of them make the list anew."""
    rows = []
    for path in [JOBS / name for name in names] or pages():
        page = run(path)
        path.write_text(page.text, encoding="utf-8")
        rows.append(row(path, page))
        print(*rows[-1], sep=", ")
    if not names:
        head = ("job", "lines of files", "lines of the first command", "seconds to its answer")
        fill(INDEX, {"jobs": table(head, rows)})


if __name__ == "__main__":
    main(sys.argv[1:])
