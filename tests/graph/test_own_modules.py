"""What Megatron's own layers keep, against a count by hand of what its functions save. core 0.19, bf16."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.megatron.behaviour import MEGATRON, MEGATRON_LOCAL
from symconfig.graph import dims as d
from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock, Traffic, recompute_policy
from symconfig.graph.model import blocks, derived
from symconfig.graph.scheme import Scheme
from tests.graph.support import PLAIN, SEQUENCE, held_bytes, kept, numbers
from tests.sample_models import sample_model

SIZES = {"hidden_size": 64, "num_attention_heads": 8, "head_dim": 16, "intermediate_size": 96, "vocab_size": 512}
S, B = 64, 2
TOKENS = S * B
SCORES = 8 * B * S * S * 2
MASK = S * S
TABLES = 4 * S * 16 * 2  # cosines and sines of queries and keys
NORM = TOKENS * 4  # statistics
X = TOKENS * 64 * 2
HEADS = TOKENS * 8 * 16 * 2
MLP = TOKENS * 96 * 2


def own(model: ModelDescriptor, kind: str = "dense", scheme: object = PLAIN) -> DerivedBlock:
    return derive(blocks(model, MEGATRON_LOCAL.implementation)[kind], scheme)  # type: ignore[arg-type]


def small(name: str, kv_heads: int, **changes: object) -> ModelDescriptor:
    return sample_model(name, **SIZES, num_key_value_heads=kv_heads, **changes)


def bytes_of(model: ModelDescriptor, modules: Iterable[str] = (), kind: str = "dense", **degrees: int) -> float:
    derived = own(model, kind, SEQUENCE if degrees.get("tp", 1) > 1 else PLAIN)
    values = numbers(model, seq_length=S, micro_batch=B, **degrees)
    return held_bytes(derived, recompute_policy(derived, frozenset(modules)), values)


def test_shared_keys_and_values_are_kept_as_copies_for_every_query_head() -> None:
    around = X + NORM + X + TABLES + MASK + SCORES + HEADS  # with the attention's result, copied for the projection
    mlp = X + NORM + X + 3 * MLP
    assert bytes_of(small("llama3.1-70b", 2)) == around + 3 * HEADS + mlp


def test_a_value_for_every_head_is_a_view_that_keeps_the_whole_projection() -> None:
    around = X + NORM + X + TABLES + MASK + SCORES + HEADS
    mlp = X + NORM + X + 3 * MLP
    assert bytes_of(small("llama2-13b", 8)) == around + 2 * HEADS + 3 * HEADS + mlp


def test_norms_of_queries_and_keys_keep_copied_queries_and_the_projection_that_keys_are_a_view_of() -> None:
    plain = small("llama3.1-70b", 2)
    normed = small("llama3.1-70b", 2, qk_norm=True)
    projection, statistics = HEADS * (8 + 2 * 2) / 8, TOKENS * (8 + 2) * 4
    assert bytes_of(normed) - bytes_of(plain) == HEADS + projection + statistics


def test_dropout_keeps_masks_of_a_byte_and_the_dropped_weights() -> None:
    plain = small("gpt3-175b", 8, attention_dropout=0.0, hidden_dropout=0.0)
    assert bytes_of(small("gpt3-175b", 8)) - bytes_of(plain) == SCORES + SCORES / 2 + 2 * X / 2


def test_sinks_are_one_more_key() -> None:
    plain = small("llama3.1-70b", 2)
    assert bytes_of(small("llama3.1-70b", 2, attention_sinks=True)) - bytes_of(plain) == SCORES / S


@pytest.mark.parametrize(
    ("modules", "left"),
    [
        (("layer",), X),
        # Values that are still a view of their projection enter the recomputed core.
        (("core_attn",), 2 * (X + NORM + X) + TABLES + (1 + 2 / 8 + 1 + 4 / 8 + 1) * HEADS + 3 * MLP),
        (("layernorm",), X + TABLES + MASK + SCORES + 4 * HEADS + X + 3 * MLP),
        (("mlp",), X + NORM + X + TABLES + MASK + SCORES + 4 * HEADS + X + NORM + X),
    ],
)
def test_recompute_of_own_modules(modules: tuple[str, ...], left: float) -> None:
    assert bytes_of(small("llama3.1-70b", 2), modules) == left


def test_tensor_parallel_layers_keep_the_shard_of_a_gathered_input() -> None:
    whole = X + NORM + X + X + NORM + X
    split = SCORES + 4 * HEADS + 3 * MLP
    assert bytes_of(small("llama3.1-70b", 2), tp=2) == (whole + split) / 2 + TABLES + MASK


def test_experts_keep_every_step_of_the_routing() -> None:
    """Mixtral: softmax over the chosen logits, a balancing loss over all of them; indices are int64."""
    model = sample_model("mixtral-8x7b")
    derived = own(model, "moe")
    values = numbers(model, seq_length=S, micro_batch=B)
    sizes = {held.tensor: held.elements.value(values) for held in derived.held if held.needed_by}
    experts, chosen = 8, 2
    assert {name: sizes[name] / TOKENS for name in sizes if name in ROUTING} == {
        "chosen_scores": chosen, "router_indices": chosen, "balance_scores": experts, "sorted_pairs": experts,
        "slot_tokens": chosen, "slot_probabilities": chosen,
    }  # fmt: skip
    assert "router_logits" not in sizes


ROUTING = (
    "router_logits", "router_scores", "left_out", "chosen_scores", "chosen_sum", "router_indices", "balance_scores",
    "balance_sum", "sorted_pairs", "slot_tokens", "slot_probabilities",
)  # fmt: skip


def test_a_choice_by_groups_with_a_bias_keeps_no_more_than_its_scores() -> None:
    model = sample_model("deepseek-v3")
    derived = own(model, "moe")
    values = numbers(model, seq_length=S, micro_batch=B)
    sizes = {held.tensor: held.elements.value(values) / TOKENS for held in derived.held if held.needed_by}
    assert {name: sizes[name] for name in ROUTING if name in sizes} == {
        "router_scores": 256, "chosen_scores": 8, "chosen_sum": 1, "router_indices": 8, "balance_scores": 256,
        "balance_sum": 1, "sorted_pairs": 256, "slot_tokens": 8, "slot_probabilities": 8,
    }  # fmt: skip


def test_experts_that_run_one_by_one_recompute_no_activation_alone() -> None:
    derived = own(sample_model("mixtral-8x7b"), "moe")
    assert kept(derived, "moe_act") == kept(derived)
    assert not recompute_policy(derived, frozenset({"moe_act"})).rerun


def test_a_latent_norm_keeps_the_whole_down_projection() -> None:
    derived = own(sample_model("deepseek-v3"))
    assert {"kv_low", "k_rope_shared"} <= kept(derived)
    assert not {"q", "k", "v"} & kept(derived, "mla_up_proj")


# transformer/attention.py and dot_product_attention.py; moe/router.py, token_dispatcher.py and experts.py, whose
# SequentialMLP joins what its experts give. Four query heads share a key: keys and values are repeated, and the queries
# copied out of the joint projection.
OWN = [
    "input_norm", "qkv_proj", "copy_queries", "rope_q", "rope_k", "repeat_keys", "repeat_values", "scores",
    "mask_scores", "softmax", "context", "copy_heads", "o_proj", "attention_residual", "mlp_norm", "router", "route",
    "dispatch", "expert_gate_up_proj", "expert_activation", "expert_down_proj", "join_experts", "combine",
    "mlp_residual",
]  # fmt: skip
KEPT = {
    "layer_in", "input_norm", "input_norm.statistics", "q_rotated", "k_repeated", "v_repeated", "causal_mask",
    "rope_q.cosines", "rope_q.sines", "rope_k.cosines", "rope_k.sines", "attention_weights", "attention_copied",
    "attention_residual", "mlp_norm", "mlp_norm.statistics", "chosen_scores", "balance_scores", "router_indices",
    "expert_in", "sorted_pairs", "slot_tokens", "expert_gate", "expert_up", "expert_mlp_hidden", "slot_probabilities",
}  # fmt: skip


def test_a_layer_with_experts() -> None:
    block = derived(sample_model("mixtral-8x7b"), MEGATRON_LOCAL.implementation, Scheme(False))["moe"]
    assert [op for op, _ in block.modules] == OWN
    assert {held.tensor for held in block.held if held.needed_by} == KEPT
    assert {held.tensor for held in block.held if held.storage} == {"q", "k", "v"}


def test_what_experts_give_is_joined_where_a_rank_has_several() -> None:
    block = derived(sample_model("mixtral-8x7b"), MEGATRON_LOCAL.implementation, Scheme(False))["moe"]
    joined = [work for work in block.work if work.op == "join_experts" and isinstance(work, Traffic)]
    moved = [work for work in joined if any(size.coefficient for size, _ in work.moved)]
    assert [str(work.among) for work in moved] == ["num_experts / ep"] * 2
    assert all("etp^2" not in str(size) for work in moved for size, _ in work.moved)


def test_batch_and_sequence_are_never_needed_whole_but_by_what_attends() -> None:
    for name in ("llama2-13b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"):
        for block in blocks(sample_model(name)).values():
            for op in block.operators:
                assert not {d.BATCH, d.SEQUENCE, d.HIDDEN} & set(op.whole), (name, op.name)
    latent = {op.name: op for op in blocks(sample_model("deepseek-v3"))["moe"].operators}
    assert set(latent["rope_k"].whole) == {"qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"}


def test_sums_and_rotations_are_linear_and_norms_and_activations_are_not() -> None:
    """Of partial sums a linear operator may be run first, and the sum taken later."""
    linear = {op.name: op.linear for op in blocks(sample_model("llama2-13b"))["dense"].operators}
    assert {name for name, is_ in linear.items() if is_} == {"rope_q", "rope_k", "attention_residual", "mlp_residual"}


def test_pytorch_turns_queries_and_keys_in_five_times_the_passes() -> None:
    """`_turning` counts them: 5 times a fused kernel's reading and writing."""
    own, fused = (
        derived(sample_model("llama2-13b"), framework.implementation, Scheme(False))["dense"]
        for framework in (MEGATRON_LOCAL, MEGATRON)
    )
    for block, times in ((own, 5), (fused, 1)):
        turned = [work for work in block.work if isinstance(work, Traffic) and work.op == "rope_q"]
        assert len(turned) == 2
        assert {amount.coefficient for work in turned for amount, _ in work.moved[:1]} == {times}


def test_a_choice_by_groups_without_a_bias_remembers_who_was_left_out() -> None:
    model = sample_model("deepseek-v3")
    for groups, there in ((1, False), (2, True), (8, True)):
        update = {"n_group": groups, "topk_group": 1, "e_score_correction_bias": False}
        grouped = model.model_copy(update={"experts": model.experts.model_copy(update=update)})
        block = derived(grouped, MEGATRON_LOCAL.implementation, Scheme(False))["moe"]
        assert any(held.tensor == "left_out" and held.needed_by for held in block.held) is there
