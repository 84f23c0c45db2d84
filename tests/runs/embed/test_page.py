"""Every snippet of docs/how-to/embed.md runs; the values that scripts are given are taken by the frameworks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import symconfig.deepspeed
import symconfig.megatron
import symconfig.transformers
from symconfig.api.files import Wanted, write
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed
from symconfig.render import megatron as rendered
from symconfig.runs import start
from symconfig.runs.start import look
from tests.sample_plans import sample_plan

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "embed.md").read_text(encoding="utf-8")
SNIPPETS = [(kind, text) for kind, text in re.findall(r"```(\w+)\n(.*?)```\n", PAGE, re.DOTALL)]
SCRIPT = ("train_valid_test_datasets_provider", "model_provider", "forward_step")


def snippets(kind: str, *words: str) -> list[str]:
    """Those of a language that hold all of these words."""
    return [text for found, text in SNIPPETS if found == kind and all(word in text for word in words)]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Plan], None]:
    """A folder `plan` in the current one, and a launcher that started as many ranks."""

    def begin(plan: Plan) -> None:
        write(plan, tmp_path / "plan", Wanted(), force=False)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("WORLD_SIZE", str(plan.best.configuration.world_size))
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        monkeypatch.setattr(start, "installed_versions", dict)
        monkeypatch.setattr(sys, "argv", ["train.py", "--micro-batch-size", "2"])

    return begin


def parsed(provider: Any = None, defaults: dict[str, Any] | None = None) -> Namespace:
    """As Megatron-LM's parse_args and validate_args do, by the table of its options."""
    parser = ArgumentParser(allow_abbrev=False)
    types = {"int": int, "float": float}
    kinds: dict[str, Any] = {"true": "store_true", "false": "store_false", "optional": BooleanOptionalAction}
    for flag in flags.flags("core_v0.19.0").flags.values():
        more = (
            {"action": kinds[flag.kind]}
            if flag.kind != "store"
            else {"type": types.get(str(flag.type), str), "nargs": flag.nargs}
        )
        if not (flag.kind == "optional" and flag.name.startswith("--no-")):
            parser.add_argument(flag.name, dest=flag.dest, **more)
    found = (parser if provider is None else provider(parser)).parse_args()
    for name, value in (defaults or {}).items():
        if getattr(found, name) is None:
            setattr(found, name, value)
    return found


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> list[Namespace]:
    """What the entry points of a stand-in for Megatron-LM have parsed."""
    heard: list[Namespace] = []

    def parse(extra_args_provider: Any = None, args_defaults: Any = None) -> Namespace:
        heard.append(parsed(extra_args_provider, args_defaults))
        return heard[-1]

    def pretrain(*script: object, **given: Any) -> None:
        assert len(script) == len(SCRIPT) + 1
        parse(**given)

    for name in ("megatron", "megatron.training", "megatron.training.arguments"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["megatron.training"], "pretrain", pretrain, raising=False)
    monkeypatch.setattr(sys.modules["megatron.training.arguments"], "parse_and_validate_args", parse, raising=False)
    return heard


@pytest.mark.parametrize("text", snippets("python", "symconfig.megatron"))
def test_megatron(text: str, here: Callable[[Plan], None], megatron: list[Namespace]) -> None:
    plan = sample_plan()
    here(plan)
    before = dict(os.environ)
    try:
        exec(text, {**dict.fromkeys(SCRIPT), "ModelType": SimpleNamespace(encoder_or_decoder=1)})
    finally:
        os.environ.clear()
        os.environ.update(before)
    (args,) = megatron or [parsed()]
    assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size) == (4, 2)
    assert (args.num_layers, args.swiglu, args.global_batch_size) == (40, True, plan.best.configuration.global_batch)
    assert args.micro_batch_size == 2, "what stands on the command line wins"
    assert "my_options" not in text or args.my_option == "mine"


def test_each_release_is_told_its_own_entry_point() -> None:
    """pretrain(args_defaults=, extra_args_provider=) went with core_v0.18.0 (megatron/training/training.py)."""
    for text in snippets("python", "symconfig.megatron"):
        before = PAGE[: PAGE.index(text)].rstrip("`python\n").rpartition("```")[2]
        assert ("ntil core_v0.17" in before) == ("pretrain(" in text)
        assert ("from core_v0.18 on" in before.lower()) == ("parse_and_validate_args(" in text)


def test_deepspeed(here: Callable[[Plan], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sample_plan(backend="deepspeed")
    here(plan)
    heard: dict[str, Any] = {}

    def initialize(**given: Any) -> tuple[None, ...]:
        heard.update(given)
        return (None,) * 4

    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(initialize=initialize))
    (text,) = snippets("python", "deepspeed.initialize")
    exec(text, {"model": SimpleNamespace(parameters=list)})
    assert heard["config"] == deepspeed.config(plan)


@pytest.mark.parametrize("text", snippets("bash"))
def test_bash(text: str, here: Callable[[Plan], None], tmp_path: Path) -> None:
    installed = look(1).versions.get("megatron")
    plan = sample_plan(
        load_model("llama2-13b"),
        load_cluster("a100-80gb"),
        version=flags.resolve(f"core_v{installed}") if installed else None,
    )
    here(plan)
    head = (
        'symconfig() { "$PYTHON" -m symconfig "$@"; }\n'
        'torchrun() { "$PYTHON" -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@"; }\n'
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "NNODES": "8", "GPUS_PER_NODE": "8"}
    ended = subprocess.run(
        ["bash", "-c", head + text], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    if "symconfig verify" in text:
        assert "Nothing is edited or stale" in ended.stdout
    else:
        words = json.loads(ended.stdout)
        assert words[words.index("pretrain_gpt.py") + 1 :] == rendered.arguments(plan)
    assert ended.returncode == 0, ended.stderr


def test_every_snippet_is_run() -> None:
    """Transformers' with the real one, below."""
    run = [
        *snippets("python", "symconfig.megatron"),
        *snippets("python", "deepspeed.initialize"),
        *snippets("python", "symconfig.transformers"),
        *snippets("bash"),
    ]
    assert len(run) == len(SNIPPETS) == 8


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
