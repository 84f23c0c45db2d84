"""What Megatron's own layers keep, against a count by hand of what its functions save. core 0.19, bf16."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.megatron.behaviour import MEGATRON_LOCAL
from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock
from symconfig.graph.model import blocks
from symconfig.graph.recompute import apply
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
    return held_bytes(derived, apply(derived, frozenset(modules)), values)


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
    assert not apply(derived, frozenset({"moe_act"})).rerun


def test_a_latent_norm_keeps_the_whole_down_projection() -> None:
    derived = own(sample_model("deepseek-v3"))
    assert {"kv_low", "k_rope_shared"} <= kept(derived)
    assert not {"q", "k", "v"} & kept(derived, "mla_up_proj")
