"""Scripts of TRL, LLaMA-Factory, ms-swift and NeMo-RL that get another plan: read back they are that plan, and all else
stands as it did."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api import existing
from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.runs.adapting.adaptation import Adaptation
from tests.existing.audit.test_tuners import BASE, CHILD, DPO, FACTORY, GRPO, ZERO3, audited, written
from tests.runs.rl.support import planned, section

LENGTHS = {"prompt_length": {"mean": 300.0, "max": 1024}, "response_length": {"mean": 900.0, "max": 2048}}
PAIRS: dict[str, Any] = {"preference": {"pairs": 64}, "sequences": {"mean": 600.0, "max": 2048}, "target": "trl"}
AUTO = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}'
LONGER = LENGTHS | {"response_length": {"mean": 900.0, "max": 3072}}  # which is all that the script has room for
FSDP2 = """distributed_type: FSDP  # shards
fsdp_config:
  fsdp_version: 2
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
TRL_YAML = """model_name_or_path: Qwen/Qwen3-8B  # keep me
num_generations: 4
gradient_accumulation_steps: 4
use_vllm: true
vllm_max_model_length: 1280
max_completion_length: 1024
gradient_checkpointing: false
"""


@cache
def pairs(target: str, gpus: int = 8, **pins: str) -> Plan:
    return symconfig.plan("qwen3-8b", "h100", gpus, pins=pins, **(PAIRS | {"target": target})).plan


def adapted(path: str, plan: Plan) -> Adaptation:
    """Adapt files in place. A second time there is nothing to change."""
    done = existing.adapt(path, plan, best="planned")
    for file, data in done.files.items():
        Path(file).write_bytes(data)
    assert not existing.adapt(path, plan, best="planned").changes
    return done


def holds(path: str, plan: Plan, within: float = 1e-3, **more: Any) -> None:
    """Hold what a script is read as against a plan: degrees, options and each phase's memory."""
    found = audited(path, **more)
    assert found.judged is not None, found.unpredicted
    best, mine = found.judged.plan.best, plan.best
    assert best.parallel == mine.parallel
    for name in ("zero_stage", "optimizer_offload", "param_offload", "instances", "precision"):
        assert getattr(best.options, name) == getattr(mine.options, name), name
    assert best.options.recompute.granularity == mine.options.recompute.granularity
    both = ((found.judged.plan.tuned, plan.tuned), (found.judged.plan.rl, plan.rl))
    for one, other in (pair for pair in both if pair[1]):
        assert [(each.name, pytest.approx(each.bytes, rel=within)) for each in one[0].phases] == [
            (each.name, each.bytes) for each in other[0].phases
        ]


def lines(done: Adaptation, file: str) -> list[str]:
    part = done.diff.partition(f"+++ b{file}\n")[2].partition("\n--- ")[0]
    return [line for line in part.splitlines() if line[:1] in "+-"]


def test_pairs_of_trl_and_accelerates_file_of_deepspeed(tmp_path: Path) -> None:
    script = written(tmp_path, "dpo.sh", DPO.replace("MORE ", ""))
    file = written(
        tmp_path, "acc.yaml", ZERO3.replace("zero_stage: 3", "zero_stage: 2  # kept\n  zero3_init_flag: false")
    )
    plan = pairs("trl", 16, zero="3")
    done = adapted(script, plan)
    assert done.done, done.unplaced
    assert lines(done, file) == [
        "-  zero_stage: 2  # kept", "-  zero3_init_flag: false", "+  zero_stage: 3  # kept", "+  zero3_init_flag: true",
        "-num_machines: 1", "-num_processes: 8", "+num_machines: 2", "+num_processes: 16",
    ]  # fmt: skip
    holds(script, plan)


def test_a_step_of_trl_on_fsdp_with_a_yaml_of_its_own(tmp_path: Path) -> None:
    """Who recomputes is told once: Transformers refuses it of Accelerate's file and of its own argument together."""
    script = written(
        tmp_path,
        "grpo.sh",
        "NODES=1\nMICRO=4\naccelerate launch --config_file fsdp.yaml --num_machines $NODES trl/scripts/grpo.py "
        "--config grpo.yaml --per_device_train_batch_size $MICRO\n",
    )
    file, _ = written(tmp_path, "fsdp.yaml", FSDP2), written(tmp_path, "grpo.yaml", TRL_YAML)
    step = section(reference=False, response_length={"mean": 300.0, "max": 1024})
    pins = {"instances": "2", "recompute": "none", "mbs": "2"}
    plan = symconfig.plan("qwen3-8b", "h100", 16, backend="fsdp", target="trl", pins=pins, rl=step).plan
    done = adapted(script, plan)
    assert done.done, done.unplaced
    assert "+NODES=2" in lines(done, script)
    assert "+MICRO=2" in lines(done, script)
    assert "+  parallelism_config_dp_replicate_size: 2" in lines(done, file)
    assert "gradient_checkpointing" not in done.diff.replace("gradient_checkpointing: false", "")
    assert "# keep me" in Path(tmp_path, "grpo.yaml").read_text()
    holds(script, plan, prompt_length=100.0, response_length=300.0)


def test_presets_of_a_program_are_named_anew(tmp_path: Path) -> None:
    """Of ms-swift's, zero2 and zero3 are files of its own; a share of the optimizer on the host is in none of them."""
    script = written(tmp_path, "grpo.sh", GRPO.replace("MORE", "").replace("zero3", "zero2"))
    give = partial(planned, "qwen3-8b", 8, target="trl", prompts=32, updates=1, **LENGTHS)
    plan = give({"zero": "3", "optimizer_offload": "0"})
    done = adapted(script, plan)
    assert done.done, done.unplaced
    assert "--deepspeed zero3" in Path(script).read_text()
    holds(script, plan, within=0.06)  # the reference is read in other micro-batches
    done = existing.adapt(script, give({"zero": "3", "optimizer_offload": "0.5"}), best="planned")
    assert [item.option for item in done.unplaced] == ["--deepspeed"]
    command = (
        "trl dpo --model_name_or_path Qwen/Qwen3-8B --dataset_name d --max_length 2048 --accelerate_config zero2\n"
    )
    script = written(tmp_path, "trl.sh", command)
    adapted(script, pairs("trl", zero="3"))
    assert "--accelerate_config zero3" in Path(script).read_text()


def test_a_value_in_two_files_changes_in_both(tmp_path: Path) -> None:
    batch = '"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"'
    config = f'{{{batch}, "zero_optimization": {{"stage": 3}}}}'
    file = written(tmp_path, "ds.json", config)
    words = "--max_length 2048 --per_device_train_batch_size 4 --gradient_checkpointing true --bf16 true"
    words += " --model_name_or_path Qwen/Qwen3-8B --deepspeed ds.json"
    script = written(tmp_path, "dpo.sh", f"torchrun --nproc_per_node 8 trl/scripts/dpo.py {words}\n")
    plan = pairs("trl", zero="3", mbs="4", recompute="full")
    done = adapted(script, plan)
    assert "--per_device_train_batch_size 2" in Path(script).read_text()
    assert '"train_micro_batch_size_per_gpu": 2' in Path(file).read_text()
    assert done.done, done.unplaced
    holds(script, plan)


def test_a_lower_stage_leaves_no_keys_of_the_third(tmp_path: Path) -> None:
    """Values that are "auto" go, too; what a lower stage reads stays."""
    own = '"stage3_param_persistence_threshold": "auto",\n    "stage3_max_live_parameters": 1000000000'
    section = f'{{\n    "stage": 3,\n    "reduce_bucket_size": "auto",\n    {own}\n  }}'
    batch = '"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"'
    file = written(tmp_path, "ds.json", f'{{\n  {batch},\n  "zero_optimization": {section}\n}}')
    words = "--max_length 2048 --per_device_train_batch_size 4 --gradient_checkpointing true --bf16 true"
    words += " --model_name_or_path Qwen/Qwen3-8B --deepspeed ds.json"
    script = written(tmp_path, "dpo.sh", f"torchrun --nproc_per_node 8 trl/scripts/dpo.py {words}\n")
    plan = pairs("trl", zero="2", mbs="4", recompute="full")
    assert adapted(script, plan).done
    kept = json.loads(Path(file).read_text())["zero_optimization"]
    assert kept["reduce_bucket_size"] == "auto"
    assert not [name for name in kept if name.startswith("stage3_")]
    holds(script, plan)


def test_a_yaml_of_llamafactory_on_pairs(tmp_path: Path) -> None:
    text = FACTORY.replace("STAGE", "dpo").replace("KIND", "full") + "deepspeed: ds.json\n"
    job, _ = written(tmp_path, "job.yaml", text), written(tmp_path, "ds.json", AUTO)
    plan = pairs("llamafactory", zero="3", recompute="none", mbs="2")
    done = adapted(job, plan)
    assert done.done, done.unplaced
    assert "+disable_gradient_checkpointing: true" in lines(done, job)
    holds(job, plan, gpus=8)


def test_a_yaml_of_nemo_rl_keeps_what_it_inherits(tmp_path: Path) -> None:
    base = written(tmp_path, "base.yaml", BASE)
    child = written(tmp_path, "child.yaml", CHILD)
    pins = {"tp": "2", "pp": "2", "cp": "2", "recompute": "selective"}
    plan = planned("qwen3-8b", 16, pins, target="nemo-rl", prompts=64, samples=8, **LONGER)
    done = adapted(child, plan)
    assert done.done, done.unplaced
    assert Path(base).read_text() == BASE
    assert "logprob_batch_size" not in done.diff  # which follows from another key
    holds(child, plan)


def test_plans_of_other_workers_or_tasks_are_refused(tmp_path: Path) -> None:
    script = written(tmp_path, "dpo.sh", DPO.replace("MORE ", ""))
    written(tmp_path, "acc.yaml", FSDP2)
    with pytest.raises(InputError, match=r"another kind than the plan's .got fsdp, need deepspeed.*of DeepSpeed, or"):
        existing.adapt(script, pairs("trl"))
    written(tmp_path, "acc.yaml", ZERO3)
    with pytest.raises(InputError, match=r"is not that of the plan's model, llama3.1-8b .got 36, need 32"):
        existing.adapt(script, symconfig.plan("llama3.1-8b", "h100", 8, **PAIRS).plan)
    with pytest.raises(InputError, match=r"trains on pairs, and the plan is of no such step.*section preference"):
        existing.adapt(script, planned("qwen3-8b", target="trl"))
    pins: dict[str, str | int] = {"cp": "2", "tp": "1"}
    plan = symconfig.plan("qwen3-8b", "h100", 8, 64, 2048, backend="deepspeed", task="sft", pins=pins).plan
    sft = written(tmp_path, "sft.sh", DPO.replace("MORE ", "").replace("dpo.py", "sft.py"))
    with pytest.raises(InputError, match=r"sequence_parallel_size: trl has no option for it .got 2, need 1"):
        existing.adapt(sft, plan)


def test_a_yaml_of_llamafactory_for_megatron_core_is_refused(tmp_path: Path) -> None:
    text = FACTORY.replace("STAGE", "sft").replace("KIND", "full") + "tensor_model_parallel_size: 2\n"
    plan = symconfig.plan("qwen3-8b", "h100", 8, 64, target="megatron", task="sft").plan
    with pytest.raises(InputError, match=r"not put into llamafactory's options for Megatron-Core.*--target ms-swift"):
        existing.adapt(written(tmp_path, "job.yaml", text), plan)
