"""Our counts against the real modules, to the parameter; and against the recorded numbers where there is no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.graph.model import parameters

PUBLISHED = yaml.safe_load((Path(__file__).parents[1] / "published" / "parameter_counts.yaml").read_text())
COUNTS = PUBLISHED["models"]
# Linear layers of one block of modeling_qwen.py: name -> (in, out) in units of hidden size and half the ffn.
QWEN_LINEARS = {
    "attn.c_attn": ("hidden", "qkv"),
    "attn.c_proj": ("hidden", "hidden"),
    "mlp.w1": ("hidden", "ffn"),
    "mlp.w2": ("hidden", "ffn"),
    "mlp.c_proj": ("ffn", "hidden"),
}


def test_every_zoo_model_has_a_recorded_count() -> None:
    recorded = set(COUNTS) | set(PUBLISHED["adapters"])
    odd = sorted(set(zoo_models()) ^ recorded)
    assert not odd, f"either no file of model_zoo/models or no row of tests/published/parameter_counts.yaml: {odd}"


@pytest.mark.parametrize("name", COUNTS)
def test_our_count_is_the_recorded_one(name: str) -> None:
    counted = parameters(load_model(name), with_mtp=False)
    assert (counted.total, counted.active) == (COUNTS[name]["total"], COUNTS[name]["active"])
    assert counted.trainable == counted.total


@pytest.mark.parametrize("name", PUBLISHED["mtp"])
def test_our_count_of_the_prediction_layers_is_the_recorded_one(name: str) -> None:
    model = load_model(name)
    added = parameters(model).total - parameters(model, with_mtp=False).total
    assert added == PUBLISHED["mtp"][name]["total"]


@pytest.mark.parametrize("name", PUBLISHED["adapters"])
def test_our_count_of_an_adapter_is_the_recorded_one(name: str) -> None:
    trainable = PUBLISHED["adapters"][name]["trainable"]
    counted = parameters(load_model(name))
    assert counted.trainable == trainable
    assert counted.total == COUNTS[name.removesuffix("-lora")]["total"] + trainable


@pytest.mark.parametrize("name", PUBLISHED["in_prose"])
def test_the_recorded_count_is_what_the_publisher_says(name: str) -> None:
    said = PUBLISHED["in_prose"][name]
    for key in ("total", "active"):
        if key in said:
            last_digit = 10.0 ** -len(str(said[key]).partition(".")[2])  # some publishers round, some cut off
            assert abs(COUNTS[name][key] / 1e9 - said[key]) < last_digit


def _real(name: str) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.descriptor.small_configs import to_transformers_config

    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(to_transformers_config(load_model(name)))


@pytest.mark.parametrize("name", COUNTS)
def test_the_recorded_count_is_that_of_the_real_class(name: str) -> None:
    module, experts = _real(name), load_model(name).experts
    assert type(module).__name__ == COUNTS[name]["class"]
    total = active = 0
    for path, weight in module.named_parameters():
        total += weight.numel()
        routed = experts is not None and ".experts." in path
        if routed:
            assert weight.shape[0] == experts.num_experts
        active += weight.numel() * experts.num_experts_per_tok // experts.num_experts if routed else weight.numel()
    assert (total, active) == (COUNTS[name]["total"], COUNTS[name]["active"])


@pytest.mark.parametrize("name", [name for name in PUBLISHED["adapters"] if name != "qwen-7b-lora"])
def test_the_recorded_adapter_is_that_of_peft(name: str) -> None:
    peft = pytest.importorskip("peft")
    assert _trainable(peft, name, _real(name)) == PUBLISHED["adapters"][name]["trainable"]


def test_the_recorded_adapter_of_qwen_7b_is_that_of_peft_on_its_linear_layers() -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    model = load_model("qwen-7b-lora")
    hidden = model.hidden_size
    size = {"hidden": hidden, "qkv": 3 * hidden, "ffn": model.intermediate_size}
    whole = torch.nn.Module()
    with torch.device("meta"):
        for layer in range(model.num_hidden_layers):
            for path, (into, out) in QWEN_LINEARS.items():
                _put(torch, whole, f"h.{layer}.{path}", torch.nn.Linear(size[into], size[out]))
    assert _trainable(peft, model.name, whole, task=None) == PUBLISHED["adapters"][model.name]["trainable"]


def _put(torch: Any, root: Any, path: str, leaf: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        if not hasattr(root, section):
            root.add_module(section, torch.nn.Module())
        root = getattr(root, section)
    root.add_module(name, leaf)


def _trainable(peft: Any, name: str, module: Any, task: str | None = "CAUSAL_LM") -> int:
    import torch

    adapter = load_model(name).adapter
    config = peft.LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.lora_alpha,
        lora_dropout=adapter.lora_dropout,
        target_modules=list(adapter.target_modules),
        task_type=task,
    )
    with torch.device("meta"):
        wrapped = peft.get_peft_model(module, config)
    return sum(weight.numel() for weight in wrapped.parameters() if weight.requires_grad)
