"""An oracle that imports what it judges agrees with it whatever it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.name)
def test_one_file_asks_the_judged_program(path: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    asks = any(name.split(".")[0] == "symconfig" for name in names)
    assert asks == (path.name == "judged.py")


@pytest.mark.parametrize(
    "path", sorted(p for p in HERE.glob("*.py") if not p.name.startswith("test_")), ids=lambda p: p.name
)
def test_no_part_of_the_oracle_sees_an_answer(path: Path) -> None:
    assert path.name == "judged.py" or "judged import" not in path.read_text(encoding="utf-8")
