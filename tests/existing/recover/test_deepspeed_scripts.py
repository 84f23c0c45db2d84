"""Launch scripts and JSONs of DeepSpeed from the file to the run; anything is read, or refused in sentences."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.descriptor.meaning import meaning
from symconfig.errors import InputError
from symconfig.existing.launch import reading as launched
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import autofilled, fills, mismatches, run
from symconfig.existing.recover.run import Run, Supplied
from symconfig.existing.rules.deepspeed import RULES, DeepSpeedFacts
from symconfig.existing.rules.rule import findings
from symconfig.frameworks.deepspeed.keys import schema
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from tests.existing.recover.deepspeed_support import reading
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
    if made.model.adapter is None:
        assert found.described.model == made.model
    elif made.model.model_type != "qwen":  # which trains under the Qwen2 class, whose modules are named otherwise
        assert meaning(found.described.model) == meaning(made.model)
    assert found.described.zoo == (made.model.name.removesuffix("-lora") if made.model.name in zoo_models() else None)
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
    assert [item for item in findings(RULES, facts) if item.severity != "note"] == []


def script(folder: Path, text: str, **files: dict[str, Any]) -> Reading:
    for name, config in files.items():
        (folder / f"{name}.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    path = folder / "launch.sh"
    path.write_text("#!/bin/bash\n" + text, encoding="utf-8")
    return read(str(path))


def told(found: Reading, gpus: int) -> set[str]:
    return {
        item.rule for item in findings(RULES, DeepSpeedFacts.of_reading(found, gpus, None)) if item.severity != "note"
    }


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


A100 = load_cluster("a100-80gb")
ASKED = Supplied(model=load_model("llama2-7b"), seq_length=2048)


def paths(node: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in (node or {}).get("properties", {}).items():
        yield (*above, key)
        yield from paths(inner, (*above, key))


PATHS = sorted(paths(schema()))
VALUES = st.one_of(
    st.sampled_from(["auto", "cpu", "nvme", "none", "", "1e-5", "true", "fp32", "AdamW", "∞", "-1"]),
    st.booleans(),
    st.none(),
    st.integers(-2, 9),
    st.sampled_from([2**70, 5 * 10**8, 10**30]),
    st.floats(-1e9, 1e9),
    st.just([1, "x"]),
    st.builds(list),
    st.builds(dict),
    st.builds(dict, enabled=st.just(True), device=st.just("cpu"), stage=st.just(3)),
)
ARGUMENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "per_device_train_batch_size",
                "bf16",
                "fp16",
                "lora-r",
                "lora_target",
                "use_lora",
                "load_in_4bit",
                "zero-stage",
                "model",
                "model_max_length",
                "gradient_checkpointing",
                "deepspeed_config",
                "recompute-layers",
                "learning_rate",
                "attn_implementation",
                "quantization_bit",
                "num-experts",
            ]
        ),
        st.sampled_from(["", "1", "0", "-1", "True", "no", "x", "all", "q_proj", "9" * 30, "1e-5", "eager"]),
    ),
    max_size=5,
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=6)):
        section = config
        for key in path[:-1]:
            inner = section.get(key)
            if not isinstance(inner, dict):
                inner = section[key] = {}
            section = inner
        section[path[-1]] = draw(VALUES)
    return config


@settings(max_examples=300, deadline=None)
@given(configs(), ARGUMENTS, st.sampled_from([None, 1, 6, 8, 16]))
def test_anything_is_read_or_refused_in_sentences(
    config: dict[str, Any], words: list[tuple[str, str]], gpus: int | None
) -> None:
    found = reading(json.dumps(config), [f"--{name}={value}" for name, value in words], gpus)
    for item in findings(RULES, DeepSpeedFacts.of_reading(found, gpus, ASKED.model)):
        assert item.problem.line == 1
        assert str(item.problem)
    try:
        made = run(found, A100, ASKED)
    except InputError:
        return
    c = made.configuration
    assert c.world_size == (gpus or c.world_size)
    assert c.global_batch % (c.micro * c.dp) == 0
    assert 0 <= c.optimizer_offload <= 1


HIDDEN = 1000
SECTIONS = {  # by path
    "": "train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping",
    "zero_optimization": "reduce_bucket_size stage3_prefetch_bucket_size stage3_param_persistence_threshold",
    "bf16": "enabled",
    "fp16": "enabled",
    "scheduler.params": "warmup_min_lr warmup_max_lr",
    "optimizer.params": "lr betas eps weight_decay",
}
GIVEN = {
    "per_device_train_batch_size": 3, "gradient_accumulation_steps": 5, "max_grad_norm": 0.25, "learning_rate": 3e-4,
    "adam_beta1": 0.8, "adam_beta2": 0.7, "adam_epsilon": 1e-6, "weight_decay": 0.125, "bf16": True,
}  # fmt: skip


def section(config: dict[str, Any], path: str) -> dict[str, Any]:
    for key in filter(None, path.split(".")):
        config = config.setdefault(key, {})
    return config


def everywhere(stage: int) -> dict[str, Any]:
    """A JSON with "auto" wherever the Trainer's class may fill a value in."""
    config: dict[str, Any] = {}
    for path, names in SECTIONS.items():
        section(config, path).update(dict.fromkeys(names.split(), "auto"))
    config["zero_optimization"]["stage"] = stage
    return config


def of_transformers(config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    integration = pytest.importorskip("transformers.integrations.deepspeed")
    arguments = transformers.TrainingArguments(output_dir="out", use_cpu=True, **given)
    holder = integration.HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    holder.trainer_config_process(arguments)
    model = type("Model", (), {"config": type("Config", (), {"hidden_size": HIDDEN})})
    holder.trainer_config_finalize(arguments, model, 100)
    result: dict[str, Any] = holder.config
    return result


def words(given: dict[str, Any]) -> Arguments:
    return Arguments(
        launched.settings([f"--{name}={value}" for name, value in {"output_dir": "out", **given}.items()], "x.sh")
    )


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("given", [{}, GIVEN, {"fp16": False, "learning_rate": 1e-5}], ids=["defaults", "all", "some"])
def test_auto_is_what_the_trainer_fills_in(stage: int, given: dict[str, Any]) -> None:
    config = everywhere(stage)
    assert autofilled(config, words(given), HIDDEN) == of_transformers(config, given)
    assert fills(("zero_optimization", "stage3_prefetch_bucket_size"), stage) == (stage == 3)


def test_the_trainer_stops_at_each_value_that_is_not_its_argument_s() -> None:
    for path, names in SECTIONS.items():
        for name in names.split() if path != "zero_optimization" else ():
            config = everywhere(2)
            section(config, path)[name] = 7
            told = [".".join(map(str, where)) for where, _, _ in mismatches(config, words({**GIVEN, "fp16": False}))]
            assert told == ([] if name == "warmup_min_lr" else [f"{path}.{name}".lstrip(".")])  # of no argument
            if told:
                with pytest.raises(ValueError, match=name):
                    of_transformers(config, GIVEN)
