"""Adapters over frozen weights: what the backward of a frozen weight needs is derived, not declared."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.graph.count import parameters
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.operator import ELEMENT_BYTES, FOUR_BIT_BYTES
from tests.graph.support import PLAIN, block, numbers
from tests.sample_models import sample_model


def adapted(*targets: str, **adapter: Any) -> ModelDescriptor:
    fields = {"r": 16, "lora_alpha": 32.0, "target_modules": list(targets), **adapter}
    return sample_model("llama2-13b", adapter=fields)


def needed(model: ModelDescriptor, tensor: str) -> set[str]:
    """Operators whose backward needs the tensor."""
    return {op for held in block(model).held if held.tensor == tensor for op in held.needed_by}


def test_a_frozen_linear_does_not_keep_its_input() -> None:
    model = adapted("q_proj")
    assert needed(model, "mlp_norm") == set()  # read by gate_up_proj only, which is frozen
    assert needed(model, "mlp_hidden") == set()  # read by down_proj
    assert needed(sample_model("llama2-13b"), "mlp_norm") == {"gate_up_proj"}
    assert needed(sample_model("llama2-13b"), "mlp_hidden") == {"down_proj"}


def test_an_adapter_keeps_its_own_input_and_the_low_rank_one() -> None:
    model = adapted("q_proj", "v_proj")
    assert needed(model, "input_norm") == {"q_proj.lora_A", "v_proj.lora_A"}
    assert needed(model, "q_proj.low") == {"q_proj.lora_B"}
    assert needed(adapted("down_proj"), "mlp_hidden") == {"down_proj.lora_A"}
    assert needed(adapted("down_proj"), "input_norm") == set()


def test_attention_and_activations_keep_what_they_need_all_the_same() -> None:
    model = adapted("q_proj")
    for tensor in ("q_rotated", "k_rotated", "v", "attention_heads"):
        assert "flash_attention" in needed(model, tensor)
    assert needed(model, "gate") == needed(model, "up") == {"activation"}


def test_dropout_of_the_adapter_keeps_its_mask_and_its_result() -> None:
    model = adapted("q_proj", lora_dropout=0.1)
    assert needed(model, "input_norm") == set()
    assert needed(model, "q_proj.lora_dropped") == {"q_proj.lora_A"}
    assert needed(model, "q_proj.lora_mask") == {"q_proj.lora_dropout"}


@pytest.mark.parametrize("targets", [("q_proj",), ("q_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj")])
def test_only_adapters_have_weight_gradients(targets: tuple[str, ...]) -> None:
    derived = block(adapted(*targets))
    with_gradient = {w.op for w in derived.work if isinstance(w, Matmul) and w.phase is Phase.WEIGHT}
    assert with_gradient == {f"{name}.lora_{part}" for name in targets for part in "AB"}
    assert {w.name for w in derived.weights if not w.frozen} == with_gradient


def test_the_gradient_still_passes_through_frozen_linears() -> None:
    derived = block(adapted("q_proj"))
    through = {w.op for w in derived.work if isinstance(w, Matmul) and w.phase is Phase.INPUT}
    assert {"k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"} <= through


def test_trainable_parameters_are_r_times_in_plus_out() -> None:
    """LoRA (arXiv 2106.09685, section 4.2): 2 x layers x d_model x r for one square matrix a layer."""
    assert parameters(adapted("q_proj")).trainable == 2 * 40 * 5120 * 16
    assert parameters(adapted("q_proj", "v_proj")).trainable == 2 * 2 * 40 * 5120 * 16
    assert parameters(adapted("down_proj")).trainable == 40 * 16 * (13824 + 5120)


def test_qlora_quantises_matrices_but_neither_norms_nor_the_vocabulary() -> None:
    """QLoRA (arXiv 2305.14314) as bitsandbytes does it: linear layers but lm_head; embedding and norms stay 16-bit."""
    more = {"qkv_bias": True, "qk_norm": True, "qk_norm_of": "each_head", "position": Position.LEARNED}
    model = adapted("q_proj", method="qlora").model_copy(update=more)
    names = set()
    for kind in ("dense", "embedding", "head"):
        for weight in (*block(model, kind).weights, *block(model, kind, whole_look_up=True).weights):
            names.add(weight.name)
            matrix = weight.name.endswith("proj.weight")
            assert weight.quantised == matrix, weight.name
            assert weight.frozen == ("lora" not in weight.name)
    assert names >= {"position_embedding.weight", "word_embedding.weight", "q_norm.weight", "k_proj.bias"}


def test_the_adapter_splits_like_its_linear() -> None:
    derived = block(adapted("q_proj", "o_proj"), "dense", PLAIN)
    sizes = {w.name: w.elements.value(numbers(adapted("q_proj"), tp=4)) for w in derived.weights}
    assert sizes["q_proj.lora_A"] == 5120 * 16
    assert sizes["q_proj.lora_B"] == 5120 * 16 / 4
    assert sizes["o_proj.lora_A"] == 5120 * 16 / 4
    assert sizes["o_proj.lora_B"] == 5120 * 16


def test_a_weight_in_4_bits_is_made_16_bits_before_each_product_and_held_so_while_that_runs() -> None:
    plain, quantised = block(adapted("q_proj")), block(adapted("q_proj", method="qlora"))
    values = numbers(adapted("q_proj"))
    products = [(work.op, work.phase) for work in plain.work if isinstance(work, Matmul) and "lora" not in work.op]
    more = [work for work in quantised.work if work not in plain.work]
    assert sorted((work.op, work.phase) for work in more) == sorted(products)
    for work in more:
        assert isinstance(work, Traffic)
        (weight,) = (shard.elements.value(values) for shard in quantised.weights if shard.name == f"{work.op}.weight")
        ((moved, element),) = work.moved
        assert moved.value(values) * ELEMENT_BYTES[element] >= weight * (FOUR_BIT_BYTES + ELEMENT_BYTES[element])
        spaces = [space for each in (quantised, plain) for space in each.workspaces if space.op == work.op]
        with_copy, without = (sum(size.value(values) for size, _ in space.moved) for space in spaces)
        assert with_copy - without == weight
