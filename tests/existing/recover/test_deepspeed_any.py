"""Whatever stands in a DeepSpeed JSON is read or refused; for "auto" stands what Transformers' own class fills in."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError
from symconfig.existing.launch import reading as launched
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import run
from symconfig.existing.recover.deepspeed_json import filled, fills, mismatches
from symconfig.existing.recover.run import Supplied
from symconfig.existing.rules.deepspeed import findings
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.frameworks.deepspeed.keys import schema
from tests.existing.recover.deepspeed_support import reading

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
    for item in findings(DeepSpeedFacts.of_reading(found, gpus, ASKED.model)):
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
    assert filled(config, words(given), HIDDEN) == of_transformers(config, given)
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
