"""Which layers adapters can lie beside, read off the graph, and what they train there, by hand."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import FUSED_TARGETS, Adapter
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.model import (
    ATTENTION_TARGETS,
    MLP_TARGETS,
    Targets,
    adapter_targets,
    blocks,
    parameters,
    without_overlap,
)
from tests.sample_models import sample_model

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
PARTS = (*ATTENTION_PARTS, "gate_proj", "up_proj", "down_proj")
R = 16


def adapted(model: ModelDescriptor, names: Targets) -> ModelDescriptor:
    return model.model_copy(update={"adapter": Adapter(r=R, lora_alpha=32.0, target_modules=names)})


def by_hand(model: ModelDescriptor, *, fused: bool) -> int:
    """Sum of r x (in + out) over the linear layers of a dense gated model (LoRA, arXiv 2106.09685, section 4.2)."""
    hidden, ffn, heads = model.hidden_size, model.intermediate_size, model.num_attention_heads * model.head_dim
    kv = model.num_key_value_heads * model.head_dim
    qkv = [heads + 2 * kv] if fused else [heads, kv, kv]
    gate_up = [2 * ffn] if fused else [ffn, ffn]
    widths = [(hidden, out) for out in (*qkv, *gate_up)] + [(heads, hidden), (ffn, hidden)]
    return model.num_hidden_layers * R * sum(into + out for into, out in widths)


@pytest.mark.parametrize("name", ["llama2-13b", "llama3.1-70b", "qwen2.5-7b"])
def test_all_linear_layers_of_a_dense_model_train_r_times_in_plus_out(name: str) -> None:
    model = load_model(name)
    apart, whole = without_overlap(adapter_targets(model)), without_overlap(adapter_targets(model), FUSED_TARGETS)
    assert set(apart) == set(PARTS)
    assert set(whole) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert parameters(adapted(model, apart)).trainable == by_hand(model, fused=False)
    assert parameters(adapted(model, whole)).trainable == by_hand(model, fused=True)


def test_the_count_that_peft_prints_for_llama_3_1_8b() -> None:
    assert parameters(adapted(load_model("llama3.1-8b"), PARTS)).trainable == 41_943_040


@pytest.mark.parametrize(("name", "expected"), [
    ("gpt3-175b", {*ATTENTION_PARTS, "up_proj", "down_proj"}),
    ("mixtral-8x7b", set(PARTS)),
    ("qwen-7b", {"c_attn", "c_proj", "w1", "w2"}),
    ("deepseek-v3", {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
                     "gate_proj", "up_proj", "down_proj"}),
])  # fmt: skip
def test_a_model_has_the_layers_that_its_graph_has(name: str, expected: set[str]) -> None:
    assert set(without_overlap(adapter_targets(load_model(name)))) == expected


def test_every_name_is_of_attention_or_of_the_mlp_but_for_one_that_is_of_both() -> None:
    every = {name for model in ("llama2-7b", "qwen-7b", "deepseek-v3") for name in adapter_targets(load_model(model))}
    assert every - ATTENTION_TARGETS - MLP_TARGETS == {"c_proj"}
    assert not ATTENTION_TARGETS & MLP_TARGETS


def test_latent_attention_trains_beside_each_of_its_projections() -> None:
    """DeepSeek-V3's layers are 7168 -> 1536 -> 128 x 192 and 7168 -> 512 + 64, 512 -> 128 x 256, 128 x 128 -> 7168."""
    model = load_model("deepseek-v3").model_copy(update={"num_nextn_predict_layers": 0})
    widths = {
        "q_a_proj": 7168 + 1536, "q_b_proj": 1536 + 128 * 192, "kv_a_proj_with_mqa": 7168 + 576,
        "kv_b_proj": 512 + 128 * 256, "o_proj": 128 * 128 + 7168,
    }  # fmt: skip
    for name, width in widths.items():
        assert parameters(adapted(model, (name,))).trainable == 61 * R * width
    assert parameters(adapted(model, tuple(widths))).trainable == 61 * R * sum(widths.values())


@pytest.mark.parametrize("framework", [MEGATRON, DEEPSPEED], ids=["megatron", "deepspeed"])
@pytest.mark.parametrize("name", ["qkv_proj", "gate_up_proj"])
def test_an_adapter_beside_a_fused_layer_keeps_it_fused(framework, name) -> None:  # type: ignore[no-untyped-def]
    built = blocks(adapted(sample_model("llama2-13b"), (name,)), framework.implementation)["dense"]
    trained = {weight.name for op in built.operators for weight in op.weights if not weight.frozen}
    assert trained == {f"{name}.lora_A", f"{name}.lora_B"}
