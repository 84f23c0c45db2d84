"""Axolotl's YAML: what it says of a plan, and what comes back of it. For real: `python -m tools verify formats`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import symconfig
from symconfig.api import existing
from symconfig.descriptor.load import load_model
from symconfig.errors import InfeasibleError
from symconfig.render import render
from symconfig.render.files import write
from tests.render.bash import dry_run, shellcheck
from tests.sample_plans import sample_plan

LENGTHS = {"mean": 700.0, "p95": 1500.0, "max": 2048, "batching": "packed"}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            {"task": "sft", "pins": {"zero": "3", "recompute": "full"}},
            {"gradient_checkpointing": True, "sample_packing": False},
        ),
        (
            {"pins": {"zero": "2"}, "task": "lora", "lora": {"r": 16, "method": "qlora"}},
            {"adapter": "qlora", "load_in_4bit": True},
        ),
        ({"task": "sft", "pins": {"zero": "2"}, "sequences": LENGTHS}, {"attn_implementation": "flash_attention_2"}),
        ({"task": "sft", "backend": "fsdp", "pins": {"instances": "2"}}, {"fsdp_version": 2, "dp_replicate_size": 2}),
        (
            {"task": "lora", "backend": "fsdp", "pins": {"instances": "1"}, "lora": {"r": 16}},
            {"adapter": "lora", "lora_r": 16},
        ),
    ],
)
def test_a_plan_comes_back(job: dict[str, Any], said: dict[str, Any], tmp_path: Path) -> None:
    plan = symconfig.plan("qwen3-4b", "h100", 8, 64, 2048, target="axolotl", top=1, **job).plan
    files = render(plan, "axolotl")
    config = yaml.safe_load(files["config.yaml"])
    assert said.items() <= config.items()
    assert (config["base_model"], config["sequence_len"]) == ("Qwen/Qwen3-4B", 2048)
    write(files, tmp_path / "files")
    found = existing.audit(str(tmp_path / "files" / "launch.sh"), "h100", gpus=8, plan=False)
    assert found.judged is not None, found.unpredicted
    assert not found.findings
    again = found.judged.plan
    assert (again.best.configuration, again.best.configuration) == (plan.best.configuration, plan.best.configuration)
    assert again.best.configuration.instances == plan.best.configuration.instances
    assert again.model.adapter == plan.model.adapter
    assert again.best.predicted.peak_bytes == pytest.approx(plan.best.predicted.peak_bytes, rel=1e-3)


def test_its_command_line_and_presets_are_read(tmp_path: Path) -> None:
    (tmp_path / "job.yml").write_text(
        "base_model: Qwen/Qwen3-8B\nadapter: lora\nlora_r: 32\nlora_alpha: 16\nlora_target_linear: true\n"
        "datasets: [{path: x, type: alpaca}]\nsequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
        "bf16: auto\ngradient_checkpointing: true\nlearning_rate: 2e-4\ndeepspeed: deepspeed_configs/zero2.json\n"
    )
    (tmp_path / "run.sh").write_text("axolotl train job.yml\n")
    found = existing.audit(str(tmp_path / "run.sh"), "h100", gpus=8, plan=False)
    assert found.judged is not None, found.unpredicted
    best, adapter = found.judged.plan.best, found.judged.plan.model.adapter
    assert found.reader.label == "axolotl with deepspeed workers"
    assert (best.configuration.micro, best.configuration.num_microbatches, best.configuration.seq_length) == (
        2,
        4,
        4096,
    )
    assert (best.configuration.zero_stage, best.configuration.recompute) == (2, "full")
    assert (adapter.method, adapter.r, adapter.lora_alpha, len(adapter.target_modules)) == ("lora", 32, 16.0, 7)


def test_launch_sh_starts_its_module_and_other_tasks_are_refused(tmp_path: Path) -> None:
    plan = sample_plan(load_model("qwen2.5-7b-lora"), backend="deepspeed")
    words = dry_run(render(plan, "axolotl"), tmp_path / "out", "launch.sh", "--max_steps=3")
    start = words.index("axolotl.cli.train")
    assert [Path(word).name for word in words[start + 1 :]] == ["config.yaml", "ds_config_hf.json", "--max_steps=3"]
    assert shellcheck(tmp_path / "out" / "launch.sh") == ""
    with pytest.raises(InfeasibleError, match="axolotl is not for this task"):
        render(replace(plan, job=plan.job.model_copy(update={"task": "reward"})), "axolotl")


def test_pretraining_packs_texts_and_starts_from_random_weights() -> None:
    plan = sample_plan(load_model("qwen2.5-7b"), backend="deepspeed", training={"data_path": ("a.jsonl",)})
    config = yaml.safe_load(render(plan, "axolotl")["config.yaml"])
    assert (config["reinit_weights"], config["sample_packing"], config["attn_implementation"]) == (True, True, "sdpa")
    assert config["datasets"] == [{"path": "a.jsonl", "ds_type": "json", "type": "completion"}]
