"""The YAML of TRL, LLaMA-Factory and Axolotl, key by key, as their own pages name them: held apart from the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import symconfig
from symconfig.api import existing
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.render.tuners import template
from tests.render.bash import bash, dry_run, shellcheck
from tests.runs.rl.support import section
from tests.sample_plans import sample_plan

LENGTHS = {"mean": 700.0, "p95": 1500.0, "max": 2048}
PAIRS = {"preference": {"pairs": 64, "beta": 0.3, "loss": "ipo"}, "sequences": LENGTHS, "pins": {"zero": "2"}}
LORA = {"lora": {"r": 8, "alpha": 4, "dropout": 0.25}}
# Of a step of 8 GPUs, what is not of the Trainer.
TRL_STEP = {
    "model_name_or_path": "Qwen/Qwen3-4B", "dtype": "bfloat16", "attn_implementation": "sdpa", "loss_type": "dapo",
    "mask_truncated_completions": True, "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0, "num_iterations": 2,
    "entropy_coef": 0.001, "generation_batch_size": 256, "num_generations": 8, "max_completion_length": 1024,
    "use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True, "vllm_max_model_length": 1280,
}  # fmt: skip
TRL_PAIRS = {
    "use_peft": True,
    "lora_r": 8,
    "lora_alpha": 4,
    "lora_dropout": 0.25,
    "loss_type": ["ipo"],
    "beta": 0.3,
    "precompute_ref_log_probs": False,
    "max_length": 2048,
    "disable_dropout": False,
}
QLORA = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
FACTORY_PAIRS = {
    "model_name_or_path": "Qwen/Qwen3-4B", "flash_attn": "sdpa", "disable_gradient_checkpointing": True, "stage": "dpo",
    "do_train": True, "pref_loss": "ipo", "pref_beta": 0.3, "finetuning_type": "lora", "lora_rank": 8, "lora_alpha": 4,
    "lora_dropout": 0.25, "lora_target": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "cutoff_len": 2048,
    "template": "qwen3",
}  # fmt: skip
FACTORY_QLORA = {
    "quantization_bit": 4,
    "quantization_method": "bnb",
    "quantization_type": "nf4",
    "double_quantization": True,
}


@pytest.mark.parametrize(
    ("target", "file", "job", "said"),
    [
        ("trl", "config.yaml", PAIRS | LORA, TRL_PAIRS),
        ("trl", "config.yaml", PAIRS | {"lora": LORA["lora"] | {"method": "qlora"}}, TRL_PAIRS | QLORA),
        ("llamafactory", "train.yaml", PAIRS | LORA, FACTORY_PAIRS),
        ("llamafactory", "train.yaml", PAIRS | {"lora": LORA["lora"] | {"method": "qlora"}}, FACTORY_QLORA),
    ],
)
def test_pairs_and_adapters_are_said(target: str, file: str, job: dict[str, Any], said: dict[str, Any]) -> None:
    plan = symconfig.plan("qwen3-4b", "h100", 8, target=target, top=1, **job).plan
    assert said.items() <= yaml.safe_load(render(plan, target)[file]).items()


@pytest.mark.parametrize("algorithm", ["dapo", "gspo"])
def test_a_step_is_said(algorithm: str) -> None:
    fields = {"algorithm": algorithm, "prompts": 32, "samples": 8, "epochs": 2, "entropy": True, "reference": False}
    lengths = {"prompt_length": {"mean": 100.0, "max": 256}, "response_length": {"mean": 300.0, "max": 1024}}
    step = section(**fields, **lengths)
    plan = symconfig.plan("qwen3-4b", "h100", 8, target="trl", top=1, rl=step).plan
    config = yaml.safe_load(render(plan, "trl")["config.yaml"])
    said = TRL_STEP
    if algorithm == "gspo":
        said = said | {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4}
        said = {
            name: value for name, value in said.items() if name not in ("mask_truncated_completions", "epsilon_high")
        }
    assert said.items() <= config.items()
    engine = (config["vllm_tensor_parallel_size"], config["vllm_gpu_memory_utilization"])
    assert engine == (plan.rl[0].rollout_tp, plan.rl[0].memory_share)


def plan(model: str = "qwen2.5-7b", **fields: Any) -> Plan:
    return sample_plan(load_model(model), backend="deepspeed", **fields)


def said(of: Plan) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(render(of, "llamafactory")["train.yaml"])
    return data


def test_shards_of_fsdp_are_accelerates_and_layers_run_again_by_its_own_switch() -> None:
    """Its checkpointing is its own (model/model_utils/checkpointing.py): Accelerate's would be another around it."""
    again = {"recompute": "full", "recompute_method": "uniform"}
    files = render(sample_plan(load_model("qwen2.5-7b"), backend="fsdp", tp=1, pp=1, **again), "llamafactory")
    data, config = (yaml.safe_load(files[name]) for name in ("train.yaml", "accelerate_config.yaml"))
    assert data["disable_gradient_checkpointing"] is False
    assert "deepspeed" not in data
    assert (config["distributed_type"], config["fsdp_config"]["fsdp_version"]) == ("FSDP", 2)
    assert config["fsdp_config"]["fsdp_activation_checkpointing"] is False


def test_everything_that_it_has_no_words_for_is_refused_at_once() -> None:
    with pytest.raises(InfeasibleError) as caught:
        render(
            plan("qwen-7b", tp=2, dp=4, zero_stage=2, sequence_parallel=False, training={"lr_decay_iters": 9}),
            "llamafactory",
        )
    assert {problem.field for problem in caught.value.problems} == {"tp", "model_type", "training.lr_decay_iters"}


def test_every_zoo_model_of_a_family_with_a_template_gets_it() -> None:
    families = {name: template(load_model(name)) for name in zoo_models()}
    assert families["llama2-70b-lora"] == "llama2"
    assert families["llama3.1-8b"] == "llama3"
    assert families["gpt3-175b"] is None


@pytest.mark.parametrize("save", [None, "runs/one"])
def test_checkpoints_lie_where_it_was_started_and_not_beside_the_files(tmp_path: Path, save: str | None) -> None:
    """Whose folder may be read-only: a ConfigMap."""
    write(render(plan(training={"save": save}), "llamafactory"), tmp_path / "files")
    (tmp_path / "work").mkdir()
    done = bash(tmp_path / "files" / "launch.sh", cwd=tmp_path / "work", DRY_RUN="1")
    assert done.stdout.decode().split()[2:] == ["train.yaml", f"output_dir={tmp_path}/work/{save or 'checkpoints'}"]
    assert shellcheck(tmp_path / "files" / "launch.sh") == ""


PACKED = {"mean": 700.0, "p95": 1500.0, "max": 2048, "batching": "packed"}


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
        ({"task": "sft", "pins": {"zero": "2"}, "sequences": PACKED}, {"attn_implementation": "flash_attention_2"}),
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
