"""`symconfig checkpoint`: what a folder holds, and whether a plan loads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import Run
from tests.runs.checkpoint.folders import SAFETENSORS, torch_dist
from tests.sample_plans import sample_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return torch_dist(tmp_path / "run", inside=True)


def plan(tmp_path: Path, **degrees: int) -> str:
    path = tmp_path / "plan.json"
    path.write_text(sample_plan("llama2-13b", global_batch=128, **degrees).to_json())
    return str(path)


def test_a_folder_alone(folder: Path, run: Run) -> None:
    told = run.done("checkpoint", folder).out
    assert "torch_dist:dp_reshardable, iteration 200" in told
    assert "core_v0.19.0" in told


def test_more_replicas_of_the_same_grid(tmp_path: Path, folder: Path, run: Run) -> None:
    done = run.done("checkpoint", folder, "--plan", plan(tmp_path, tp=2, pp=2, dp=8))
    assert "Resharded on load: It loads" in done.out


def test_another_grid_needs_a_conversion(tmp_path: Path, folder: Path, run: Run) -> None:
    answer = run.done("checkpoint --json", folder, "--plan", plan(tmp_path, tp=4, pp=2, dp=8)).json()
    assert answer["schema"] == "symconfig.checkpoint/1"
    assert answer["checkpoint"]["degrees"]["tp"] == 2
    assert answer["loadable"]["verdict"] == "converted first"
    assert answer["loadable"]["otherwise"] == "weights only"
    assert "--dist-ckpt-optim-fully-reshardable" in answer["loadable"]["how"][0]["words"]


def test_another_model_is_found_out(tmp_path: Path, run: Run) -> None:
    """Its own folder, and weights of a hub."""
    own = run("checkpoint", torch_dist(tmp_path / "run", num_layers=32), "--plan", plan(tmp_path, tp=2, pp=2, dp=4))
    assert (own.code, "num_hidden_layers 32 -> 40" in own.out) == (1, True)
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(SAFETENSORS)
    for layers, code, said in ((40, 0, "AutoBridge.import_ckpt"), (32, 1, "num_hidden_layers 32 -> 40")):
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": layers}))
        found = run("checkpoint", folder, "--plan", plan(tmp_path, tp=2))
        assert (found.code, said in found.out) == (code, True)
