"""Launch scripts of DeepSpeed from the file to the run: ours for every model of the zoo, and others in known styles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.errors import InputError
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.deepspeed import run
from symconfig.existing.recover.run import Run, Supplied
from symconfig.existing.rules.deepspeed import findings
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from tests.sample_plans import sample_plan

H100 = load_cluster("h100")


# Models that DeepSpeed trains; DeepSeek-V3 has multi-token prediction.
MODELS = [name for name in zoo_models() if not load_model(name).num_nextn_predict_layers]


SHAPES: dict[str, dict[str, Any]] = {
    "zero1 fp32 gradients": {"grad_bytes": 4, "micro": 2},
    "zero0": {
        "zero_stage": 0,
        "grad_bytes": 2,
        "recompute": "full",
        "recompute_method": "uniform",
        "recompute_layers": 1,
    },
    "zero2 offloaded": {"zero_stage": 2, "optimizer_offload": 1.0, "grad_bytes": 2},
    "zero3 offloaded": {"zero_stage": 3, "optimizer_offload": 0.5, "param_offload": True, "seq_length": 2048},
    "zero3 apart": {"zero_stage": 3, "overlap_param_gather": False, "overlap_grad_reduce": False, "grad_bytes": 2},
    "one GPU": {"dp": 1, "zero_stage": 2, "overlap_grad_reduce": False, "overlap_param_gather": False},
    "block": {"zero_stage": 2, "recompute": "full", "recompute_method": "block", "recompute_layers": 3},
}


DEGREES: dict[str, dict[str, Any]] = {
    "AutoTP": {"model": "llama2-13b", "tp": 4, "dp": 4, "zero_stage": 3, "sequence_parallel": False, "micro": 2},
    "Ulysses": {"model": "llama2-13b", "cp": 4, "dp": 4, "zero_stage": 2, "cp_comm": "a2a", "micro": 2},
    "AutoEP": {"model": "qwen3-30b-a3b", "ep": 8, "zero_stage": 2},
    "fp16": {"model": "llama2-13b", "cluster": "v100-16gb", "precision": "fp16", "grad_bytes": 2},
}


def plan(model: str, **fields: Any) -> Plan:
    """A plan whose overlaps are as a search for DeepSpeed has them."""
    fields = {"overlap_pp_p2p": False, "overlap_param_gather": fields.get("zero_stage", 1) > 0, **fields}
    return sample_plan(load_model(model) if model in zoo_models() else model, backend="deepspeed", **fields)


def same(found: Run, made: Plan) -> None:
    best, c = made.best, found.configuration
    assert found.described.model == made.model
    assert found.described.zoo == (made.model.name if made.model.name in zoo_models() else None)
    assert c.plain == best.configuration
    assert c.backend == "deepspeed"


def written(model: str, fields: dict[str, Any], folder: Path) -> tuple[Any, Reading]:
    made = plan(model, **fields)
    write(render(made, "deepspeed"), folder / "out")
    return made, read(str(folder / "out" / "launch.sh"))


@pytest.mark.parametrize("model", MODELS)
def test_a_launch_script_is_read_back_as_its_plan(model: str, tmp_path: Path) -> None:
    shape = sorted(SHAPES)[MODELS.index(model) % len(SHAPES)]
    made, found = written(model, SHAPES[shape], tmp_path)
    assert found.complete, found.unread
    same(run(found, made.cluster, Supplied()), made)


@pytest.mark.parametrize("name", DEGREES)
def test_degrees_come_back_from_the_script(name: str, tmp_path: Path) -> None:
    fields = dict(DEGREES[name])
    made, found = written(fields.pop("model"), fields, tmp_path)
    same(run(found, made.cluster, Supplied()), made)
    facts = DeepSpeedFacts.of_reading(found, made.best.configuration.world_size, made.model)
    assert [item for item in findings(facts) if item.severity != "note"] == []


def script(folder: Path, text: str, **files: dict[str, Any]) -> Reading:
    for name, config in files.items():
        (folder / f"{name}.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    path = folder / "launch.sh"
    path.write_text("#!/bin/bash\n" + text, encoding="utf-8")
    return read(str(path))


def told(found: Reading, gpus: int) -> set[str]:
    return {item.rule for item in findings(DeepSpeedFacts.of_reading(found, gpus, None)) if item.severity != "note"}


AUTO = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 2e8, "reduce_bucket_size": "auto"},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}


def test_a_trainer_in_the_style_of_model_repositories(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        """
GPUS=8
MODEL="Qwen/Qwen2.5-7B"
DISTRIBUTED="--nproc_per_node $GPUS --nnodes ${NNODES:-2} --node_rank ${RANK:-0}"
torchrun $DISTRIBUTED finetune.py \\
    --model_name_or_path $MODEL \\
    --data_path data.json \\
    --bf16 True \\
    --output_dir out \\
    --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 8 \\
    --learning_rate 1e-5 \\
    --model_max_length 4096 \\
    --gradient_checkpointing True \\
    --use_lora \\
    --deepspeed zero2.json
""",
        zero2=AUTO,
    )
    made = run(found, H100, Supplied())
    c, adapter = made.configuration, made.described.model.adapter
    assert (c.world_size, c.micro, c.global_batch, c.seq_length, c.zero_stage) == (16, 2, 256, 4096, 2)
    assert made.configuration.recompute == "full"
    assert adapter is not None
    assert told(found, 16) == set()


def test_the_deepspeed_launcher_with_a_json_that_the_script_writes(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        """
ZERO=3
cat > ds.json <<EOF
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": $ZERO, "offload_optimizer": {"device": "cpu"}},
  "activation_checkpointing": {"cpu_checkpointng": true}
}
EOF
deepspeed --num_gpus 8 train.py --deepspeed_config ds.json --model meta-llama/Llama-2-7b-hf --seq_length 2048
""",
    )
    made = run(found, H100, Supplied())
    c = made.configuration
    assert (c.world_size, c.micro, c.global_batch, c.zero_stage, c.optimizer_offload) == (8, 4, 64, 3, 1.0)
    assert told(found, 8) == {"deepspeed-misspelt-key"}


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("torchrun --nproc_per_node 8", 8),
        ("torchrun --nnodes $NODES --nproc_per_node 8", None),
        ("deepspeed --num_gpus 8", 8),
        ("deepspeed --num_gpus 8 --num_nodes 2", 16),
        ("deepspeed --num_gpus 8 --num_nodes $NODES", None),
        ("deepspeed --hostfile hosts --num_gpus 8", None),
    ],
)
def test_nodes_that_are_not_known_are_not_taken_for_one(launcher: str, gpus: int | None, tmp_path: Path) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    found = script(
        tmp_path, f"{launcher} train.py --deepspeed ds.json --model Qwen/Qwen2.5-7B --seq_length 2048\n", ds=config
    )
    if gpus is not None:
        assert run(found, H100, Supplied()).configuration.world_size == gpus
        return
    with pytest.raises(InputError) as caught:
        run(found, H100, Supplied())
    assert "--gpus" in str(caught.value)


def test_a_bare_json_says_all_that_it_needs_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(AUTO), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        run(read(str(path)), H100, Supplied())
    text = str(caught.value)
    assert all(hint in text for hint in ("--model", "--seq-length", "--gpus", "Try: a number."))
