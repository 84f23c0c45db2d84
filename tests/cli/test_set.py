"""`--set FIELD=VALUE`: what differs from the cluster, on every command that plans on one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import symconfig
from symconfig.api.replan import replan  # before the stub of the search is there, which has not all that it imports
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.plans.file import load_plan
from symconfig.plans.plan import Plan
from tests.cli.support import JOB, Asked, Run, asked, replace_search, run
from tests.sample_plans import sample_plan

__all__ = ["asked", "run"]

NETWORK = "network=4x200Gb/s"
NAME = "a100-80gb with network=4x200Gb/s"


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(sample_plan("llama2-13b").to_json(), encoding="utf-8")
    return path


def test_plan_lays_it_over_the_cluster_and_the_job_records_it(run: Run, asked: Asked) -> None:
    assert run("plan", *JOB, "--set", NETWORK, "--set", "gpu_memory=70GB").code == 0
    assert asked.cluster is not None
    assert asked.job is not None
    assert asked.job.cluster == asked.cluster.name == f"{NAME} and gpu_memory=70GB"
    assert asked.cluster == load_cluster(asked.job.cluster)
    assert asked.cluster.levels[-1].bandwidth_bytes_per_s.value == 12.5e9


def test_it_is_laid_over_a_file_and_over_the_cluster_of_a_job(run: Run, asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("base: h100\nnetwork: 1x100Gb/s\ngpu_memory: 60GB\n", encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text("model: llama2-13b\ncluster: ours.yaml\ngpus: 64\nglobal_batch_size: 1024\n", encoding="utf-8")
    assert run("plan", job, "--set", NETWORK).code == 0
    assert asked.cluster is not None
    assert asked.cluster.name == f"ours with {NETWORK}"
    assert asked.cluster.gpu.memory_bytes.value == 60e9
    assert asked.cluster.levels[-1].bandwidth_bytes_per_s.value == 12.5e9
    assert run("plan", *JOB[:2], "--cluster", "h100 with network=1x100Gb/s", *JOB[4:], "--set", NETWORK).code == 0
    assert asked.cluster.name == f"h100 with {NETWORK}"


def test_a_job_may_hold_what_differs_as_a_section(run: Run, asked: Asked, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    text = "model: llama2-13b\ncluster:\n  base: h100\n  network: 4x200Gb/s\ngpus: 64\nglobal_batch_size: 1024\n"
    job.write_text(text, encoding="utf-8")
    assert run("plan", job, "--set", "gpu_memory=70GB").code == 0
    assert asked.job is not None
    assert asked.job.cluster == f"h100 with {NETWORK} and gpu_memory=70GB"
    job.write_text(text.replace("network", "netwrok"), encoding="utf-8")
    ended = run("plan", job)
    assert ended.code == 2
    assert f"error: {job}:4:12: cluster.netwrok: unknown field. Try: network." in ended.err
    job.write_text(text.replace("  base: h100\n", ""), encoding="utf-8")
    assert "cluster.base: this field is missing" in run("plan", job).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "netwrok=4x200Gb/s"], "--set netwrok: unknown field. Try: network."),
        (["--set", "network"], "--set: is no field of a cluster with a value (got network, need FIELD=VALUE as"),
        (["--set", "gpu_memory=96", "--set", "nvlink=x"], "--set gpu_memory: has no unit (got 96, need a size as 96GB"),
        (["--set", "gpu.vendor=apple"], "--set gpu.vendor: wrong value (got \"apple\", need 'nvidia', 'amd' or"),
        (["--cluster", "h100 with nvlink=fast"], "--cluster: nvlink: 'fast' is not understood (got fast, need a speed"),
    ],
)  # fmt: skip
def test_a_wrong_change_is_said_in_the_words_of_the_option(run: Run, words: list[str], said: str) -> None:
    ended = run("plan", *JOB, *words)
    assert ended.code == 2
    assert f"error: {said}" in ended.err


def test_a_plan_records_the_cluster_whole_with_its_digest_and_names_it_above_the_table(
    run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("--model", "llama2-7b", "--cluster", "a100-80gb", "--gpus", "8", "--global-batch-size", "16")
    ended = run("plan", *words, "--pin", "tp=1", "--set", NETWORK, "--out", out)
    assert ended.code == 0
    assert f"llama2-7b on 8 x NVIDIA A100-SXM4-80GB ({NAME})" in ended.out
    data = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert data["inputs"]["job"]["cluster"] == data["inputs"]["cluster"]["name"] == NAME
    assert load_plan(out / "plan.json").cluster == load_cluster(NAME)
    assert run("verify", "--frozen", out).code == 0
    assert run("explain", out).code == 0
    data["inputs"]["cluster"]["levels"][1]["bandwidth_bytes_per_s"]["value"] = 1e9
    (out / "plan.json").write_text(json.dumps(data), encoding="utf-8")
    edited = run("explain", out)
    assert edited.code == 2
    assert "cluster" in edited.err


def test_replan_changes_the_recorded_cluster_though_its_file_is_gone(run: Run, asked: Asked, tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b")
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    ended = run("replan", path, "--set", NETWORK)
    assert ended.code == 0, ended.err
    assert asked.cluster is not None
    assert asked.job is not None
    assert asked.cluster.name == f"{plan.cluster.name} with {NETWORK}"
    assert asked.job.cluster == f"{plan.job.cluster} with {NETWORK}"
    assert asked.cluster.levels[-1].bandwidth_bytes_per_s.value == 12.5e9


def test_replan_takes_another_cluster_with_changes(run: Run, asked: Asked, plan_file: Path) -> None:
    assert run("replan", plan_file, "--cluster", "h100", "--set", NETWORK).code == 0
    assert asked.cluster is not None
    assert asked.cluster.name == f"h100 with {NETWORK}"
    ended = run("replan", plan_file, "--set", "nvlnk=3GB/s")
    assert ended.code == 2
    assert "error: --set nvlnk: unknown field. Try: nvlink." in ended.err


def test_fewer_nodes_make_the_plan_again_for_the_changed_cluster(
    run: Run, monkeypatch: pytest.MonkeyPatch, plan_file: Path
) -> None:
    seen: list[tuple[str, object]] = []

    def search(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, **_: object) -> Plan:
        seen.append((cluster.name, job.gpus))
        return replace(sample_plan("llama2-13b"), cluster=cluster)

    replace_search(monkeypatch, search)
    ended = run("replan", plan_file, "--set", NETWORK, "--lose-nodes", "1")
    assert seen == [(NAME, 64), (NAME, 56)]
    assert f"({NAME})" in ended.out
    assert "note: the plan itself is made again first" in ended.err
    ended = run("replan", plan_file, "--lose-nodes", "1", "--set", "netwrok=1")
    assert (ended.code, ended.out) == (2, "")
    assert "error: --set netwrok: unknown field. Try: network." in ended.err


def test_size_lays_it_over_every_cluster_and_prices_keep_their_names(run: Run) -> None:
    words = ("size", "llama2-7b", "--tokens", "1e9", "--deadline", "90d", "--gpus-max", "8", "--price", "h100=2")
    found = run(*words, "--clusters", "h100,a100-80gb with gpu_memory=70GB", "--set", NETWORK, "--json").json()
    names = [one["cluster"] for one in found["clusters"]]
    assert names == [f"h100 with {NETWORK}", f"a100-80gb with gpu_memory=70GB and {NETWORK}"]
    assert [one["tried"][0]["cost"] is not None for one in found["clusters"]] == [True, False]
    ended = run(*words, "--clusters", "h100,l40s", "--set", "nvlink=100GB/s")
    assert ended.code == 2
    assert ended.err == "error: --set nvlink: l40s has no such link (got 100GB/s, need one of its links: pcie).\n"


def test_sweep_lays_it_over_every_cluster_wherever_it_is_named(run: Run, tmp_path: Path) -> None:
    sweep, table = tmp_path / "sweep.yaml", tmp_path / "out.csv"
    sweep.write_text(
        "job: {model: llama2-7b, global_batch_size: 16, gpus: 8}\n"
        "sweep:\n  cluster: [h100, {base: a100-80gb, network: 1x100Gb/s}, h200]\n"
        "exclude:\n  - {cluster: [h200]}\n",
        encoding="utf-8",
    )
    ended = run("sweep", sweep, "--out", table, "--set", "gpu_memory=75GB", "--jobs", "1")
    assert ended.code == 0, ended.err
    rows = table.read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3
    assert ",h100 with gpu_memory=75GB," in rows[1]
    assert ",a100-80gb with network=1x100Gb/s and gpu_memory=75GB," in rows[2]
    ended = run("sweep", sweep, "--out", table, "--set", "gpu_memory=75", "--force")
    assert ended.err == "error: --set gpu_memory: has no unit (got 75, need a size as 96GB or 90GiB).\n"
    sweep.write_text(sweep.read_text(encoding="utf-8").replace("network", "netwrok"), encoding="utf-8")
    ended = run("sweep", sweep, "--out", table, "--force")
    assert f"error: {sweep}:3:19: sweep.cluster[1]: netwrok: unknown field. Try: network." in ended.err


def test_partition_takes_it(run: Run) -> None:
    words = ("partition", "--model", "llama2-7b", "--cluster", "h100", "--gpus", "16", "--global-batch-size", "16")
    ended = run(*words, "--set", "network=1x100Gb/s")
    assert ended.code == 0
    assert "(h100 with network=1x100Gb/s)" in ended.out
    assert "rail (2 GB/s)" in ended.out
    assert "error: --set netw: unknown field. Try: network." in run(*words, "--set", "netw=1").err


def test_audit_and_adapt_say_where_a_field_of_the_cluster_goes(run: Run, plan_file: Path, tmp_path: Path) -> None:
    said = (
        "error: --set: network is a field of a cluster, and --set is for variables of the script here "
        "(got network=4x200Gb/s). Try: "
    )
    script = tmp_path / "train.sh"
    script.write_text("python pretrain_gpt.py --num-layers $LAYERS\n", encoding="utf-8")
    assert (
        run("audit", script, "--cluster", "h200", "--set", NETWORK).err == f"{said}--cluster 'h200 with {NETWORK}'.\n"
    )
    assert run("adapt", script, "--plan", plan_file, "--set", NETWORK).err == (
        f"{said}symconfig replan {plan_file} --set {NETWORK} --out DIR, then --plan DIR.\n"
    )
    script.write_text("python pretrain_gpt.py --num-layers ${network}\n", encoding="utf-8")  # then it is the script's
    assert "is a field of a cluster" not in run("audit", script, "--set", "network=4").err


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
    ended = run("audit", words, "--cluster", "h200 with network=fast")
    assert ended.err.startswith("error: --cluster: network: 'fast' is not understood")


def test_python_takes_what_differs_as_a_mapping(asked: Asked) -> None:
    cluster = {"base": "h100", "network": "4x200Gb/s", "levels": {"rail": {"size": 128}}}
    symconfig.plan("llama2-13b", cluster, 64, 1024)
    assert asked.job is not None
    assert asked.cluster is not None
    assert asked.job.cluster == f"h100 with {NETWORK} and levels.rail.size=128"
    assert asked.cluster == load_cluster(asked.job.cluster)
    symconfig.plan("llama2-13b", f"h100 with {NETWORK}", 64, 1024)
    assert asked.job.cluster == f"h100 with {NETWORK}"
    replan(sample_plan("llama2-13b"), cluster={"gpu_memory": "70GB"})
    assert asked.cluster.gpu.memory_bytes.value == 70e9
    replan(sample_plan("llama2-13b"), cluster={"base": "h200", "gpu_memory": "70GB"})
    assert asked.job.cluster == "h200 with gpu_memory=70GB"
    with pytest.raises(InputError, match=r"^cluster.base: this field is missing"):
        symconfig.plan("llama2-13b", {"network": "4x200Gb/s"}, 64, 1024)


def test_check_sees_that_the_file_below_the_changes_is_another_one(run: Run, tmp_path: Path) -> None:
    ours, out = tmp_path / "ours.yaml", tmp_path / "out"
    ours.write_text("base: a100-80gb\ngpu_memory: 75GB\n", encoding="utf-8")
    words = ("--model", "llama2-7b", "--cluster", ours, "--gpus", "8", "--global-batch-size", "16", "--pin", "tp=1")
    assert run("plan", *words, "--set", NETWORK, "--out", out).code == 0
    assert run("verify", "--frozen", out).code == 0
    ours.write_text("base: a100-80gb\ngpu_memory: 70GB\n", encoding="utf-8")
    ended = run("verify", "--frozen", out)
    assert ended.code == 1
    assert "cluster" in ended.out


def test_diff_names_the_level_and_not_its_sources(run: Run, tmp_path: Path) -> None:
    plan, other = (
        sample_plan("llama2-13b", load_cluster("h100")),
        sample_plan("llama2-13b", load_cluster("h100 with nvlink=300GB/s")),
    )
    for name, each in (("a.json", plan), ("b.json", other)):
        (tmp_path / name).write_text(each.to_json(), encoding="utf-8")
    changes = {one["field"] for one in run("diff", tmp_path / "a.json", tmp_path / "b.json", "--json").json()["inputs"]}
    assert changes == {
        "cluster.name",
        "cluster.levels.nvlink.bandwidth_bytes_per_s.value",
        "cluster.kernels.link_efficiency.uncertainty",
    }
