"""`symconfig whatif`: its table, its data, its page, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import symconfig
from tests.cli.support import Run

PINS = {"pp": 1, "cp": 1, "tp": "1..2", "mbs": "1..2"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "plan.json"
    result = symconfig.plan(model="llama3.1-8b", cluster="h100", gpus=8, global_batch_size=8, pins=PINS)
    path.write_text(result.to_json(), encoding="utf-8")
    return path


def test_a_table_names_the_best_plan_of_each_range(run: Run, plan: Path) -> None:
    outcome = run.done("whatif", plan, "--vary", "network=0.9..1.1x")
    assert "network, a factor, borders to 0.001 of it" in outcome.out
    assert "0.9x" in outcome.out
    assert "1.1x" in outcome.out


def test_data(run: Run, plan: Path) -> None:
    data = run("whatif", plan, "--vary", "compute=0.9..1.1x", "--json").json()
    assert data["schema"] == "symconfig.whatif/1"
    (line,) = data["lines"]
    assert line["ranges"][0]["from"] == 0.9
    assert line["ranges"][-1]["to"] == 1.1
    assert line["ranges"][0]["step_s_from"] > line["ranges"][-1]["step_s_to"]
