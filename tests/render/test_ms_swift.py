"""Target ms-swift: every option of a plan is said, needless for a reason, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.tuning import Sequences
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.ms_swift import NAME
from tests.render.bash import bash, dry_run, shellcheck
from tests.sample_plans import sample_model, sample_plan

FUSED = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
EVERY_PART = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def said(plan: Plan) -> dict[str, Any]:
    found = yaml.safe_load(render(plan, NAME)["config.yaml"])
    assert isinstance(found, dict)
    return found


def lora(training: dict[str, Any] | None = None, **adapter: Any) -> Plan:
    model = sample_model("llama2-13b-lora")
    changed = model.adapter.model_copy(update={"target_modules": EVERY_PART, **adapter})
    return sample_plan(model.model_copy(update={"adapter": changed}), tp=4, pp=2, dp=8, training=training or {})


def test_where_the_defaults_differ_the_plan_is_said() -> None:
    found = said(sample_plan("llama2-13b", zero_stage=0))
    assert found["use_distributed_optimizer"] is False
    assert found["recompute_granularity"] == "none"
    assert (found["fp16"], found["bf16"], found["torch_dtype"]) == (False, True, "bfloat16")
    assert found["packing"] is True
    assert found["max_length"] == 4096
    plan = sample_plan("qwen3-30b-a3b")
    moe = said(plan)
    assert moe["moe_router_dtype"] == "fp32"  # of 128 experts
    assert moe["moe_grouped_gemm"] is True
    few = plan.model.model_copy(update={"experts": plan.model.experts.model_copy(update={"num_experts": 16})})
    assert said(replace(plan, model=few))["moe_router_dtype"] == "none"  # ms-swift's default is fp32


@pytest.mark.parametrize(
    ("batching", "packing", "padding_free"),
    [("padded", False, False), ("padding_free", False, True), ("packed", True, None)],
)
def test_sequences_make_micro_batches_as_the_job_says(batching: Any, packing: bool, padding_free: bool | None) -> None:
    plan = sample_plan("llama2-13b")
    lengths = Sequences(mean=700.0, max=4096, batching=batching)
    found = said(replace(plan, job=plan.job.model_copy(update={"task": "sft", "sequences": lengths})))
    assert (found["packing"], found.get("padding_free")) == (packing, padding_free)


def test_adapters_lie_on_the_fused_layers() -> None:
    found = said(lora(r=16, lora_alpha=32.0))
    assert found["tuner_type"] == "lora"
    assert (found["lora_rank"], found["lora_alpha"]) == (16, 32.0)
    assert found["target_modules"] == FUSED
    assert "megatron sft" in " ".join(render(lora(), NAME)["launch.sh"].split())
    assert said(lora(target_modules=("o_proj",)))["target_modules"] == ["linear_proj"]
    whole = lora(target_modules=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
    assert said(whole)["target_modules"] == FUSED
    assert "One adapter lies on q, k and v together" not in render(whole, NAME)["REPORT.md"]


@pytest.mark.parametrize(
    ("plan", "fields"),
    [
        (lambda: lora(target_modules=("q_proj", "v_proj")), {"adapter.target_modules"}),
        (lambda: lora(method="qlora"), {"adapter.method"}),
        (lambda: sample_plan("mixtral-8x7b"), {"model_type"}),
        (lambda: sample_plan("llama2-13b", version="core_v0.15.0"), {"megatron_version"}),
        (lambda: sample_plan(sample_model("qwen2.5-7b", attention_gate="channel")), {"--attention-output-gate"}),
        (lambda: sample_plan(sample_model("qwen2.5-7b", rope_layers=[True, False] * 14)), {"--no-rope-freq"}),
        (
            lambda: sample_plan("llama2-13b", version="main", activation_offload=True, grad_bytes=2),
            {"megatron_version", "activation_offload", "grad_dtype"},
        ),
    ],
)
def test_what_ms_swift_cannot_be_told_is_refused_all_at_once(plan: Any, fields: set[str]) -> None:
    with pytest.raises(InfeasibleError) as caught:
        render(plan(), NAME)
    assert {problem.field for problem in caught.value.problems} == fields


def test_launch_starts_megatron_of_ms_swift(tmp_path: Path) -> None:
    files = render(sample_plan("llama2-13b"), NAME)
    words = dry_run(files, tmp_path, "launch.sh", "--train_iters", "10", DATASET="my data.jsonl", MODEL="/model")
    assert words == [
        "megatron", "pt", f"{tmp_path}/config.yaml", "--dataset", "my data.jsonl", "--model", "/model", "--train_iters",
        "10",
    ]  # fmt: skip
    done = bash(tmp_path / "launch.sh", cwd=tmp_path, MASTER_ADDR="node0", MODEL="/model")
    assert done.returncode == 2
    assert b"DATASET" in done.stderr
    assert shellcheck(tmp_path / "launch.sh") == ""


def test_a_run_that_loads_what_it_saves_starts_and_then_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    save = tmp_path / "it's saved"
    files = render(lora({"save": str(save), "load": f"{save}/", "data_path": ("/a.jsonl",)}), NAME)
    found = yaml.safe_load(files["config.yaml"])
    assert found["add_version"] is False
    assert not {"mcore_model", "mcore_adapter", "finetune"} & found.keys()
    assert "--mcore_adapter" not in dry_run(files, tmp_path, "launch.sh")
    (save / "checkpoint-20").mkdir(parents=True)
    (save / "last-checkpoint").symlink_to("checkpoint-20")
    words = dry_run(files, tmp_path, "launch.sh")
    assert words[3:] == ["--mcore_adapter", f"{save}/last-checkpoint", "--finetune", "false"]
    assert shellcheck(tmp_path / "launch.sh") == ""
