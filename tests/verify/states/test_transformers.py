"""Names, order, sizes and kinds of parameters against Transformers' own classes and PEFT, on the meta device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symconfig.descriptor.config_writer import config_json
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.job import Job, Lora
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.runs.adapted import adapted
from symconfig.verify.states.transformers import registered
from tests.descriptor.small_configs import FURTHER, small_config
from tests.descriptor.tiny_configs import KINDS, tiny_config
from tests.sample_plans import sample_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Whose tensors are not the graph's weights one to one.
APART = {
    "stablelm": "each head's norm is a module, and one weight in the graph: as many elements, in more tensors",
    **dict.fromkeys(
        ("dory", "hrm_text", "rwkv", "zamba2"),
        "as many elements, under names and in an order that tools/generate/modules.py does not find yet",
    ),
}
# The graph calls the norms of queries and keys in wide layers otherwise once these are adapted: as many elements. What
# JetMoE has as linear layers beside its head are routers, and one projection of keys and values; PEFT wraps what
# Zamba's layers share once more for each of them.
ADAPTED_APART = {"gemma4_text", "gemma4_unified_text", "jetmoe", "zamba"}
ONE_TO_ONE = tuple(kind for kind in KINDS if kind not in APART)
Facts = list[tuple[str, int, bool, bool]]
SEEDS = 4


def _real(model: ModelDescriptor, folder: Path) -> Facts:
    (folder / "config.json").write_text(json.dumps(config_json(model)))
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
        if model.adapter is not None:
            peft = pytest.importorskip("peft")
            lora = peft.LoraConfig(r=model.adapter.r, target_modules=list(target_modules(model)), task_type="CAUSAL_LM")
            built = peft.get_peft_model(built, lora)
    return [(name, p.numel(), p.dim() < 2, p.requires_grad) for name, p in built.named_parameters()]


def _ours(model: ModelDescriptor) -> Facts:
    return [(p.name, p.elements, p.vector, p.trainable) for p in registered(model)]


@pytest.mark.parametrize("kind", ONE_TO_ONE)
def test_parameters_are_those_of_the_class_in_its_order(kind: str, tmp_path: Path) -> None:
    compared = 0
    for seed in range(SEEDS):
        try:
            model = import_config(tiny_config(kind, seed), "config.json", "tiny")
        except InputError:
            continue  # not every draw is a valid model
        assert _ours(model) == _real(model, tmp_path)
        compared += 1
    assert compared


@pytest.mark.parametrize("kind", FURTHER)
def test_parameters_of_layers_that_are_not_the_class_s_default_are_its_own(kind: str, tmp_path: Path) -> None:
    model = import_config(small_config(kind) | FURTHER[kind], "config.json", "small")
    assert _ours(model) == _real(model, tmp_path)


@pytest.mark.parametrize(
    ("model_type", "targets"),
    [
        ("qwen2", ["q_proj", "v_proj"]),
        ("qwen2", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        ("qwen", ["c_attn", "c_proj", "w1", "w2"]),
        ("qwen", ["c_attn"]),
    ],
)
def test_an_adapter_is_peft_s(model_type: str, targets: list[str], tmp_path: Path) -> None:
    tiny = {
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "vocab_size": 99,
        "huggingface_id": None,
    }
    adapter = {"r": 3, "lora_alpha": 8.0, "target_modules": targets}
    model = sample_model("qwen2.5-7b", model_type=model_type, adapter=adapter, **tiny)
    assert _ours(model) == _real(model, tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in ONE_TO_ONE if kind not in ADAPTED_APART])
def test_adapters_on_all_linear_layers_are_peft_s(kind: str, tmp_path: Path) -> None:
    compared = 0
    for seed in range(SEEDS):
        try:
            model = import_config(tiny_config(kind, seed), "config.json", "tiny")
        except InputError:
            continue
        job = Job(model="tiny", cluster="h100", gpus=8, global_batch_size=8, backend="deepspeed", lora=Lora(r=3))
        model, _ = adapted(model, job)
        ours = _ours(model)
        assert any(trained for *_, trained in ours)
        assert ours == _real(model, tmp_path)
        compared += 1
    assert compared


def test_a_zoo_model_of_full_size(tmp_path: Path) -> None:
    model = sample_model("gpt-oss-120b")
    assert _ours(model) == _real(model, tmp_path)
