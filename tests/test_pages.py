"""README.md and the pages of docs/: short, linked, and their commands print what the pages show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from symconfig.cli import main
from tools import outputs

ROOT = Path(__file__).resolve().parent.parent
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# Their commands search for many plans; each takes as long as all other pages together.
SEARCHED_LONG = ("size-and-sweep", "post-train", "grpo-8b")
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
@pytest.mark.parametrize("page", outputs.pages(), ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    if page.stem in SEARCHED_LONG:
        pytest.skip(f"python -m tools outputs {page.relative_to(ROOT)}")
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


def test_the_tutorials_run_every_example() -> None:
    examples = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".yaml")}
    commands = "\n".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "tutorials").glob("*.md")))
    assert examples <= set(re.findall(r"^\$ .*?(?:python|plan) (\S+\.(?:py|yaml))", commands, re.MULTILINE))
