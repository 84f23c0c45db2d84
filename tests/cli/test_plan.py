"""The command with the real search behind it: the main job, and jobs that no division or memory fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import symconfig
from tests.cli.support import JOB, Run, run
from tests.descriptor.small_configs import small_config

__all__ = ["run"]


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
def test_the_main_job_gives_files_that_start_it(run: Run, tmp_path: Path, backend: str) -> None:
    out = tmp_path / "out"
    outcome = run("plan", *JOB, "--seq-length", "4096", "--backend", backend, "--json", "--out", out)
    assert outcome.code == 0
    best = outcome.json()["best"]
    degrees = best["parallel"]
    assert degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"] == 64
    assert best["batch"]["global"] == 1024
    assert best["batch"]["micro"] * best["batch"]["num_microbatches"] * degrees["dp"] == 1024
    assert best["predicted"]["device_bytes"] <= 0.96 * 80 * 2**30
    assert sum(best["predicted"]["time"].values()) == pytest.approx(best["predicted"]["step_s"], rel=1e-6)
    dry = subprocess.run(
        ["bash", str(out / "launch.sh")],
        env={**os.environ, "DRY_RUN": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert dry.returncode == 0, dry.stderr


def test_alternatives_are_ranked_one_of_each_family_and_none_is_faster_than_the_fastest(run: Run) -> None:
    data = run("plan", *JOB, "--top", "10", "--json").json()
    plans = (data["best"], *data["alternatives"])
    assert 3 <= len(plans) <= 10
    families = [tuple(one["parallel"][name] for name in ("tp", "pp", "cp", "ep", "etp")) for one in plans]
    zero = [max(one["options"]["zero_stage"], 1) for one in plans]
    precision = [one["options"]["precision"] for one in plans]
    assert len(set(zip(families, zero, precision, strict=True))) == len(plans)
    scores = [one["standing"]["score_s"] for one in plans]
    assert scores[0] <= 1.02 * min(scores)
    if fastest := data["beside"]["fastest"]:
        assert all(one["predicted"]["step_s"] > fastest["predicted"]["step_s"] for one in plans)


def test_what_of_a_config_json_the_model_is_planned_without_is_named(run: Run, tmp_path: Path) -> None:
    config = small_config("nemotron_h") | {"num_nextn_predict_layers": 1, "use_mrope": False}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    outcome = run("plan", "--model", tmp_path, "--cluster", "h100", "--gpus", "8", "--global-batch-size", "8", "--json")
    notes = [line for line in outcome.err.splitlines() if line.startswith(f"note: {tmp_path.name}:")]
    assert notes == [f"note: {tmp_path.name}: layers of multi-token prediction are left out, as its class does"]


def test_the_same_job_gives_the_same_bytes_in_two_processes(tmp_path: Path) -> None:
    for name, seed in (("one", "1"), ("two", "2")):
        subprocess.run(
            [sys.executable, "-m", "symconfig", "plan", *JOB, "--out", str(tmp_path / name)],
            check=True,
            capture_output=True,
            timeout=300,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
    for path in sorted((tmp_path / "one").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path.name


def test_pins_are_kept(run: Run) -> None:
    data = run(
        "plan",
        *JOB,
        "--pin",
        "tp=2..4",
        "--pin",
        "pp=4",
        "--pin",
        "zero=1",
        "--pin",
        "recompute=full",
        "--top",
        "20",
        "--json",
    ).json()
    for one in (data["best"], *data["alternatives"]):
        assert one["parallel"]["tp"] in (2, 4)
        assert one["parallel"]["pp"] == 4
        assert one["options"]["zero_stage"] == 1
        assert one["options"]["recompute"]["granularity"] == "full"


def test_a_batch_that_no_division_fits_names_one_that_does(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "plan", *JOB[:-1], "1023", "--pin", "tp=1", "--pin", "pp=1", "--pin", "cp=1", "--out", tmp_path / "out"
    )
    assert outcome.code in (1, 2)
    assert "Try: " in outcome.err
    assert not (tmp_path / "out").exists()


def test_more_gpus_than_the_batch_can_feed(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "plan",
        "--model",
        "llama2-7b",
        "--cluster",
        "a100-80gb",
        "--gpus",
        "8072",
        "--global-batch-size",
        "8",
        "--out",
        tmp_path / "out",
    )
    assert outcome.code in (1, 2)
    assert "Try: " in outcome.err
    assert not (tmp_path / "out").exists()


def test_nothing_fits_names_the_constraint_and_what_would_fit(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "plan",
        "--model",
        "llama3.1-405b",
        "--cluster",
        "a100-40gb",
        "--gpus",
        "8",
        "--global-batch-size",
        "8",
        "--out",
        tmp_path / "out",
    )
    assert outcome.code == 1
    assert "GiB" in outcome.err
    assert "Try: " in outcome.err
    assert not (tmp_path / "out").exists()


def test_the_python_api_is_the_same_planner(run: Run, tmp_path: Path) -> None:
    result = symconfig.plan(model="llama2-13b", cluster="a100-80gb", gpus=64, global_batch_size=1024, pins={"tp": 2})
    data = run("plan", *JOB, "--pin", "tp=2", "--json").json()
    assert json.loads(result.to_json())["best"] == data["best"]
    assert result.best.configuration.tp == 2
    assert "--tensor-model-parallel-size" in result.megatron_args()
    written = result.write(tmp_path / "out")
    assert tmp_path / "out" / "plan.json" in written
    assert (
        symconfig.plan(
            model=result.plan.model, cluster=result.plan.cluster, gpus=64, global_batch_size=1024, pins={"tp": "2"}
        ).best
        == result.best
    )
    assert json.loads(result.to_json())["search"]["candidates"] > 1000


def test_an_adapter_goes_to_deepspeed_unless_told_otherwise(run: Run) -> None:
    outcome = run(
        "plan",
        "--model",
        "qwen2.5-7b-lora",
        "--cluster",
        "a100-80gb",
        "--gpus",
        "8",
        "--global-batch-size",
        "64",
        "--json",
    )
    assert outcome.code == 0
    assert outcome.json()["best"]["target"]["backend"] == "deepspeed"


def test_what_was_chosen_for_the_run_and_what_is_missing_stands_behind_the_files(run: Run, tmp_path: Path) -> None:
    small = ["--model", "llama3.1-8b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "64"]
    outcome = run("plan", *small, "--task", "sft", "--out", tmp_path / "a")
    assert outcome.out.splitlines()[-2:] == [
        "lr 2e-05, min_lr 0, lr_warmup_iters 30, weight_decay 0: chosen for full fine-tuning of 8.03B parameters "
        "(REPORT.md says from what)",
        "No checkpoint is written. Try: --save DIR, training.save in the job, or bash launch.sh --save DIR "
        "--save-interval 500",
    ]
    recorded = json.loads((tmp_path / "a" / "plan.json").read_text(encoding="utf-8"))["inputs"]["job"]["training"]
    assert (recorded["lr"], recorded["weight_decay"], recorded["lr_warmup_iters"]) == (2e-5, 0.0, 30)
    said = run("plan", *small, "--save", "ckpt", "--lr", "1e-4", "--out", tmp_path / "b").out
    assert "No checkpoint" not in said
    assert "min_lr 1e-05, lr_warmup_iters 100, weight_decay 0.1: chosen for pretraining" in said


@pytest.mark.parametrize(("length", "longer"), [(4096, False), (8192, True)])
def test_sequences_beyond_the_positions_of_a_model_are_said_to_be(
        run: Run, tmp_path: Path, length: int, longer: bool) -> None:  # fmt: skip
    out = tmp_path / "out"
    job = ("plan", "--model", "llama2-7b", "--cluster", "h100", "--gpus", 8, "--global-batch-size", 64)
    outcome = run(*job, "--seq-length", length, "--pin", "tp=2", "--out", out)
    assert outcome.code == 0
    for text in (outcome.out, " ".join((out / "REPORT.md").read_text(encoding="utf-8").split())):
        assert (f"longer than the model's max_position_embeddings of {4096:,}" in text) is longer
        assert ("rope_theta" in text) is longer
    assert f"--max-position-embeddings {length} " in (out / "megatron_args.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
def test_a_table_of_positions_has_an_end(run: Run, backend: str) -> None:
    job = ("plan", "--model", "gpt3-175b", "--cluster", "h100", "--gpus", 256, "--global-batch-size", 256)
    outcome = run(*job, "--seq-length", 4096, "--backend", backend)
    assert outcome.code == 2
    assert "the model has a learned position for fewer tokens (got 4096, need at most 2048)" in outcome.err
