"""The notebooks of examples/: every cell runs, and the last value of one is shown as a page."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


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


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
