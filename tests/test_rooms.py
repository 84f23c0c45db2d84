"""The rooms of the package import only what lies below them, and no modules import each other in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "symconfig"
# From the top down: a room may import those after it, and what all share.
ROOMS = (
    "__main__",
    "cli",
    "deepspeed",
    "megatron",
    "transformers",
    "api",
    "report",
    "runs",
    "measured",
    "verify",
    "existing",
    "render",
    "solve",
    "frameworks",
    "cost",
    "schedule",
    "graph",
    "plans",
    "descriptor",
)
SHARED = ("errors", "format", "install", "resources", "units")
MOST_AT_THE_ROOT = 10
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of this package that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "symconfig":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "symconfig")


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_every_file_is_in_a_room() -> None:
    assert {room(name) for name in MODULES} == {*ROOMS, *SHARED, "symconfig"}


def test_few_files_lie_at_the_root() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_AT_THE_ROOT


@pytest.mark.parametrize("name", [*SHARED, *ROOMS])
def test_a_room_imports_only_what_lies_below_it(name: str) -> None:
    below = {*SHARED, "symconfig", *(ROOMS[ROOMS.index(name) :] if name in ROOMS else ())}
    mine = {module: path for module, path in MODULES.items() if room(module) == name}
    assert mine
    wrong = {f"{module} imports {other}" for module, path in mine.items() for other in imported(path)
             if room(other) not in below}  # fmt: skip
    assert not wrong
