"""The command with the real search behind it: the main job, jobs that nothing fits, two kinds of GPUs, and LoRA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import symconfig
from symconfig.api.mixed import MixedResult
from symconfig.descriptor.load import load_model
from symconfig.graph.model import sequence
from symconfig.report.grid import plain
from symconfig.report.table import mixed_blocks
from symconfig.solve.split import laid_out
from tests.cli.support import JOB, Asked, Run
from tests.descriptor.small_configs import small_config
from tests.render.bash import shellcheck

ON_8 = ("--cluster", "h100", "--gpus", "8", "--global-batch-size", "64")


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
def test_the_main_job_gives_files_that_start_it(run: Run, tmp_path: Path, backend: str) -> None:
    out = tmp_path / "out"
    best = run.done("plan --json --seq-length 4096 --backend", backend, "--out", out, *JOB).json()["best"]
    degrees, batch, predicted = best["parallel"], best["batch"], best["predicted"]
    assert degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"] == 64
    assert batch["global"] == batch["micro"] * batch["num_microbatches"] * degrees["dp"] == 1024
    assert predicted["device_bytes"] <= 0.96 * 80 * 2**30
    assert sum(predicted["time"].values()) == pytest.approx(predicted["step_s"], rel=1e-6)
    files = {path.name for path in out.rglob("*")}
    own = {"megatron": "megatron_args.txt", "deepspeed": "ds_config.json"}[backend]
    assert {"plan.json", "launch.sh", "sbatch.sh", "REPORT.md", own} <= files
    environment = {**os.environ, "DRY_RUN": "1"}
    dry = subprocess.run(["bash", str(out / "launch.sh")], env=environment, capture_output=True, text=True, timeout=300)
    assert dry.returncode == 0, dry.stderr


def test_alternatives_are_ranked_one_of_each_family_and_none_is_faster_than_the_fastest(run: Run) -> None:
    data = run("plan --top 10 --json", *JOB).json()
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
    outcome = run("plan --json --model", tmp_path, *ON_8)
    notes = [line for line in outcome.err.splitlines() if line.startswith(f"note: {tmp_path.name}:")]
    assert notes == [f"note: {tmp_path.name}: layers of multi-token prediction are left out, as its class does"]


def test_the_same_job_gives_the_same_bytes_in_two_processes(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "symconfig", "plan", *JOB, "--out", str(tmp_path / seed)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    for path in (tmp_path / "1").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "2" / path.relative_to(tmp_path / "1")).read_bytes(), path.name


@pytest.mark.parametrize(
    ("words", "codes", "said"),
    [
        ("--model llama2-13b --cluster a100-80gb --gpus 64 --global-batch-size 1023 --pin tp=1 --pin pp=1 --pin cp=1",
         (1, 2), ""),
        ("--model llama2-7b --cluster a100-80gb --gpus 8072 --global-batch-size 8", (1, 2), ""),
        ("--model llama3.1-405b --cluster a100-40gb --gpus 8 --global-batch-size 8", (1,), "GiB"),
    ],
    ids=["no division fits the batch", "more GPUs than the batch can feed", "nothing fits in memory"],
)  # fmt: skip
def test_a_refusal_names_what_can_be_done(
    run: Run, tmp_path: Path, words: str, codes: tuple[int, ...], said: str
) -> None:
    outcome = run(f"plan {words} --out", tmp_path / "out")
    assert outcome.code in codes
    assert said in outcome.err
    assert "Try: " in outcome.err
    assert not (tmp_path / "out").exists()


def test_the_python_api_is_the_same_planner(run: Run, tmp_path: Path) -> None:
    job = {"gpus": 64, "global_batch_size": 1024}
    result = symconfig.plan(model="llama2-13b", cluster="a100-80gb", pins={"tp": 2}, **job)
    data = run("plan --pin tp=2 --json", *JOB).json()
    assert json.loads(result.to_json())["best"] == data["best"]
    assert result.best.configuration.tp == 2
    assert "--tensor-model-parallel-size" in result.megatron_args()
    assert tmp_path / "out" / "plan.json" in result.write(tmp_path / "out")
    again = symconfig.plan(model=result.plan.model, cluster=result.plan.cluster, pins={"tp": "2"}, **job)
    assert again.best == result.best
    assert json.loads(result.to_json())["search"]["candidates"] > 1000


def test_what_was_chosen_for_the_run_and_what_is_missing_stands_behind_the_files(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = run("plan --model llama3.1-8b --task sft --out", tmp_path / "a", "--html", page, *ON_8)
    assert outcome.out.splitlines()[-2:] == [
        "lr 2e-05, min_lr 0, lr_warmup_iters 30, weight_decay 0: chosen for full fine-tuning of 8.03B parameters "
        "(REPORT.md has the sources)",
        "No checkpoint is written. Try: --save DIR, training.save in the job, or bash launch.sh --save DIR "
        "--save-interval 500",
    ]
    recorded = json.loads((tmp_path / "a" / "plan.json").read_text(encoding="utf-8"))["inputs"]["job"]["training"]
    assert (recorded["lr"], recorded["weight_decay"], recorded["lr_warmup_iters"]) == (2e-5, 0.0, 30)
    assert "global batch 64 sequences" in page.read_text(encoding="utf-8")
    assert "exists already" in run.refused("plan --model llama3.1-8b --html", page, *ON_8)
    said = run("plan --model llama3.1-8b --save ckpt --lr 1e-4 --out", tmp_path / "b", *ON_8).out
    assert "No checkpoint" not in said
    assert "min_lr 1e-05, lr_warmup_iters 100, weight_decay 0.1: chosen for pretraining" in said


@pytest.mark.parametrize(("length", "longer"), [(4096, False), (8192, True)])
def test_sequences_beyond_the_positions_of_a_model_are_said(
    run: Run, tmp_path: Path, length: int, longer: bool
) -> None:
    out = tmp_path / "out"
    outcome = run.done("plan --model llama2-7b --pin tp=2 --seq-length", length, "--out", out, *ON_8)
    for text in (outcome.out, " ".join((out / "REPORT.md").read_text(encoding="utf-8").split())):
        assert (f"longer than the model's max_position_embeddings of {4096:,}" in text) is longer
        assert ("rope_theta" in text) is longer
    assert f"--max-position-embeddings {length} " in (out / "megatron_args.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
def test_a_table_of_positions_has_an_end(run: Run, backend: str) -> None:
    job = "--model gpt3-175b --cluster h100 --gpus 256 --global-batch-size 256 --seq-length 4096"
    said = run.refused(f"plan {job} --backend", backend)
    assert "the model has a learned position for fewer tokens (got 4096, need at most 2048)" in said


NAME = "h100*16 + a100-80gb*16"
PINS = {"tp": "1", "pp": "4", "mbs": "1", "recompute": "none"}


@pytest.fixture(scope="module")
def result() -> MixedResult:
    return symconfig.plan_mixed("llama2-13b", NAME, 64, pins=PINS, top=3)


@pytest.fixture(scope="module")
def folder(result: MixedResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "out"
    result.write(out)
    return out


def test_each_kind_hosts_a_run_of_stages_and_the_slower_one_has_fewer_layers(result: MixedResult) -> None:
    one, other = result.best.hosts
    assert (one.stages.first, one.stages.last, other.stages.first, other.stages.last) == (0, 1, 2, 3)
    assert (one.nodes.text, other.nodes.text) == ("0 to 1", "2 to 3")
    by_name = {host.share.cluster.name: host for host in result.best.hosts}
    assert sum(by_name["h100"].layers) > 2 * sum(by_name["a100-80gb"].layers)
    assert sum(one.layers) + sum(other.layers) == 40
    for host in result.best.hosts:
        assert host.predicted.device_bytes <= host.usable_bytes
    predicted = result.best.candidate.predicted
    assert sum(predicted.time.values()) == pytest.approx(predicted.step_s, rel=1e-9)
    assert predicted.tokens_per_s_per_gpu == pytest.approx(64 * 4096 / predicted.step_s / 32, rel=1e-9)


def test_what_either_kind_does_alone_is_its_own_plan(result: MixedResult) -> None:
    for each in result.plan.alone:
        alone = symconfig.plan("llama2-13b", each.share.cluster.name, 16, 64, pins={"recompute": "none"}, top=1)
        assert each.best.predicted.step_s == alone.plan.fastest.predicted.step_s
    h100, a100 = (each.best.predicted.step_s for each in result.plan.alone if each.best is not None)
    assert result.plan.gain == pytest.approx(min(h100, a100) / result.best.candidate.predicted.step_s)
    assert result.plan.pays == (h100 > result.best.candidate.predicted.step_s)


def test_that_it_does_not_pay_is_said() -> None:
    slow = symconfig.plan_mixed("llama2-13b", f"{NAME} over 100Mb/s", 64, pins=PINS, top=1)
    assert not slow.plan.pays
    assert "It does not pay: h100 alone is" in plain(mixed_blocks(slow.plan))


def test_the_files_start_every_node_with_its_own_kind(result: MixedResult, folder: Path) -> None:
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kinds = ("stages-0-1", "stages-2-3")
    own = {f"{kind}/{name}" for kind in kinds for name in ("launch.sh", "megatron_args.txt")}
    assert paths == {"launch.sh", "REPORT.md", "mixed.json", "manifest.json", *own}
    assert json.loads((folder / "mixed.json").read_text()) == json.loads(result.to_json())
    report = (folder / "REPORT.md").read_text()
    assert all(said in report for said in ("peak GiB", "recompute none", "time of a step"))
    one, other = ((folder / kind / "megatron_args.txt").read_text() for kind in kinds)
    assert one == other
    layout = result.best.candidate.configuration.pipeline_layout
    assert layout is not None
    split = laid_out(sequence(load_model("llama2-13b")), 4, layout)
    assert split.chunks == result.best.candidate.chunks
    assert f"--pipeline-model-parallel-layout '{layout}'" in one.replace('"', "'") or layout in one
    for script in (folder / "launch.sh", *(folder / kind / "launch.sh" for kind in kinds)):
        assert shellcheck(script) == ""


def test_a_node_is_told_by_its_rank(folder: Path) -> None:
    def started(**environment: str) -> subprocess.CompletedProcess[str]:
        known = {"PATH": "/usr/bin:/bin", "DRY_RUN": "1", "MASTER_ADDR": "first", **environment}
        command = ["bash", str(folder / "launch.sh"), "--exit-interval", "5"]
        return subprocess.run(command, env=known, capture_output=True, text=True, check=False)

    said = [started(NODE_RANK=str(rank)) for rank in range(4)]
    assert [each.returncode for each in said] == [0] * 4
    words = [each.stdout.splitlines() for each in said]
    assert [each[each.index("--node-rank") + 1] for each in words] == ["0", "1", "2", "3"]
    assert {each[each.index("--nnodes") + 1] for each in words} == {"4"}
    assert len({tuple(each[each.index("--master-port") :]) for each in words}) == 1
    assert words[3][-2:] == ["--exit-interval", "5"]
    unknown = started()
    assert (unknown.returncode, "0 to 1 are" in unknown.stderr) == (2, True)
    assert "the plan is for 4 nodes, got NODE_RANK 4" in started(NODE_RANK="4").stderr
    assert "Ranks follow the pipeline" in (folder / "REPORT.md").read_text()


LORA_JOB = ("--cluster", "h100", "--gpus", "8", "--global-batch-size", "64", "--seq-length", "2048", "--top", "2")
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def test_one_option_is_enough(run: Run, tmp_path: Path) -> None:
    outcome = run.done("plan --model llama3.1-8b --task lora", *LORA_JOB, "--out", tmp_path / "out")
    assert "LoRA of rank 16, alpha 32, on all-linear: 41,943,040 parameters are trained\n" in outcome.out
    launch = (tmp_path / "out" / "launch.sh").read_text()
    assert f"--lora-target-modules={','.join(PARTS)}" in launch
    assert "DEFAULT_MODEL=meta-llama/Llama-3.1-8B\n" in launch
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["inputs"]["model"]["adapter"]["r"] == 16
    assert (plan["best"]["target"]["backend"], plan["inputs"]["job"]["task"]) == ("deepspeed", "lora")


def test_options_reach_the_search_as_the_section_does(run: Run, asked: Asked, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama2-7b\ncluster: h100\ngpus: 8\nglobal_batch_size: 64\n"
        "lora: {r: 8, alpha: 4, targets: [q_proj, v_proj], dropout: 0.1}\n"
    )
    run.done("plan", job)
    section = asked.model
    options = ("--lora-r", "8", "--lora-alpha", "4", "--lora-targets", "q_proj,v_proj", "--lora-dropout", "0.1")
    run.done("plan --model llama2-7b", *LORA_JOB, *options)
    assert asked.model == section
    assert section.adapter.model_dump() == {
        "method": "lora", "r": 8, "lora_alpha": 4.0, "lora_dropout": 0.1, "target_modules": ("q_proj", "v_proj")
    }  # fmt: skip
    run.done("plan", job, "--lora-r", "2")  # an option over the file's section
    assert (asked.model.adapter.r, asked.model.adapter.lora_alpha) == (2, 4.0)


@pytest.mark.parametrize(("words", "message"), [
    ("--task lora --target megatron",
     "Megatron-LM has no LoRA or other adapters (got lora). Try: --target bridge or ms-swift, or --backend deepspeed."),
    ("--lora-targets q_proj --backend megatron", "CanonicalLoRA calls an adapter of each part"),
    ("--lora-method qlora --backend megatron",
     "adapter: Megatron-Bridge keeps no base weights in 4 bits. Try: --backend deepspeed."),
    ("--hf-weights x --task pretrain --target megatron",
     "--hf-weights: Megatron-LM does not start from Hugging Face weights"),
])  # fmt: skip
def test_what_cannot_be_is_said_in_the_words_of_the_command_line(words: str, message: str, run: Run) -> None:
    outcome = run(f"plan --model llama2-7b {words}", *LORA_JOB)
    assert outcome.code in (1, 2)
    assert message in outcome.err


def test_plans_are_made_again_with_other_adapters_or_over_another_model(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run.done("plan --model llama2-7b --task lora", *LORA_JOB, "--out", out)
    unchanged = symconfig.replan(out, top=1).new
    assert unchanged.plan.model.adapter is not None
    assert unchanged.to_dict()["inputs"] == json.loads((out / "plan.json").read_text())["inputs"]
    wider = symconfig.replan(out, lora={"r": 32}, top=1).new.plan
    assert (wider.model.adapter.r, wider.model.adapter.lora_alpha) == (32, 64.0)
    other = symconfig.replan(out, model="llama2-13b", top=1).new.plan
    assert other.model.adapter is not None
    assert (other.model.name, other.job.task, other.best.target.backend) == ("llama2-13b", "lora", "deepspeed")
    fused = symconfig.replan(out, backend="megatron", top=1).new.plan
    assert "qkv_proj" in fused.model.adapter.target_modules
    assert "Nothing is edited or stale" in run("verify --frozen", out).out
