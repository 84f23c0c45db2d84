"""What stands for "auto" is what Transformers' own class fills in, from its own arguments and their own defaults."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed_json import autofilled, fills, mismatches

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
    return Arguments(settings([f"--{name}={value}" for name, value in {"output_dir": "out", **given}.items()], "x.sh"))


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
