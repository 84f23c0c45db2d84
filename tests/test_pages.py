"""README.md, the pages of docs/ and the notebooks: short, linked, and what their commands print is shown."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.cli import main
from symconfig.errors import InputError
from tests.sampled import EVERY_CASE
from tools import new, outputs
from tools.generate import rooms
from tools.pages import filled

ROOT = Path(__file__).resolve().parent.parent
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# Their commands search for many plans; each takes as long as all other pages together: `python -m tools verify cases`.
SEARCHED_LONG = ("size-and-sweep", "post-train", "grpo-8b")
SHOWN = [page for page in outputs.pages() if os.environ.get(EVERY_CASE) or page.stem not in SEARCHED_LONG]
LARGEST = 6_144  # bytes of the README
MOST_WORDS = 45_000  # of all pages but reference and evidence
MOST_PAGES = {"tutorials": 4, "how-to": 14, "explanation": 6}
CHECKED_S = re.compile(r"^((?:passed|failed|skipped) .*?)\b\d+\.\d{3}\b", re.MULTILINE)  # differ from run to run
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_BLOCK = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PLACEHOLDER = re.compile(r"…|\.\.\.( |$)|<[a-z]|\[--|\bPORT\b")


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= LARGEST


def test_the_documentation_is_no_longer_than_a_reader_has_time_for() -> None:
    """Tutorials, how-to guides, explanations (diataxis.fr); reference and evidence are looked up."""
    for folder, most in MOST_PAGES.items():
        assert len(list((DOCS / folder).glob("*.md"))) <= most, folder
    read = [page for page in PAGES if page.relative_to(DOCS).parts[0] not in ("reference", "evidence")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in read) <= MOST_WORDS


@pytest.mark.usefixtures("warm_symconfig")
@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    shown = page.read_text(encoding="utf-8")
    assert CHECKED_S.sub(r"\1#", outputs.run(page)) == CHECKED_S.sub(r"\1#", shown), "python -m tools outputs"


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = (link for link in _LINK.findall(text) if not link.startswith(("http", "mailto:")))
    assert [link for link in links if not (page.parent / link).exists()] == []


def _named(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for inner in nav.values():
            yield from _named(inner)
    elif isinstance(nav, list):
        for inner in nav:
            yield from _named(inner)


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(_named(yaml.safe_load(text)["nav"]))
    assert {page.relative_to(DOCS).as_posix() for page in PAGES} - named == set()


def _commands(page: Path) -> Iterator[str]:
    """Yield the command lines of symconfig that a page's blocks show, a backslash at a line's end taken back."""
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            words = line.removeprefix("$ ")
            if words.startswith("symconfig ") and not _PLACEHOLDER.search(words):
                yield words


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_are_understood(page: Path) -> None:
    for line in _commands(page):
        words = shlex.split(line, comments=True)
        ends = [index for index, word in enumerate(words) if word in ("|", "||", "&&", ">", "2>", ";")]
        words = words[1 : ends[0]] if ends else words[1:]
        if words and not words[0].startswith("-"):
            main.parser_of(words).parse_args(words)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_command_within_a_sentence_has_an_argument_that_there_is_not(page: Path) -> None:
    """Sentences may leave out what a command needs."""
    text, told = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE), []
    for span in re.findall(r"`([^`\n]+)`", text):
        command = span.removeprefix("symconfig ")
        if command.startswith(tuple(f"{name} " for name in main.MODULES)) and not _PLACEHOLDER.search(span):
            words = shlex.split(re.split(" (?:--|>) ", command)[0])
            try:
                main.parser_of(words).parse_args(words)
            except InputError as error:
                told.append(f"{span}: {error}")
    assert [one for one in told if re.search("unrecognized|unknown", one)] == []


def test_the_tutorials_run_every_example() -> None:
    examples = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".yaml")}
    commands = "\n".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "tutorials").glob("*.md")))
    assert examples <= set(re.findall(r"^\$ .*?(?:python|plan) (\S+\.(?:py|yaml))", commands, re.MULTILINE))


CONTRIBUTING = DOCS / "contributing.md"
TOLD = re.compile(r'\*\*As it was done\*\*: ([0-9a-f]{8})\s"([^"]+)"')


def test_the_map_is_that_of_the_code() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert filled(text, rooms.rooms()) == text, "python -m tools generate rooms"


def test_the_files_that_contributors_are_sent_to_exist() -> None:
    told = re.findall(r"`([a-z_]+/[\w./-]+)[`:,]", CONTRIBUTING.read_text(encoding="utf-8"))
    told += [path for kind in new.KINDS.values() for path in kind.tests.split() if path.startswith("tests/")]
    paths = [path for path in told if not re.search(r"NAME|NEW_|BASE|_files/", path)]
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / "symconfig" / path).exists()] == []


def test_commits_that_are_told_of_are_in_the_history() -> None:
    told = TOLD.findall(CONTRIBUTING.read_text(encoding="utf-8"))
    assert len(told) >= 5
    for commit, subject in told:
        done = subprocess.run(["git", "show", "-s", "--format=%s", commit], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            pytest.skip("there is no history here")
        assert done.stdout.strip() == " ".join(subject.split())


SYSTEMS = [
    "SymTensor", "symbolic analytical formulas", "TAP", "Alpa", "Galvatron", "vTrain", "InternEvo", "Calculon",
    "AMPeD", "Mist", "DAPPLE", "Piper", "Tarnawski", "FlexFlow", "Unity", "GShard", "GSPMD", "Mesh-TensorFlow",
    "Tofu", "Whale", "Metis", "ColocRL", "parameter server",
]  # fmt: skip


def test_every_system_has_a_row_with_commands_that_there_are() -> None:
    page = (DOCS / "evidence" / "systems.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]
    assert [row[0].strip("| ") for row in rows] == SYSTEMS
    commands = {name for names in main.GROUPS.values() for name in names}
    for row in rows:
        assert len(row) == 5
        used = re.findall(r"`symconfig (\w+)", row[2])
        assert used
        assert set(used) <= commands


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def _shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last is not None else None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    names: dict[str, Any] = {}
    shown = [_shown("".join(cell["source"]), names) for cell in book["cells"] if cell["cell_type"] == "code"]
    pages = [value for value in shown if hasattr(value, "_repr_html_")]
    assert pages
    assert pages[0]._repr_html_().startswith("<iframe sandbox ")
    assert "--num-layers 32" in capsys.readouterr().out
