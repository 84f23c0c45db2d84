"""Programs of models against counts made from the descriptor alone, and what their operators let be split."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import pytest
import yaml

from symconfig.cost.work import block_flops
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.kernels import changed
from symconfig.graph import dims as d
from symconfig.graph.attended import keys
from symconfig.graph.count import parameters
from symconfig.graph.derived import DerivedBlock, Phase, Traffic
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks, derived, dim_sizes, sequence
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


@pytest.mark.parametrize("name", zoo_models())
@pytest.mark.parametrize("how", [Implementation(), EAGER, MASKED], ids=["fused", "eager", "masked"])
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


@pytest.mark.parametrize("name", zoo_models())
@pytest.mark.parametrize("how", [None, EAGER, MASKED], ids=["fused", "eager", "masked"])
def test_programs_have_no_problems(name: str, how: Implementation | None) -> None:
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


def test_unfused_attention_can_split_keys_too() -> None:
    found = of("llama3.1-70b", EAGER)
    assert splits(operator(found, "layers.0.softmax"))[d.KEYS,] == 2
    context = operator(found, "layers.0.context")
    assert context.contracted == (d.KEYS,)
    assert (d.KEYS,) in splits(context)
    assert splits(operator(found, "layers.0.repeat_keys")).keys() >= {(d.HEADS, d.KV_HEADS), (d.HEAD_DIM,)}
    assert (d.HEADS, d.KV_HEADS) in splits(operator(of("llama3.1-70b", MASKED), "layers.0.scores"))


def test_a_norm_reduces_inside_itself_and_a_look_up_leaves_partial_sums() -> None:
    found = of("llama2-7b")
    assert splits(operator(found, "layers.0.input_norm")) == {(d.BATCH,): 0, (d.SEQUENCE,): 0, (d.HIDDEN,): 1}
    assert splits(operator(of("gpt3-175b"), "layers.0.input_norm"))[d.HIDDEN,] == 2
    assert splits(operator(found, "word_embedding"))[d.VOCAB,] == 0
    assert splits(operator(found, "cross_entropy"))[d.VOCAB,] == 3
    assert (d.POSITIONS,) not in splits(operator(of("gpt3-175b"), "position_embedding"))


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


def test_both_branches_of_a_parallel_layer_read_its_input() -> None:
    found = program(changed("llama2-13b", parallel_residual=True), BATCH, SEQUENCE)
    assert {operator(found, f"layers.3.{name}").inputs[0].name for name in ("input_norm", "mlp_norm")} == {
        "layers.2.mlp_residual"
    }


def test_windows_shorten_what_a_query_attends_to() -> None:
    found = of("gpt-oss-120b")
    near, far = (operator(found, f"layers.{layer}.flash_attention").attended for layer in (0, 1))
    assert far == SEQUENCE / 2
    assert near == (128 * 128 / 2 + (SEQUENCE - 128) * 128) / SEQUENCE


def test_the_vocabulary_is_padded_and_a_look_up_reads_its_rows_only() -> None:
    model = sample_model("llama2-13b").model_copy(update={"vocab_size": 32001})
    found = program(model, 2, 16, vocab_multiple=128)
    assert found.sizes[d.VOCAB] == 32128
    rows, table = 2 * 16 * 5120 * 2, 32128 * 5120 * 2
    moved = operator(found, "word_embedding").traffic[0] * (2 * 16 * 8 + table + rows)
    assert moved == pytest.approx(2 * 16 * 8 + 2 * rows)


def test_parameters_have_paths_that_a_person_recognises() -> None:
    paths = {parameter.path for parameter in of("qwen3-30b-a3b").parameters}
    assert {
        "word_embedding.weight",
        "layers.3.self_attn.qkv_proj.weight",
        "layers.3.mlp.router.weight",
        "layers.3.mlp.experts.expert_down_proj.weight",
        "layers.3.mlp_norm.weight",
        "lm_head.weight",
    } <= paths
    assert "layers.3.mlp.up_proj.weight" in {p.path for p in of("llama2-7b", EAGER).parameters}
    assert operator(of("llama2-7b"), "layers.3.rope_q").path == "layers.3.self_attn"
    assert operator(of("llama2-7b"), "layers.3.o_proj").path == "layers.3.self_attn.o_proj"


def test_elements_have_the_bytes_of_what_they_are() -> None:
    found = of("llama2-7b")
    assert found.tensors["tokens"].element_bytes == 8
    assert not found.tensors["tokens"].gradient
    assert found.tensors["layers.0.softmax_statistics"].element_bytes == 4
    assert found.tensors["layers.0.q"].element_bytes == 2


def test_a_deep_model_is_unrolled_quickly() -> None:
    model = load_model("llama3.1-405b")
    assert quickest_s(lambda: program(model, BATCH, SEQUENCE)) < 0.2  # 0.02 when nothing else runs


def test_published_counts() -> None:
    with open("tests/published/parameter_counts.yaml", encoding="utf-8") as file:
        published = yaml.safe_load(file)["models"]
    for name in ("llama3.1-405b", "mixtral-8x22b"):
        found = of(name)
        assert sum(found.elements(p.tensor.name) for p in found.parameters) == published[name]["total"]


@pytest.mark.parametrize(("name", "experts"), [("glm-4.5", 160), ("kimi-k2", 384), ("deepseek-v3", 256)])
def test_slots_can_be_cut_by_the_axes_of_a_mesh_and_few_are_empty(name: str, experts: int) -> None:
    """524,288 copies of tokens: 160 and 384 experts do not divide them, 256 do."""
    slots = program(load_model(name), 16, 4096).sizes[d.SLOTS]
    assert slots % 16 == 0
    assert 1 <= slots * experts / (16 * 4096 * 8) < 1 + 1 / 64
    assert (slots * experts == 16 * 4096 * 8) == (name == "deepseek-v3")
