"""Adapters over frozen weights: what the backward of a frozen weight needs is derived, not declared."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.frameworks.behaviour import changed
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derived import DerivedBlock, Matmul, Phase, Traffic
from symconfig.graph.model import blocks
from symconfig.graph.operator import ELEMENT_BYTES, FOUR_BIT_BYTES
from tests.graph.support import PLAIN, SEQUENCE, block, chosen, numbers, tally
from tests.sample_models import sample_model


def adapted(*targets: str, **adapter: Any) -> ModelDescriptor:
    fields = {"r": 16, "lora_alpha": 32.0, "target_modules": list(targets), **adapter}
    return sample_model("llama2-13b", adapter=fields)


def needed(model: ModelDescriptor, tensor: str) -> set[str]:
    """Operators whose backward needs the tensor."""
    return {op for held in block(model).held if held.tensor == tensor for op in held.needed_by}


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


TP, S, HIDDEN, RANK = 4, 2048, 5120, 16


def beside(model: ModelDescriptor, scheme: Any = SEQUENCE) -> DerivedBlock:
    return block(model, "dense", scheme, adapters="split")


def moved(model: ModelDescriptor, tensor: str, phase: Phase, scheme: Any = SEQUENCE) -> dict[tuple[str, float], int]:
    return dict(tally(chosen(beside(model, scheme), "tp", phase, tensor), numbers(model, seq_length=S, tp=TP)))


def test_both_matrices_are_split_beside_any_parallel_layer() -> None:
    model = adapted("q_proj", "o_proj")
    sizes = {w.name: w.elements.value(numbers(model, tp=TP)) for w in beside(model).weights if not w.frozen}
    assert sizes == dict.fromkeys(
        ["q_proj.lora_A", "q_proj.lora_B", "o_proj.lora_A", "o_proj.lora_B"], HIDDEN * RANK / TP
    )


def test_the_frozen_layer_stays_fused_with_adapters_on_its_parts() -> None:
    names = {w.name for w in beside(adapted("q_proj", "v_proj", "gate_proj", "up_proj")).weights}
    assert {"qkv_proj.weight", "gate_up_proj.weight", "q_proj.lora_A", "v_proj.lora_B", "gate_proj.lora_A"} <= names
    assert not names & {"q_proj.weight", "k_proj.lora_A", "gate_proj.weight"}


def test_beside_a_column_parallel_layer_only_the_low_rank_result_travels_more() -> None:
    """linear_in gathers its output; linear_out reduces its input's gradient, of which each rank takes its columns."""
    model = adapted("q_proj")
    assert moved(model, "q_proj.low_columns", Phase.FORWARD) == {("all-gather", S * RANK): 1}
    assert moved(model, "q_proj.low_columns", Phase.INPUT) == {}
    assert moved(model, "q_proj.low", Phase.INPUT) == {("all-reduce", S * RANK): 1}
    # The layer's own gather and its own reduction serve the adapter, too.
    assert moved(model, "input_norm", Phase.FORWARD) == {("all-gather", S * HIDDEN): 1}
    assert moved(model, "input_norm", Phase.INPUT) == {("reduce-scatter", S * HIDDEN): 1}


def test_without_sequence_parallelism_each_adapter_reduces_its_inputs_gradient_itself() -> None:
    model = adapted("q_proj", "k_proj", "v_proj")
    assert moved(model, "input_norm", Phase.INPUT, PLAIN) == {("all-reduce", S * HIDDEN): 4}
    assert moved(sample_model("llama2-13b"), "input_norm", Phase.INPUT, PLAIN) == {("all-reduce", S * HIDDEN): 1}


def test_beside_a_row_parallel_layer_the_whole_result_is_gathered() -> None:
    """linear_in reduces; linear_out gathers the hidden size, and its gradient is gathered along the sequence."""
    model = adapted("down_proj")
    assert moved(model, "down_proj.low", Phase.FORWARD) == {("all-reduce", S * RANK): 1}
    assert moved(model, "down_proj.low", Phase.INPUT) == {("all-reduce", S * RANK): 1}
    assert moved(model, "down_proj.delta_columns", Phase.FORWARD) == {("all-gather", S * HIDDEN): 1}
    assert moved(model, "down_proj.delta_columns", Phase.INPUT) == {}
    assert moved(model, "mlp_out.delta", Phase.INPUT) == {}
    assert moved(model, "down_proj.delta_gathered", Phase.INPUT) == {("all-gather", S * HIDDEN): 1}
    assert moved(model, "down_proj.delta_gathered", Phase.INPUT, PLAIN) == {}


@pytest.mark.parametrize(
    ("dropout", "copies"), [(0.0, {"input_norm": 1}), (0.1, {"q_proj.lora_dropped": 1, "k_proj.lora_dropped": 1})]
)
def test_a_column_parallel_adapter_keeps_its_input_whole(dropout: float, copies: dict[str, int]) -> None:
    model = adapted("q_proj", "k_proj", lora_dropout=dropout)
    values = numbers(model, seq_length=S, tp=TP)
    whole = {
        held.tensor: held.elements.value(values) / (S * HIDDEN)
        for held in beside(model).held
        if any("lora_A" in op for op in held.needed_by)
    }
    assert whole == copies


def test_dropout_adds_no_collective() -> None:
    values = numbers(adapted("q_proj"), seq_length=S, tp=TP)
    for targets in (("q_proj",), ("down_proj",)):
        plain, dropped = (beside(adapted(*targets, lora_dropout=rate)) for rate in (0.0, 0.1))
        assert tally(chosen(dropped, "tp"), values) == tally(chosen(plain, "tp"), values)


def test_gradients_of_both_matrices_are_whole_along_tp() -> None:
    for scheme in (PLAIN, SEQUENCE):
        shards = [w for w in beside(adapted("q_proj", "o_proj"), scheme).weights if not w.frozen]
        assert all(not w.other_axes for w in shards)


def test_what_only_moves_scales_or_adds_passes_parts_of_a_sum_on() -> None:
    """A gather of parts of a sum is that of the sum, and so is its product with alpha / r."""
    how = changed(MEGATRON.implementation, adapters="split")
    operators = blocks(adapted("q_proj", "o_proj"), how)["dense"].operators
    beside = [op for op in operators if op.name.endswith(("_gather", "lora_scale", "lora_add"))]
    assert len({op.name for op in beside}) >= 4
    assert all(op.linear for op in beside)
