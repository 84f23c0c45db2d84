"""Renders as they were. SYMCONFIG_UPDATE_GOLDEN=1 writes them anew; the difference then shows in the commit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import RopeScaling
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.render import megatron, render
from symconfig.render.megatron_args import Arguments
from symconfig.render.megatron_model import model_args
from tests.sample_plans import sample_plan

GOLDEN = Path(__file__).parent / "golden"
FSDP = {"zero_stage": 3, "pp": 1, "tp": 1, "dp": 64}
ARGUMENTS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "llama2-13b.a100.core_v0.12.1": ("llama2-13b", "a100-80gb", "core_v0.12.1", {}),
    "llama2-13b.a100.core_v0.19.0": ("llama2-13b", "a100-80gb", "core_v0.19.0", {}),
    "llama2-13b.h100.fsdp.core_v0.13.0": ("llama2-13b", "h100", "core_v0.13.0", FSDP),
    "llama2-13b.h100.fsdp.core_v0.19.0": ("llama2-13b", "h100", "core_v0.19.0", FSDP),
    "llama2-13b.b200.nvfp4.main": ("llama2-13b", "b200", "main", {"precision": "nvfp4"}),
    "llama3.1-70b.a100.core_v0.16.1": (
        "llama3.1-70b",
        "a100-80gb",
        "core_v0.16.1",
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 2},
    ),
    "qwen2.5-7b.h100.fp8.core_v0.15.0": ("qwen2.5-7b", "h100", "core_v0.15.0", {"precision": "fp8"}),
    "qwen3-30b-a3b.h100.core_v0.18.2": ("qwen3-30b-a3b", "h100", "core_v0.18.2", {"activation_offload": True}),
    "qwen3-30b-a3b.h100.overlapped.core_v0.14.0": (
        "qwen3-30b-a3b",
        "h100",
        "core_v0.14.0",
        {"pp": 4, "vpp": 2, "overlap_moe_a2a": True},
    ),
    "mixtral-8x7b.a100.core_v0.14.0": ("mixtral-8x7b", "a100-80gb", "core_v0.14.0", {"optimizer_offload": 0.5}),
    "deepseek-v3.h100.core_v0.19.0": (
        "deepseek-v3",
        "h100",
        "core_v0.19.0",
        {"recompute": "selective", "recompute_modules": ("mla_up_proj", "mlp", "moe_act")},
    ),
    "gpt-oss-120b.h100.core_v0.19.0": ("gpt-oss-120b", "h100", "core_v0.19.0", {}),
    "gpt3-175b.a100.core_v0.17.1": ("gpt3-175b", "a100-80gb", "core_v0.17.1", {}),
}


def _same(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("SYMCONFIG_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} changed; SYMCONFIG_UPDATE_GOLDEN=1 accepts it"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_as_before(name: str) -> None:
    model, cluster, version, overrides = ARGUMENTS[name]
    groups = megatron.groups(sample_plan(model, cluster, version=version, **overrides))
    lines = [line for group in groups for line in (f"# {group.name}", *(" ".join(words) for words in group.options))]
    _same(f"{name}.txt", "\n".join(lines) + "\n")


def test_a_models_options_change_with_releases_as_before() -> None:
    """Hold every model's options in the newest release, and each release's difference from the one behind it."""
    models = [load_model(name) for name in zoo_models()]
    linear = RopeScaling(rope_type="linear", factor=4.0)
    models.append(load_model("llama2-7b").model_copy(update={"name": "linear", "rope_scaling": linear}))
    latent = load_model("deepseek-v3")
    longer = latent.rope_scaling.model_copy(update={"original_max_position_embeddings": 8192})
    models.append(latent.model_copy(update={"name": "longer", "rope_scaling": longer}))
    lines = []
    for model in models:
        newer: list[str] = []
        for version in reversed(versions()[versions().index(megatron.OLDEST) :]):
            mine = _options(model, version)
            changes = [f"-{line}" for line in newer if line not in mine]
            changes += [f"+{line}" for line in mine if line not in newer]
            lines += [f"{model.name} {version}: {' '.join(changes)}"] if changes else []
            newer = mine
    _same("models.txt", "\n".join(lines) + "\n")


def _options(model: ModelDescriptor, version: str) -> list[str]:
    """Return a model's options, or the fields that this release cannot express."""
    out = Arguments(flags(version))
    model_args(out, model, seq_length=2048, tp=2)
    megatron.moe_args(out, replace(sample_plan("mixtral-8x7b", "h100"), model=model))
    if out.problems:
        return sorted({f"!{problem.field}" for problem in out.problems})
    return [" ".join(option) for group in out.groups() for option in group.options]


@pytest.mark.parametrize("file", ["launch.sh", "sbatch.sh", "REPORT.md"])
def test_files_are_as_before(file: str) -> None:
    _same(f"deepseek-v3.{file}", render(sample_plan("deepseek-v3", "h100"), "megatron")[file])


def test_no_golden_file_is_left_over() -> None:
    wanted = {f"{name}.txt" for name in ARGUMENTS}
    wanted |= {"models.txt"} | {f"deepseek-v3.{file}" for file in ("launch.sh", "sbatch.sh", "REPORT.md")}
    assert {path.name for path in GOLDEN.glob("*.*") if not path.name.startswith("deepspeed")} == wanted
