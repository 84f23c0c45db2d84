"""`symconfig calibrate` on a training log: one run sharpens every later plan on that cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.measured.log_row import as_row, source_of
from symconfig.measured.training_log import read_log
from symconfig.solve.predict import predict
from tests.cli.support import Run, run
from tests.measured.log_samples import deepspeed_log, plan_log, throughput, write
from tests.sample_plans import sample_plan

__all__ = ["run"]

SLOWER = 1.15


def log_of_a_slower_machine(folder: Path) -> tuple[Path, float]:
    """A log of Llama-2 13B whose steps take 15 % longer than predicted; the predicted seconds."""
    plan = sample_plan("llama2-13b", load_cluster("a100-80gb"))
    draft = read_log(write(folder, plan_log(plan), "draft.log"))
    from symconfig.measured.cases import case

    what = case(source_of(draft), as_row(draft, plan.cluster), None, plan.cluster)
    seconds = predict(what.model, what.cluster, what.configuration).predicted.step_s
    return write(folder, plan_log(plan, 1e3 * SLOWER * seconds), "train.log"), seconds


def test_a_megatron_log_sharpens_the_cluster(run: Run, tmp_path: Path) -> None:
    log, _ = log_of_a_slower_machine(tmp_path)
    profile = tmp_path / "ours.yaml"
    outcome = run("calibrate", log, "--cluster", "a100-80gb", "--out", profile, "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.json()
    errors = data["clusters"][0]["mape"]
    assert errors["before"] == pytest.approx(1 - 1 / SLOWER, rel=0.02)
    assert errors["after"] < 0.6 * errors["before"]
    assert any("a steady step takes" in remark for remark in data["remarks"])
    # Every later plan on this cluster starts from there.
    again = run("calibrate", log, "--cluster", profile, "--json").json()
    assert again["clusters"][0]["mape"]["before"] == pytest.approx(errors["after"], abs=0.002)
    ours, before = load_cluster(str(profile)), load_cluster("a100-80gb")
    assert ours.kernels.gemm_efficiency.value < before.kernels.gemm_efficiency.value


def test_a_log_without_its_cluster_or_model_asks_for_them(run: Run, tmp_path: Path) -> None:
    log, _ = log_of_a_slower_machine(tmp_path)
    outcome = run("calibrate", log)
    assert outcome.code == 2
    assert "--cluster" in outcome.err
    other = write(tmp_path, deepspeed_log(), "deepspeed.log")
    outcome = run("calibrate", other, "--cluster", "a100-80gb")
    assert outcome.code == 2
    assert "which model" in outcome.err


def test_wrong_options_are_said_together(run: Run, tmp_path: Path) -> None:
    outcome = run(
        "calibrate", tmp_path / "none.log", "--cluster", "a100-80gb", "--model", "llama2-7c", "--gpus", "0",
        "--recompute", "some",
    )  # fmt: skip
    assert outcome.code == 2
    for said in ("none.log", "llama2-7b", "--gpus", "--recompute"):
        assert said in outcome.err


def test_what_is_assumed_and_predicted_of_a_log_is_said(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, deepspeed_log(), "deepspeed.log")
    told = ("calibrate", log, "--cluster", "a100-80gb", "--model", "llama2-7b", "--gpus", "8", "--seq-length", "2048")
    said = run(*told, "--json").json()["remarks"]
    assert any("not said by the log and assumed: " in remark and "recompute none" in remark for remark in said)
    assert any("s before the fit" in remark for remark in said)
    assert not any("recompute" in remark for remark in run(*told, "--recompute", "full", "--json").json()["remarks"])


def test_what_a_log_leaves_out_names_its_option(run: Run, tmp_path: Path) -> None:
    bare = write(tmp_path, "".join(throughput(10 * step, 16.0) for step in range(1, 9)), "bare.log")
    told = ("calibrate", bare, "--cluster", "h100", "--model", "llama3.1-8b", "--gpus", "16", "--seq-length", "8192")
    outcome = run(*told)
    assert outcome.code == 2
    assert "bare.log: batch.micro: the log does not say it. Try: --micro-batch-size." in outcome.err
    assert "no global batch size" in outcome.err
    assert "Try: --global-batch-size." in outcome.err
    assert run(*told, "--micro-batch-size", "2", "--global-batch-size", "128").code == 0


def test_a_log_of_a_run_that_died_at_once_says_how(run: Run, tmp_path: Path) -> None:
    log, _ = log_of_a_slower_machine(tmp_path)
    text = log.read_text(encoding="utf-8")
    cut = text[: text.index("elapsed time")] + "\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    died = write(tmp_path, cut, "died.log")
    outcome = run("calibrate", died, "--cluster", "a100-80gb")
    assert outcome.code == 2
    assert "out of memory before the first step" in outcome.err


def test_a_run_that_no_constant_explains_says_so(run: Run, tmp_path: Path) -> None:
    log, seconds = log_of_a_slower_machine(tmp_path)
    assert "hardly helps" not in run("calibrate", log, "--cluster", "a100-80gb").out
    text = log.read_text(encoding="utf-8")
    slow = text.replace(f"(ms): {1e3 * SLOWER * seconds:.1f}", f"(ms): {1e5 * seconds:.1f}")
    assert slow != text
    assert "The fit hardly helps" in run("calibrate", write(tmp_path, slow, "slow.log"), "--cluster", "a100-80gb").out
