"""`symconfig adapt`: the diff, the files in place, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symconfig.plans.plan import Plan
from tests.cli.support import Run
from tests.existing.adapt.scripts import array, options
from tests.sample_plans import sample_plan

TP = "--tensor-model-parallel-size"


def plan(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", **{"tp": 4, "pp": 2, "dp": 2, "global_batch": 32, **fields})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_bytes(array(plan(), options(plan())).encode())
    path.chmod(0o755)
    return path


def saved(folder: Path, mine: Plan) -> Path:
    path = folder / "plan.json"
    path.write_text(mine.to_json(), encoding="utf-8")
    return path


def test_without_in_place_only_the_diff_is_shown(run: Run, script: Path, tmp_path: Path) -> None:
    before = script.read_bytes()
    outcome = run.done("adapt", script, "--plan", saved(tmp_path, plan(tp=2, dp=4)))
    assert f"\n-    {TP} 4\n+    {TP} 2\n" in outcome.out
    assert "--in-place" in outcome.err
    assert script.read_bytes() == before


def test_in_place_the_file_has_it_and_keeps_its_mode(run: Run, script: Path, tmp_path: Path) -> None:
    before, goal = script.read_text(), saved(tmp_path, plan(tp=2, dp=4))
    run.done("adapt", script, "--plan", goal, "--in-place")
    assert script.read_text() == before.replace(f"{TP} 4", f"{TP} 2")
    assert script.stat().st_mode & 0o777 == 0o755
    again = run("adapt", script, "--plan", goal, "--in-place")
    assert (again.code, again.out) == (0, "")
    assert "has the plan's values already" in again.err


def test_where_not_all_can_be_placed_nothing_is_written_unless_told_so(run: Run, script: Path, tmp_path: Path) -> None:
    script.write_text(script.read_text().replace(f"{TP} 4", f"{TP} $(cat tp)"))
    before, goal = script.read_text(), saved(tmp_path, plan(tp=2, dp=4, micro=2))
    assert f"put {TP} 2 by hand" in run.refused("adapt --in-place", script, "--plan", goal, code=1)
    assert script.read_text() == before
    assert run("adapt", script, "--plan", goal, "--in-place", "--partial").code == 1
    assert script.read_text() == before.replace("batch-size 1\n", "batch-size 2\n", 1)


def test_json_says_each_change_and_what_is_left(run: Run, script: Path, tmp_path: Path) -> None:
    line = script.read_text().splitlines().index(f"    {TP} 4") + 1
    found = run("adapt", script, "--plan", saved(tmp_path, plan(tp=2, dp=4)), "--json").json()
    assert found["schema"] == "symconfig.adapt/1"
    assert (found["file"], found["written"], found["unplaced"]) == (str(script), False, [])
    assert found["changes"] == [{"option": TP, "from": "4", "to": "2", "file": str(script), "line": line}]
    assert found["diff"].startswith(f"--- a/{str(script).lstrip('/')}\n")


def test_variables_and_arguments_are_the_scripts(run: Run, script: Path, tmp_path: Path) -> None:
    script.write_text(
        script.read_text()
        .replace(f"{TP} 4", f"{TP} $TP")
        .replace('[@]}"', '[@]}" "$@"')
        .replace("    --micro-batch-size 1\n", "")
    )
    goal = saved(tmp_path, plan())
    run.done("adapt", script, "--plan", goal, "--set", "TP=4", "--", "--micro-batch-size", "1")
    assert run("adapt", script, "--plan", goal, "--", "--micro-batch-size", "1").code == 1


def test_a_file_that_cannot_be_read_hides_nothing_of_what_is_adapted(run: Run, script: Path, tmp_path: Path) -> None:
    script.write_text(f"TP=4\nsource /site/env.sh\n{script.read_text().replace(f'{TP} 4', f'{TP} $TP')}")
    goal = saved(tmp_path, plan(tp=2, dp=4))
    assert "-TP=4\n+TP=2\n" in run.done("adapt", script, "--plan", goal).out


def test_another_model_or_framework_is_refused(run: Run, script: Path, tmp_path: Path) -> None:
    assert "hidden" in run.refused("adapt", script, "--plan", saved(tmp_path, sample_plan("qwen2.5-7b")))
    json = tmp_path / "ds.json"
    json.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')
    assert "this is a configuration of DeepSpeed" in run("adapt", json, "--plan", saved(tmp_path, plan())).err


def test_an_error_that_an_audit_finds_keeps_the_file_as_it_was(run: Run, script: Path, tmp_path: Path) -> None:
    script.write_text(script.read_text().replace("    --micro", "    --save /ckpt/tp4\n    --micro", 1))
    before, goal = script.read_text(), saved(tmp_path, plan(tp=2, dp=4))
    shown = run("adapt", script, "--plan", goal, "--json")
    assert shown.code == 1
    error = shown.json()["errors"][0]
    line = script.read_text().splitlines().index("    --save /ckpt/tp4") + 1
    assert (error["rule"], error["line"], error["before"]) == ("save-without-interval", line, True)
    said = run.refused("adapt --in-place", script, "--plan", goal, code=1)
    assert "An audit of the result finds errors" in said
    assert "Nothing was written, because an audit of the result finds errors; --partial writes" in said
    assert script.read_text() == before
    assert run("adapt", script, "--plan", goal, "--in-place", "--partial").code == 1
    assert f"{TP} 2" in script.read_text()


def test_the_checkpoint_is_reported_beside_the_diff(run: Run, script: Path, tmp_path: Path) -> None:
    more = "    --save /ckpt/tp4\n    --save-interval 10\n    --load /ckpt/tp4\n    --micro"
    text = script.read_text().replace("    --micro", more, 1).replace("torch_dist", "torch")
    script.write_text(text)
    outcome = run.done("adapt", script, "--plan", saved(tmp_path, plan(tp=2, dp=4)))
    assert "Whether an old checkpoint loads: symconfig checkpoint DIR --plan" in outcome.err
