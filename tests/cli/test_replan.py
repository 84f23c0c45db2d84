"""`symconfig replan`, `diff`, `whatif` and `checkpoint`: options, exit codes, all forms of the answer, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import symconfig
from symconfig.api.planning import plan as solved
from symconfig.plans.file import load_plan
from tests.cli.support import Run
from tests.runs.checkpoint.folders import SAFETENSORS, torch_dist
from tests.sample_plans import sample_plan


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan without pipelines, which is solved at once."""
    folder = tmp_path_factory.mktemp("plans") / "old"
    solved("llama2-7b", "a100-80gb", 8, 32, pins={"pp": 1}, top=2).write(folder)
    return folder


def test_a_new_batch_says_what_changes_and_writes_it(tmp_path: Path, run: Run) -> None:
    old = tmp_path / "old"  # with the same ZeRO stage, so that the new plan loads its checkpoints
    solved("llama2-7b", "a100-80gb", 8, 32, pins={"pp": 1, "zero": 1}, top=2).write(old)
    files = ("--out", tmp_path / "new", "--html", tmp_path / "new.html")
    done = run.done("replan --global-batch-size 128 --at-step 400 --top 2", old, *files)
    assert "The old plan&#39;s checkpoint" in (tmp_path / "new.html").read_text(encoding="utf-8")
    assert "global batch size  32      128" in done.out
    assert "What is asked for" in done.out
    assert "accumulation" in done.out
    assert "train iters       1,000  550" in done.out
    assert "To go on at step 400: bash launch.sh" in done.out
    assert "--override-opt_param-scheduler" in done.out
    assert "Files that change: plan.json, launch.sh" in done.out
    new = load_plan(tmp_path / "new")
    assert new.best.configuration.global_batch == 128
    assert new.job.training.train_iters == 550
    assert "--train-iters 550" in (tmp_path / "new" / "launch.sh").read_text()


def test_a_step_that_is_lost_is_no_step_to_go_on_at(old: Path, run: Run) -> None:
    done = run.done("replan --model llama3.1-8b --at-step 5 --top 1", old)
    assert "Step 5 is lost" in done.out
    assert "To go on" not in done.out


def test_json_has_all_of_it(old: Path, run: Run) -> None:
    found = run("replan", old, "--seq-length", "2048", "--json").json()
    assert found["schema"] == "symconfig.replan/1"
    assert [each["field"] for each in found["inputs"]] == ["seq_length"]
    assert found["plan"]["best"]["batch"]["seq_length"] == 2048
    assert {"verdict", "how", "lost", "reasons"} <= set(found["checkpoint"])
    assert found["schedule"]["rescaled"][0] == {"field": "train_iters", "before": 1000, "after": 2000}
    assert set(found) >= {"changes", "follows", "stayed", "near", "files", "old", "same"}


def test_diff_exits_as_git_does(old: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    run.done("replan --pin tp=2 --out", other, old)
    assert run("diff --exit-code", old, other).code == 1
    run.done("diff --exit-code", old, old)
    shown = run.done("diff", old, other)
    assert "Degrees" in shown.out
    assert "--tensor-model-parallel-size" in shown.out
    assert run("diff", old, other, "--json").json()["same"] is False


def test_a_plan_that_was_edited_is_solved_only_when_told(old: Path, tmp_path: Path, run: Run) -> None:
    text = (old / "plan.json").read_text()
    edited = tmp_path / "plan.json"
    data = json.loads(text)
    data["inputs"]["job"]["global_batch_size"] = 64
    data["inputs"]["model"]["num_hidden_layers"] = 24
    edited.write_text(json.dumps(data))
    assert run("replan", edited).code == 2
    shown = run("replan", edited, "--accept-edits").out
    assert "Edited in the file: model, job." in shown
    assert "predicts the old plan anew" not in shown
    found = run("replan", edited, "--accept-edits", "--json").json()
    assert {each["field"]: each["after"] for each in found["inputs"]}["global_batch_size"] == 64
    assert found["plan"]["inputs"]["model"]["num_hidden_layers"] == 24
    assert found["plan"]["inputs"]["job"]["training"]["train_iters"] == 500
    assert sum(len(chunk) for stage in found["plan"]["best"]["stages"] for chunk in stage["chunks"]) == 24 + 2


def test_an_answer_that_was_edited_is_not_what_was_asked_for(old: Path, tmp_path: Path, run: Run) -> None:
    data = json.loads((old / "plan.json").read_text())
    data["best"]["parallel"] |= {"tp": 8, "dp": 8}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    found = run("replan", tmp_path, "--accept-edits", "--json").json()
    assert (found["inputs"], found["edited"]) == ([], [])
    assert found["old"]["parallel"] == json.loads((old / "plan.json").read_text())["best"]["parallel"]
    assert found["checkpoint"]["verdict"] == "as it is"


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return torch_dist(tmp_path / "run", inside=True)


def written_plan(tmp_path: Path, **degrees: int) -> str:
    path = tmp_path / "plan.json"
    path.write_text(sample_plan("llama2-13b", global_batch=128, **degrees).to_json())
    return str(path)


def test_a_folder_alone(folder: Path, run: Run) -> None:
    told = run.done("checkpoint", folder).out
    assert "torch_dist:dp_reshardable, iteration 200" in told
    assert "core_v0.19.0" in told


def test_more_replicas_of_the_same_grid(tmp_path: Path, folder: Path, run: Run) -> None:
    done = run.done("checkpoint", folder, "--plan", written_plan(tmp_path, tp=2, pp=2, dp=8))
    assert "Resharded on load: It loads" in done.out


def test_another_grid_needs_a_conversion(tmp_path: Path, folder: Path, run: Run) -> None:
    answer = run.done("checkpoint --json", folder, "--plan", written_plan(tmp_path, tp=4, pp=2, dp=8)).json()
    assert answer["schema"] == "symconfig.checkpoint/1"
    assert answer["checkpoint"]["degrees"]["tp"] == 2
    assert answer["loadable"]["verdict"] == "converted first"
    assert answer["loadable"]["otherwise"] == "weights only"
    assert "--dist-ckpt-optim-fully-reshardable" in answer["loadable"]["how"][0]["words"]


def test_another_model_is_found_out(tmp_path: Path, run: Run) -> None:
    """Its own folder, and weights of a hub."""
    own = run(
        "checkpoint", torch_dist(tmp_path / "run", num_layers=32), "--plan", written_plan(tmp_path, tp=2, pp=2, dp=4)
    )
    assert (own.code, "num_hidden_layers 32 -> 40" in own.out) == (1, True)
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(SAFETENSORS)
    for layers, code, said in ((40, 0, "AutoBridge.import_ckpt"), (32, 1, "num_hidden_layers 32 -> 40")):
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": layers}))
        found = run("checkpoint", folder, "--plan", written_plan(tmp_path, tp=2))
        assert (found.code, said in found.out) == (code, True)
