"""Programs of models against counts made from the descriptor alone, and what their operators let be split."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.behaviour import changed
from symconfig.graph import dims as d
from symconfig.graph.derived import DerivedBlock, Phase, Traffic
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks, derived, dim_sizes, keys, parameters, sequence
from symconfig.graph.operator import Operator, Split, Work
from symconfig.graph.program.of_model import program
from symconfig.graph.program.program import Program
from symconfig.graph.scheme import Scheme
from tests.clock import quickest_s
from tests.graph.program.check import problems
from tests.sample_models import sample_model

BATCH, SEQUENCE = 8, 4096
EAGER = changed(
    Implementation(),
    attention="torch", fused_linears=False, norms_in_linears=False, fused_norm=False, fused_activation=False,
    fused_rope=False, loss="torch", copied_attention=True, repeated_heads=True, own_rotations=True, routing="chain",
    weighted_experts=False, gathered_logits=True,
)  # fmt: skip
MASKED = changed(Implementation(), attention="masked", loss="fused", whole_look_up=True)

# Every model in the fused form, every fourth in the others.
HOWS = [(name, Implementation()) for name in zoo_models()]
HOWS += [(name, how) for how in (EAGER, MASKED) for name in list(zoo_models())[::4]]


@cache
def of(name: str, how: Implementation | None = None) -> Program:
    return program(load_model(name), BATCH, SEQUENCE, how)


def changed(name: str, **fields: Any) -> ModelDescriptor:
    return ModelDescriptor.model_validate(sample_model(name).model_dump(by_alias=True) | fields)


def operator(found: Program, name: str) -> Operator:
    return next(op for op in found.operators if op.name == name)


def splits(op: Operator) -> dict[tuple[str, ...], int]:
    return {split.loops: split.sums for split in op.splits}


def forward_flops(found: Program, op: Operator) -> float:
    if op.work is Work.MATMUL:
        loops = dict.fromkeys((*op.inputs[0].loops, *op.inputs[1].loops))
        return 2.0 * prod(found.sizes[loop] for loop in loops)
    if op.work is Work.ATTENTION:
        return 2.0 * prod(found.sizes[loop] for loop in op.outputs[0].loops[:-1]) * op.attended * op.channels
    return 0.0


def _without_products(block: DerivedBlock) -> DerivedBlock:
    """A block without the products inside memory-bound kernels, which a program does not list."""
    work = tuple(replace(one, products=()) if isinstance(one, Traffic) else one for one in block.work)
    return replace(block, work=work)


@pytest.mark.parametrize("name", zoo_models())
def test_parameters_are_those_that_the_graph_counts(name: str) -> None:
    found, expected = of(name), parameters(load_model(name))
    assert sum(found.elements(p.tensor.name) for p in found.parameters) == expected.total
    assert sum(found.elements(p.tensor.name) for p in found.parameters if p.trainable) == expected.trainable


@pytest.mark.parametrize(("name", "how"), HOWS)
def test_matrix_products_are_those_that_the_cost_room_counts(name: str, how: Implementation) -> None:
    model = load_model(name)
    numbers = dim_sizes(model) | {
        "seq_length": float(SEQUENCE),
        **keys(model, SEQUENCE),
    }
    found = of(name, how)
    if model.experts is not None:  # as many slots for each expert; where tokens do not divide by them, a few are empty
        chosen, among = BATCH * SEQUENCE * model.experts.num_experts_per_tok, model.experts.num_experts
        slots, each = found.sizes[d.SLOTS], chosen / among
        assert slots == each or each < slots < (each + 1) * (1 + 1 / 64)
        numbers["expert_copies"] = slots * among / (BATCH * SEQUENCE)
    built = {kind: _without_products(one) for kind, one in derived(model, how, Scheme(False)).items()}
    counted = block_flops(built, numbers, (Phase.FORWARD,))
    assert sum(forward_flops(found, op) for op in found.operators) == pytest.approx(
        BATCH * sum(counted[kind] for kind in sequence(model)), rel=1e-12
    )


@pytest.mark.parametrize("name", zoo_models())
def test_whatever_frameworks_split_can_be_split(name: str) -> None:
    """Every axis of every scheme, at every operator: one of its splits has the loops that the scheme splits."""
    model = load_model(name)
    kinds = blocks(model)
    operators = [op for kind in sequence(model) for op in kinds[kind].operators]
    for op, found in zip(operators, of(name).operators, strict=True):
        mine = [set(split.loops) for split in found.splits]
        for scheme in (Scheme(True), Scheme(True, "a2a")):
            for axis, loops in scheme.assign(op).items():
                assert any(set(loops) & one for one in mine), (op.name, axis, loops)


@pytest.mark.parametrize(("name", "how"), HOWS)
def test_programs_have_no_problems(name: str, how: Implementation) -> None:
    assert problems(of(name, how)) == []


def test_flash_attention_is_split_by_batch_queries_and_whole_heads() -> None:
    found = of("llama3.1-70b")
    attention = operator(found, "layers.7.flash_attention")
    heads = (d.HEADS, d.KV_HEADS)
    assert set(splits(attention)) == {(d.BATCH,), (d.SEQUENCE,), heads}
    assert found.parts(Split(heads)) == 8
    assert attention.attended == SEQUENCE / 2
    assert attention.channels == 2 * 128
    fused = operator(found, "layers.7.qkv_proj")
    assert (d.QKV, d.HEADS, d.KV_HEADS) in splits(fused)


def test_slots_lie_where_their_tokens_lie() -> None:
    found = of("mixtral-8x7b")
    for name in ("layers.0.dispatch", "layers.0.combine"):
        assert set(splits(operator(found, name))) == {
            (d.BATCH, d.SLOTS), (d.SEQUENCE, d.SLOTS), (d.HIDDEN,), (d.EXPERTS,)
        }  # fmt: skip
    assert found.sizes[d.SLOTS] == BATCH * SEQUENCE * 2 // 8
    assert found.batch == {d.BATCH, d.SLOTS}
    assert {(d.EXPERTS,), (d.SLOTS,)} <= set(splits(operator(found, "layers.0.expert_down_proj")))
    assert "balanced" in found.notes[0]
    odd = program(load_model("qwen3-30b-a3b"), 1, 100)
    assert odd.sizes[d.SLOTS] == 7
    assert "do not divide" in odd.notes[0]


def test_what_comes_of_frozen_weights_only_has_no_backward() -> None:
    found = of("llama2-70b-lora")
    assert not operator(found, "layers.0.input_norm").backward
    assert not operator(found, "layers.0.input_norm").saved
    assert not found.tensors["layers.0.input_norm"].gradient
    first, later = (operator(found, f"layers.{layer}.q_proj") for layer in (0, 1))
    assert not first.backward
    assert later.backward
    assert later.saved == ("layers.1.self_attn.q_proj.weight",)  # for the input's gradient; none of the frozen weight
    assert operator(found, "layers.0.q_proj.lora_A").saved == ("layers.0.q_proj.lora_dropped",)
    assert found.tensors["layers.1.input_norm"].gradient


def test_a_tied_table_is_one_parameter_used_twice() -> None:
    found = program(changed("qwen2.5-7b", tie_word_embeddings=True), BATCH, SEQUENCE)
    users = [op.name for op in found.operators for o in op.inputs if o.name == "word_embedding.weight"]
    assert users == ["word_embedding", "lm_head"]
    assert operator(found, "lm_head").inputs[1].loops == (d.VOCAB, d.HIDDEN)
    apart = program(changed("qwen2.5-7b"), BATCH, SEQUENCE)
    assert len(apart.parameters) == len(found.parameters) + 1


def test_layers_of_multi_token_prediction_use_the_heads_weight_and_end_with_their_own_loss() -> None:
    found = of("deepseek-v3")
    users = [op.name for op in found.operators for o in op.inputs if o.name == "lm_head.weight"]
    assert users == ["mtp.0.lm_head", "lm_head"]
    assert found.outputs == ("mtp.0.loss", "loss")
    assert operator(found, "final_norm").inputs[0].name == "layers.60.mlp_residual"
    assert operator(found, "mtp.0.mtp_embedding_norm").inputs[0].name == "embedded"
    assert (("mtp_width", d.HIDDEN)) in splits(operator(found, "mtp.0.mtp_concat"))


def test_the_vocabulary_is_padded_and_a_look_up_reads_its_rows_only() -> None:
    model = sample_model("llama2-13b").model_copy(update={"vocab_size": 32001})
    found = program(model, 2, 16, vocab_multiple=128)
    assert found.sizes[d.VOCAB] == 32128
    rows, table = 2 * 16 * 5120 * 2, 32128 * 5120 * 2
    moved = operator(found, "word_embedding").traffic[0] * (2 * 16 * 8 + table + rows)
    assert moved == pytest.approx(2 * 16 * 8 + 2 * rows)


def test_a_deep_model_is_unrolled_quickly() -> None:
    model = load_model("llama3.1-405b")
    assert quickest_s(lambda: program(model, BATCH, SEQUENCE)) < 0.2  # 0.02 when nothing else runs


@pytest.mark.parametrize(("name", "experts"), [("glm-4.5", 160), ("kimi-k2", 384), ("deepseek-v3", 256)])
def test_slots_can_be_cut_by_the_axes_of_a_mesh_and_few_are_empty(name: str, experts: int) -> None:
    """524,288 copies of tokens: 160 and 384 experts do not divide them, 256 do."""
    slots = program(load_model(name), 16, 4096).sizes[d.SLOTS]
    assert slots % 16 == 0
    assert 1 <= slots * experts / (16 * 4096 * 8) < 1 + 1 / 64
    assert (slots * experts == 16 * 4096 * 8) == (name == "deepseek-v3")
