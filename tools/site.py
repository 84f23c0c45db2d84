"""Build the pages of docs/ as a site, strictly, into site/: `python -m tools docs`.

mkdocs.yml takes this file as a hook, too: it adds the pages that are written nowhere, which are the README as the first
page, every command's help, and the Python functions.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

os.environ["COLUMNS"] = "100"  # of the help
ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of docs/."""
    from mkdocs.structure.files import File

    for name, text in (
        ("index.md", first()),
        ("reference/every-option.md", commands()),
        ("reference/python.md", python()),
    ):
        files.append(File.generated(config, name, content=text))
    return files


def first() -> str:
    """Return README.md, with its links as seen from docs/."""
    return (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")


def commands() -> str:
    """Return every command with its options, as its help prints them."""
    from symconfig.cli import main

    parts = ["# Every option\n", "As `symconfig COMMAND --help` prints it, and `symconfig plan --help-all`.\n"]
    for group, names in main.GROUPS.items():
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        for name in names:
            (command,) = main.commands([name])
            parts.append(f"### {name}\n\n{command.does}\n\n```text\n{_help(name, command)}\n```\n")
    return "\n".join(parts)


def _help(name: str, command: Any) -> str:
    parser = argparse.ArgumentParser(prog=f"symconfig {name}", add_help=False)
    command.add_options(parser)
    return parser.format_help().rstrip()


def python() -> str:
    """Return a page that asks for the docstring of each public function and class."""
    import symconfig

    parts = ["# From Python\n", "`import symconfig` takes no time: what is called is imported then.\n"]
    for name in sorted((name for name in dir(symconfig) if not name.startswith("_")), key=str.lower):
        made = getattr(symconfig, name)
        if inspect.isfunction(made) or inspect.isclass(made):
            parts.append(f"::: {made.__module__}.{made.__qualname__}\n    options:\n      heading: symconfig.{name}\n")
        elif isinstance(made, types.ModuleType):
            parts.append(f"::: {made.__name__}\n")
    return "\n".join(parts)


def main() -> int:
    """Build the site and return mkdocs' exit status."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False).returncode
