"""Run the commands that pages show and put in what they print: `python -m tools outputs [PAGE …]`.

A block marked `console` holds commands, each with what it printed. In docs/tutorials, docs/how-to, docs/explanation,
docs/evidence/systems.md and docs/evidence/replan.md all are run, each page in a folder of its own with the files of
docs/examples and examples/; a block below `<!-- writes: FILE -->` is a file of that folder. In README.md and
docs/reference those below `<!-- output -->` or `<!-- output, after: COMMAND then COMMAND -->` are run.
`<!-- columns: 100 -->` in a page
says how wide its terminal is.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

from tools.pages import DOCS, EVIDENCE, ROOT

FILES = (DOCS / "examples", ROOT / "examples")  # that a reader has already
RUN = ("tutorials", "how-to", "explanation")  # folders of docs/ all of whose commands are run
SESSIONS = (EVIDENCE / "systems.md", EVIDENCE / "replan.md")
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


def pages() -> list[Path]:
    """Return all pages whose commands are run."""
    whole = [path for folder in RUN for path in sorted((DOCS / folder).glob("*.md"))]
    some = (ROOT / "README.md", *sorted((DOCS / "reference").glob("*.md")))
    return [*whole, *SESSIONS, *(path for path in some if SHOWN.search(path.read_text(encoding="utf-8")))]


def run(path: Path) -> str:
    """Run a page's commands in a new folder and return its text with what they print now."""

    def block(match: re.Match[str]) -> str:
        if match["file"]:
            (folder / match["file"]).write_text(match["text"], encoding="utf-8")
            return match[0]
        if not match["output"] and (some or match["kind"] != "console"):
            return match[0]
        for command in match["before"].split(" then ") if match["before"] else ():
            _printed(command, folder, width)
        printed = [f"$ {command}\n{_printed(command, folder, width)}" for command in _commands(match["text"])]
        return f"{text[match.start() : match.end('head')]}{''.join(printed)}```"

    text = path.read_text(encoding="utf-8")
    some, wider = SHOWN.search(text), WIDER.search(text)
    width = int(wider[1]) if wider else WIDTH
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        for files in FILES:
            copytree(files, folder, dirs_exist_ok=True)
        return BLOCK.sub(block, text)


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


def main() -> None:
    """Run the pages that are named, or all, and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="as docs/how-to/plan.md (default: all)")
    for path in [ROOT / page for page in parser.parse_args().pages] or pages():
        started_s = time.perf_counter()
        path.write_text(run(path), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {time.perf_counter() - started_s:.1f} s", flush=True)
