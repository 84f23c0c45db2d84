"""`--set FIELD=VALUE`: what differs from the cluster, on every command that plans on one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from symconfig.descriptor.load import load_cluster
from symconfig.plans.file import load_plan
from tests.cli.support import JOB, Asked, Run
from tests.sample_plans import sample_plan

NETWORK = "network=4x200Gb/s"
NAME = "a100-80gb with network=4x200Gb/s"


def test_plan_lays_it_over_the_cluster_and_the_job_records_it(run: Run, asked: Asked) -> None:
    run.done("plan", *JOB, "--set", NETWORK, "--set", "gpu_memory=70GB")
    assert asked.job.cluster == asked.cluster.name == f"{NAME} and gpu_memory=70GB"
    assert asked.cluster == load_cluster(asked.job.cluster)
    assert asked.cluster.levels[-1].bandwidth_bytes_per_s.value == 12.5e9


def test_it_is_laid_over_a_file_and_over_the_cluster_of_a_job(run: Run, asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("base: h100\nnetwork: 1x100Gb/s\ngpu_memory: 60GB\n", encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text("model: llama2-13b\ncluster: ours.yaml\ngpus: 64\nglobal_batch_size: 1024\n", encoding="utf-8")
    run.done("plan", job, "--set", NETWORK)
    assert asked.cluster.name == f"ours with {NETWORK}"
    assert asked.cluster.gpu.memory_bytes.value == 60e9
    assert asked.cluster.levels[-1].bandwidth_bytes_per_s.value == 12.5e9
    run.done("plan", *JOB[:2], "--cluster", "h100 with network=1x100Gb/s", *JOB[4:], "--set", NETWORK)
    assert asked.cluster.name == f"h100 with {NETWORK}"


def test_a_plan_records_the_whole_cluster_and_names_it_above_the_table(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = "plan --model llama2-7b --cluster a100-80gb --gpus 8 --global-batch-size 16 --pin tp=1"
    ended = run.done(words, "--set", NETWORK, "--out", out)
    assert f"llama2-7b on 8 x NVIDIA A100-SXM4-80GB ({NAME})" in ended.out
    data = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert data["inputs"]["job"]["cluster"] == data["inputs"]["cluster"]["name"] == NAME
    assert load_plan(out / "plan.json").cluster == load_cluster(NAME)
    run.done("verify --frozen", out)
    run.done("explain", out)
    data["inputs"]["cluster"]["levels"][1]["bandwidth_bytes_per_s"]["value"] = 1e9
    (out / "plan.json").write_text(json.dumps(data), encoding="utf-8")
    assert "cluster" in run.refused("explain", out)


def test_replan_changes_the_recorded_cluster_though_its_file_is_gone(run: Run, asked: Asked, tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b")
    plan = replace(plan, job=plan.job.model_copy(update={"cluster": "gone.yaml"}))
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    run.done("replan --set", NETWORK, path)
    assert asked.cluster.name == f"{plan.cluster.name} with {NETWORK}"
    assert asked.job.cluster == f"{plan.job.cluster} with {NETWORK}"
    assert asked.cluster.levels[-1].bandwidth_bytes_per_s.value == 12.5e9


def test_partition_takes_it(run: Run) -> None:
    words = "partition --model llama2-7b --cluster h100 --gpus 16 --global-batch-size 16 --solver adaptive"
    ended = run.done(f"{words} --set network=1x100Gb/s")
    assert "(h100 with network=1x100Gb/s)" in ended.out
    assert "rail (1.56 GB/s)" in ended.out


def test_audit_takes_what_differs_in_the_name_of_the_cluster(run: Run) -> None:
    words = (
        "--num-layers 8 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
        "--micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 --tokenizer-type NullTokenizer"
    )

    def seconds(cluster: str) -> float:
        told = run("audit", words, "--gpus", "64", "--cluster", cluster, "--no-plan", "--json").json()
        found: float = told["run"]["predicted"]["step_s"]
        return found

    assert seconds("h100 with network=1x100Gb/s") > seconds("h100")


def test_check_sees_that_the_file_below_the_changes_is_another_one(run: Run, tmp_path: Path) -> None:
    ours, out = tmp_path / "ours.yaml", tmp_path / "out"
    ours.write_text("base: a100-80gb\ngpu_memory: 75GB\n", encoding="utf-8")
    words = ("--model", "llama2-7b", "--cluster", ours, "--gpus", "8", "--global-batch-size", "16", "--pin", "tp=1")
    run.done("plan", *words, "--set", NETWORK, "--out", out)
    run.done("verify --frozen", out)
    ours.write_text("base: a100-80gb\ngpu_memory: 70GB\n", encoding="utf-8")
    ended = run("verify --frozen", out)
    assert ended.code == 1
    assert "cluster" in ended.out
