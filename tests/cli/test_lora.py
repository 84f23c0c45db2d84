"""LoRA on any model, as a person asks for it: options, a job's file, Python; and plans made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import symconfig
from tests.cli.support import Asked, Run

JOB = ("--cluster", "h100", "--gpus", "8", "--global-batch-size", "64", "--seq-length", "2048", "--top", "2")
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def test_one_option_is_enough(run: Run, tmp_path: Path) -> None:
    outcome = run.done("plan --model llama3.1-8b --task lora", *JOB, "--out", tmp_path / "out")
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
    run.done("plan --model llama2-7b", *JOB, *options)
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
    outcome = run(f"plan --model llama2-7b {words}", *JOB)
    assert outcome.code in (1, 2)
    assert message in outcome.err


def test_plans_are_made_again_with_other_adapters_or_over_another_model(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run.done("plan --model llama2-7b --task lora", *JOB, "--out", out)
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
