"""The budget of lines: `make lint` fails where the code or its data grow beyond it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import house


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
