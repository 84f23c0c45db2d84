"""The values that scripts are given, held against the frameworks that take them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import symconfig.deepspeed
import symconfig.megatron
import symconfig.transformers
from symconfig.plans.plan import Plan
from symconfig.runs.start import started
from tests.runs.embed.test_page import here, snippets
from tests.sample_plans import sample_plan

__all__ = ["here"]


def test_deepspeed_reads_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setenv("WORLD_SIZE", "16")
    for name, value in (("get_rank", 0), ("get_world_size", 16)):  # as if the process group were there
        monkeypatch.setattr(f"deepspeed.comm.{name}", lambda *args, value=value, **kwargs: value)
    plan = sample_plan(backend="deepspeed", version="0.19.8", zero_stage=3)
    config = runtime.DeepSpeedConfig(symconfig.deepspeed.config(plan))
    best = plan.best
    assert config.train_micro_batch_size_per_gpu == best.configuration.micro
    assert config.gradient_accumulation_steps == best.configuration.num_microbatches
    assert config.train_batch_size == best.configuration.global_batch
    assert config.zero_config.stage == 3


@pytest.fixture
def trainer_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """TrainingArguments of a plan for one rank; the process group is not started."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")  # TrainingArguments sets it
    plan = sample_plan(
        backend="deepspeed",
        version="0.19.8",
        dp=1,
        zero_stage=2,
        training={"lr": 1e-4, "min_lr": 1e-5, "train_iters": 77},
    )
    return plan, symconfig.transformers.training_arguments(
        plan, output_dir=str(tmp_path / "out"), use_cpu=True, save_steps=9
    )


def test_training_arguments_are_the_plans(trainer_arguments: Any) -> None:
    plan, real = trainer_arguments
    transformers: Any = pytest.importorskip("transformers")
    assert isinstance(real, transformers.TrainingArguments)
    batch = plan.best.configuration
    assert real.per_device_train_batch_size == batch.micro
    assert real.gradient_accumulation_steps == batch.num_microbatches
    assert (real.learning_rate, real.max_steps) == (1e-4, 77)
    assert real.save_steps == 9
    assert real.bf16 is True
    assert real.hf_deepspeed_config.config["zero_optimization"]["stage"] == 2


def test_trainer_fills_the_rest_in_to_the_plans_own_configuration(trainer_arguments: Any) -> None:
    plan, real = trainer_arguments
    holder = real.hf_deepspeed_config
    holder.trainer_config_process(real)
    native = symconfig.deepspeed.config(plan)
    for name in (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "bf16",
    ):
        assert holder.config[name] == native[name]


def test_the_pages_snippet(here: Callable[[Plan], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "accelerate", "deepspeed"):
        pytest.importorskip(name)
    here(sample_plan(backend="deepspeed", dp=1, training={"lr": 1e-4}))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")  # TrainingArguments sets it
    (text,) = snippets("python", "symconfig.transformers")
    names: dict[str, Any] = {}
    exec(text.replace('report_to="none"', 'report_to="none", use_cpu=True'), names)
    assert (names["arguments"].learning_rate, names["arguments"].output_dir) == (1e-4, "out")


def test_variables_that_a_caller_may_choose_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "mine")
    found = symconfig.megatron.environment(sample_plan(), on_mismatch="ignore")
    assert found["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert found.get("PYTORCH_CUDA_ALLOC_CONF", "mine") == "mine"


def test_nothing_heavy_is_imported_for_it() -> None:
    import subprocess

    script = (
        "import sys, symconfig; symconfig.megatron, symconfig.deepspeed, symconfig.transformers; "
        "print([name for name in ('torch', 'sympy', 'transformers', 'deepspeed') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout.strip() == "[]"
    assert started.__module__ == "symconfig.runs.start"
