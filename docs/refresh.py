"""Put real output into README.md and the pages of docs/, after a change of the costs: `make readme`.

A block below `<!-- output of: COMMAND -->` is replaced by what the command prints (of `COMMAND then COMMAND` the last).
A picture that is announced by `<!-- picture: FILE, by: COMMAND then COMMAND -->` is drawn again; its commands write a
file of that name.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = re.compile(r"(<!-- output of: (?P<command>.*?) -->\n```\w*\n\$ .*?\n)(?P<text>.*?)(```\n)", re.DOTALL)

WIDTH = "100"  # letters of a line
SHOWN = (0, 1)  # an audit that finds something ends with 1
EXAMPLES = ROOT / "docs" / "examples"  # files that the commands read
PICTURE = re.compile(r"<!-- picture: (?P<file>\S+), by: (?P<commands>.*?) -->")


def run(command: str, folder: Path) -> str:
    """What the command prints."""
    words = shlex.split(command)
    ended = subprocess.run(
        [sys.executable, "-m", "symconfig", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": WIDTH},
    )
    if ended.returncode not in SHOWN:
        raise SystemExit(f"{command} ended with {ended.returncode}: {ended.stderr}")
    return ended.stdout


def output(match: re.Match[str], folder: Path) -> str:
    """The block with what its command prints now."""
    *before, shown = match["command"].split(" then ")
    for command in before:
        run(command, folder)
    return match[1] + run(shown, folder) + match[4]


def pages() -> list[Path]:
    """Return README.md and the pages of docs/ that show the output of commands."""
    return [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if _marked(path)]


def _marked(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return bool(OUTPUT.search(text) or PICTURE.search(text))


def main(named: list[Path]) -> None:
    for path in named or pages():
        refresh(path)


def refresh(path: Path) -> None:
    """Put what its commands print now into a page, and draw its pictures."""
    with tempfile.TemporaryDirectory() as name:
        text = refreshed(path, Path(name))
        for match in PICTURE.finditer(text):
            shutil.copyfile(Path(name) / Path(match["file"]).name, path.parent / match["file"])
    path.write_text(text, encoding="utf-8")


def refreshed(path: Path, folder: Path) -> str:
    """Return the text of a page with what its commands print now. folder: an empty one, that they run in."""
    text = path.read_text(encoding="utf-8")
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    for match in PICTURE.finditer(text):  # first: their commands write what the others read
        for command in match["commands"].split(" then "):
            run(command, folder)
    return OUTPUT.sub(lambda match: output(match, folder), text)


if __name__ == "__main__":
    main([Path(word).resolve() for word in sys.argv[1:]])
