"""Operators of Megatron-LM's own layers (--transformer-impl local) as its modules run them, and what they keep."""

from __future__ import annotations

from symconfig.frameworks.megatron.behaviour import MEGATRON, MEGATRON_LOCAL
from symconfig.graph import dims as d
from symconfig.graph.derived import Traffic
from symconfig.graph.model import blocks, derived
from symconfig.graph.scheme import Scheme
from tests.sample_models import sample_model

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


def test_heads_of_their_own_keys_need_no_copies() -> None:
    block = derived(sample_model("llama2-13b"), MEGATRON_LOCAL.implementation, Scheme(False))["dense"]
    assert not {op for op, _ in block.modules} & {"copy_queries", "repeat_keys", "repeat_values"}


def test_experts_of_their_own_one_after_the_other_have_no_streams_nor_buffers() -> None:
    own = MEGATRON_LOCAL
    assert (own.engine, own.kept_gradient_buffers) == (False, False)
    assert (MEGATRON.engine, MEGATRON.kept_gradient_buffers) == (True, True)
    assert own.accumulated_bytes == 2 + 4 + 4  # the bf16 gradient and the fp32 sum are read, the sum is written


def test_batch_and_sequence_are_never_needed_whole_but_by_what_attends() -> None:
    for name in ("llama2-13b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"):
        for block in blocks(sample_model(name)).values():
            for op in block.operators:
                assert not {d.BATCH, d.SEQUENCE, d.HIDDEN} & set(op.whole), (name, op.name)
    latent = {op.name: op for op in blocks(sample_model("deepseek-v3"))["moe"].operators}
    assert set(latent["rope_k"].whole) == {"qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"}


def test_sinks_are_joined_to_the_scores_by_a_copy() -> None:
    block = derived(sample_model("gpt-oss-120b"), MEGATRON_LOCAL.implementation, Scheme(False))["moe"]
    forward, backward = (work for work in block.work if work.op == "softmax" and isinstance(work, Traffic))
    assert [moved[0].coefficient for moved in (*forward.moved[:2], *backward.moved[:2])] == [2, 2, 2, 2]
    assert "sink_weights" in {held.tensor for held in block.held if held.needed_by}


def test_the_mask_overwrites_scores_and_their_gradients() -> None:
    block = derived(sample_model("llama2-13b"), MEGATRON_LOCAL.implementation, Scheme(False))["dense"]
    spaces = {space.op: len(space.moved) for space in block.workspaces}
    assert (spaces["mask_scores"], spaces["softmax"]) == (1, 2)


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
    assert model.experts is not None
    for groups, there in ((1, False), (2, True), (8, True)):
        update = {"n_group": groups, "topk_group": 1, "e_score_correction_bias": False}
        grouped = model.model_copy(update={"experts": model.experts.model_copy(update=update)})
        block = derived(grouped, MEGATRON_LOCAL.implementation, Scheme(False))["moe"]
        assert any(held.tensor == "left_out" and held.needed_by for held in block.held) is there
