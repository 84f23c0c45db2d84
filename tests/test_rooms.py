"""The rooms of the package import only what comes before them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "symconfig"
# What every room may read: they import each other at most.
SHARED = (
    "__version__",
    "arguments",
    "callables",
    "errors",
    "units",
    "format",
    "resources",
    "targets",
    "install",
    "pipeline_layout",
)
ROOMS = (
    "descriptor",
    "graph",
    "tensors",
    "schedule",
    "cost",
    "plan",
    "solve",
    "states",
    "render",
    "launch",
    "recover",
    "rules",
    "verify",
    "measured",
    "measure",
    "audit",
    "adapt",
    "checkpoint",
    "replan",
    "sweep",
    "report",
    "api",
    "embed",
    "cli",
    "megatron",
    "deepspeed",
    "transformers",
)
# A plan's own methods that lead on to the rooms behind it, for those who use the package from Python.
ONWARD = {("plan", "render"), ("plan", "api")}


def room(name: str) -> str:
    """plan_shape.py is a part of plan.py, and cli_measure.py of cli.py."""
    first = name.split("_")[0] if not name.startswith("__") else name
    return first if first in ROOMS else name


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "symconfig":
            inner = str(node.module).split(".")[1:]
            yield from inner[:1] or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("symconfig."))


def files() -> dict[Path, str]:
    """The room of every file."""
    return {path: room(path.relative_to(PACKAGE).parts[0].removesuffix(".py")) for path in PACKAGE.rglob("*.py")}


def test_every_file_is_in_a_room() -> None:
    known = {*ROOMS, *SHARED, "__init__", "__main__"}
    assert set(files().values()) <= known


@pytest.mark.parametrize("name", [*SHARED[1:], *ROOMS])
def test_a_room_imports_only_what_comes_before_it(name: str) -> None:
    before = {*SHARED, *ROOMS[: ROOMS.index(name) + 1]} if name in ROOMS else set(SHARED)
    mine = [path for path, place in files().items() if place == name]
    assert mine
    wrong = {
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in mine
        for other in map(room, imported(path))
        if other not in before and (name, other) not in ONWARD
    }
    assert not wrong
