"""`symconfig audit` from the command line: exit codes, JSON, SARIF, the way on to `adapt`, and bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.support import Run

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh"
FITS = ("audit", EXAMPLE, "--cluster", "h200", "--no-plan")


def test_a_script_that_runs_out_of_memory_ends_with_1_and_names_the_stage(run: Run) -> None:
    outcome = run("audit", EXAMPLE, "--cluster", "a100-80gb", "--no-plan")
    assert outcome.code == 1
    assert "runs out of memory on stage 0" in outcome.out
    assert "the zoo's llama2-13b" in outcome.out
    assert "$DATA_ROOT, which is not set" in outcome.out


def test_a_script_that_runs_ends_with_0_and_strictly_with_1(run: Run) -> None:
    run.done(*FITS)
    assert run(*FITS, "--strict").code == 1  # it has warnings


def test_without_a_cluster_the_rules_are_asked_and_nothing_is_predicted(run: Run) -> None:
    outcome = run("audit", EXAMPLE, "--json")
    data = outcome.json()
    assert (outcome.code, data["schema"], data["run"], data["runs"]) == (0, "symconfig.audit/1", None, True)
    assert data["unpredicted"][0]["field"] == "--cluster"
    assert {"no-sequence-parallelism", "optimizer-not-sharded"} <= {finding["rule"] for finding in data["findings"]}


def test_json_has_the_run_the_best_plan_and_the_steps(run: Run, tmp_path: Path) -> None:
    files = ("--best", tmp_path / "best.json", "--sarif", tmp_path / "audit.sarif")
    data = run("audit --cluster h200 --json", EXAMPLE, *files).json()
    assert data["run"]["parallel"] == {"tp": 2, "pp": 4, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 4}
    assert data["model"]["zoo"] == "llama2-13b"
    assert data["best"]["predicted"]["step_s"] < data["run"]["predicted"]["step_s"]
    assert data["gain"] == pytest.approx(1 - data["best"]["predicted"]["step_s"] / data["run"]["predicted"]["step_s"])
    assert data["steps"][-1]["step_s"] == pytest.approx(data["best"]["predicted"]["step_s"])
    report = json.loads((tmp_path / "audit.sarif").read_text(encoding="utf-8"))
    (told,) = report["runs"]
    known = {rule["id"] for rule in told["tool"]["driver"]["rules"]}
    assert report["version"] == "2.1.0"
    assert {result["ruleId"] for result in told["results"]} <= known
    places = [where["physicalLocation"] for result in told["results"] for where in result["locations"]]
    assert all(place["artifactLocation"]["uri"].endswith("train_13b.sh") for place in places)
    assert json.loads((tmp_path / "best.json").read_text(encoding="utf-8"))["alternatives"]  # for adapt to choose from
    copy = tmp_path / "mine.sh"
    copy.write_bytes(EXAMPLE.read_bytes())
    run.done("adapt", copy, "--plan", tmp_path / "best.json", "--in-place")
    again = run("audit", copy, "--cluster", "h200", "--json").json()
    assert again["steps"] == []
    # A run is by itself: only a search judges its plans among others.
    assert {**again["run"], "standing": None} == {**data["best"], "standing": None}


SEVEN = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000 --bf16 --micro-batch-size 1 "
    "--global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
)
CALM = "--attention-dropout 0 --hidden-dropout 0 --lr 1e-4 --train-iters 9 --mock-data --tokenizer-type NullTokenizer"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS=1"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x00\x01\x02ELF" * 40, "binary"),
        (b"", "no training"),
        (b"#!/bin/bash\necho nothing here\n", "no"),
        (b"x" * 2_000_000, "large"),
    ],
)
def test_a_file_that_is_no_script_is_refused_in_a_sentence(run: Run, tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "launch.sh"
    path.write_bytes(content)
    said = run.refused("audit --cluster h100", path)
    assert said.startswith("error: ")
    assert what in said


def test_files_that_source_each_other_and_links_that_lead_out_are_named(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.sh").write_text("source b.sh\ntorchrun pretrain_gpt.py --bf16\n", encoding="utf-8")
    (folder / "b.sh").write_text("source a.sh\n", encoding="utf-8")
    assert "b.sh" in run.refused("audit", folder / "a.sh")
    (tmp_path / "outside.sh").write_text("TP=2\n", encoding="utf-8")
    os.symlink(tmp_path / "outside.sh", folder / "env.sh")
    (folder / "c.sh").write_text("source env.sh\ntorchrun pretrain_gpt.py --bf16 --lr $TP\n", encoding="utf-8")
    led = run("audit", folder / "c.sh")
    assert "names a file outside of" in led.out + led.err


def test_a_file_that_cannot_be_read_is_taken_to_set_nothing_and_that_is_said(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    line = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SEVEN} --tensor-model-parallel-size ${{TP:-2}} --lr $LR"
    script.write_text(f"source /site/env.sh\n{line}\n", encoding="utf-8")
    given = ("audit", script, "--cluster", "h100", "--no-plan")
    read = run.done(*given)
    said = "Assuming that source /site/env.sh (line 1) sets nothing to which the script gives a value."
    assert said in read.out.replace("\n", " ")
    data = run(*given, "--json").json()
    assert [(item["what"], item["options"]) for item in data["assumptions"]] == [("source /site/env.sh", False)]
    assert data["run"]["parallel"]["tp"] == 2
    assert run(*given, "--set", "TP=4", "--json").json()["run"]["parallel"]["tp"] == 4


def test_strict_is_not_content_with_what_was_not_read(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    given = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SEVEN} {CALM}"
    script.write_text(f"export {CONNECTIONS}\n. ./env.sh\n{given}\n", encoding="utf-8")
    strict = ("audit", script, "--cluster", "h100", "--no-plan", "--strict")
    assert run(*strict).code == 1
