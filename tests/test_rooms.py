"""The rooms of the package import only what lies below them, without circles; the budget of lines."""

from __future__ import annotations

import json
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from benchmarks import house

# From the top down: a room may import those after it, and what all share.
ROOMS = (
    "__main__", "cli", "deepspeed", "megatron", "transformers", "serve", "api", "report", "runs", "measured",
    "verify", "existing", "render", "formats", "solve", "frameworks", "cost", "schedule", "graph", "plans",
    "descriptor",
)  # fmt: skip
SHARED = ("errors", "format", "install", "resources", "units")
MOST_AT_THE_ROOT = 10
MODULES = house.sources()


def imported(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, also inside functions and for types alone."""
    return house.imports(path, MODULES)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_every_file_is_in_a_room() -> None:
    assert {room(name) for name in MODULES} == {*ROOMS, *SHARED, "symconfig"}


def test_few_files_lie_at_the_root() -> None:
    assert len(list(house.PACKAGE.glob("*.py"))) <= MOST_AT_THE_ROOT


@pytest.mark.parametrize("name", [*SHARED, *ROOMS])
def test_a_room_imports_only_what_lies_below_it(name: str) -> None:
    below = {*SHARED, "symconfig", *(ROOMS[ROOMS.index(name) :] if name in ROOMS else ())}
    mine = {module: path for module, path in MODULES.items() if room(module) == name}
    assert mine
    wrong = {f"{module} imports {other}" for module, path in mine.items() for other in imported(path)
             if room(other) not in below}  # fmt: skip
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter({name: imported(path) - {name} for name, path in MODULES.items()}).prepare()  # raises CycleError


def test_a_size_beyond_its_budget_is_said_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = tmp_path / "budget.json"
    budget.write_text(json.dumps({"logical lines": 10, "lines of data": 10**9}), encoding="utf-8")
    monkeypatch.setattr(house, "BUDGET", budget)
    (sentence,) = house.over_budget()
    assert sentence.startswith("logical lines: ")
    assert "more than the 10 of benchmarks/budget.json" in sentence


def test_a_statement_of_three_lines_is_one_logical_line(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = (\n    1\n)\n\n# why\nif x:\n    y = 2\n", encoding="utf-8")
    assert house.logical_lines(path) == 3
