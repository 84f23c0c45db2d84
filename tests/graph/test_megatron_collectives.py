"""Collectives of one layer against Megatron-LM (arXiv 1909.08053, section 3) and Korthikanti (arXiv 2205.05198).

1909.08053, figure 4: four communications in the forward and backward pass, each an all-reduce of b x s x h.
2205.05198, section 4.2.2 and figures 5 and 6: with sequence parallelism g is an all-gather forward and a reduce-scatter
backward, g-bar the reverse; Y is kept as its shard, for which an extra all-gather runs in the backward pass.
"""

from __future__ import annotations

from collections import Counter

import pytest

from symconfig.graph.derived import Phase
from symconfig.graph.model import blocks
from symconfig.graph.operator import Work
from symconfig.graph.recompute import apply
from symconfig.graph.scheme import Scheme
from tests.graph.support import PLAIN, SEQUENCE, SHARED, block, chosen, numbers, tally
from tests.sample_models import sample_model

MODELS = ["gpt3-175b", "llama2-13b", "llama3.1-70b", "qwen2.5-7b"]
FORWARD, BACKWARD = Phase.FORWARD, Phase.INPUT


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cp", [1, 4])
def test_without_sequence_parallelism_two_all_reduces_each_way(name: str, cp: int) -> None:
    model = sample_model(name)
    values = numbers(model, tp=4, cp=cp, dp=2, micro_batch=3)
    stream = 3 * 2048 / cp * model.hidden_size  # a rank's own sequences; dp drops out
    derived = block(model, "dense", PLAIN)
    for phase in (FORWARD, BACKWARD):
        assert tally(chosen(derived, "tp", phase), values) == Counter({("all-reduce", stream): 2})


@pytest.mark.parametrize("name", MODELS)
def test_with_sequence_parallelism_gathers_and_scatters_and_a_gather_again(name: str) -> None:
    model = sample_model(name)
    values = numbers(model, tp=4, micro_batch=3)
    stream = 3 * 2048 * model.hidden_size
    derived = block(model, "dense", SEQUENCE)
    assert tally(chosen(derived, "tp", FORWARD), values) == Counter(
        {("all-gather", stream): 2, ("reduce-scatter", stream): 2}
    )
    assert tally(chosen(derived, "tp", BACKWARD), values) == Counter(
        {("all-gather", stream): 2 + 2, ("reduce-scatter", stream): 2}
    )


@pytest.mark.parametrize("name", MODELS)
def test_sequence_parallelism_moves_as_much_forward_as_the_all_reduces_did(name: str) -> None:
    """2205.05198, section 4.2.2: a ring all-reduce is a reduce-scatter and an all-gather."""
    model = sample_model(name)
    values = numbers(model, tp=8)

    def volume(sequence_parallel: bool) -> float:
        derived = block(model, "dense", SEQUENCE if sequence_parallel else PLAIN)
        return sum(
            count * elements * (2 if kind == "all-reduce" else 1)
            for (kind, elements), count in tally(chosen(derived, "tp", FORWARD), values).items()
        )

    assert volume(True) == volume(False)


def test_replicated_parameters_sum_their_gradients_over_tp_only_with_sequence_parallelism() -> None:
    """Megatron then all-reduces the layer norms' gradients over tp (finalize_model_grads.py)."""
    model = sample_model("llama2-13b")
    for scheme, axes in ((PLAIN, ()), (SEQUENCE, ("tp",))):
        norms = [w for w in block(model, "dense", scheme).weights if w.name.endswith("norm.weight")]
        assert len(norms) == 2
        assert {w.other_axes for w in norms} == {axes}
        assert all(w.elements.value(numbers(model, tp=4)) == model.hidden_size for w in norms)


def test_every_gradient_is_partial_over_the_axes_that_split_batch_and_sequence() -> None:
    for kind in ("embedding", "dense", "head"):
        assert {w.data_axes for w in block(sample_model("llama2-13b"), kind, SEQUENCE).weights} == {("dp", "cp")}


def test_no_collective_without_its_axis() -> None:
    """A layer of one tensor rank has nothing to say about tp: every tp collective is over the axis tp alone."""
    derived = block(sample_model("llama2-13b"), "dense", SEQUENCE)
    assert {c.axes for c in derived.collectives} == {("tp",), ("cp",)}
    assert all("dp" not in c.axes for c in derived.collectives)


def test_a_dp_rank_does_not_see_how_many_others_there_are() -> None:
    model = sample_model("llama2-13b")
    derived = block(model, "dense", SEQUENCE)
    few, many = numbers(model, tp=2, dp=1), numbers(model, tp=2, dp=64)
    assert [c.elements.value(few) for c in derived.collectives] == [c.elements.value(many) for c in derived.collectives]
    assert [h.elements.value(few) for h in derived.held] == [h.elements.value(many) for h in derived.held]


def test_latent_attention_gathers_its_low_rank_tensors_instead_of_the_stream() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, equations 1 to 11): c_KV of 512, k_R of 64, c_Q of 1536 channels."""
    model = sample_model("deepseek-v3")
    gathered = [c for c in chosen(block(model, "dense", SEQUENCE), "tp", FORWARD) if str(c.kind) == "all-gather"]
    values = numbers(model, tp=4)
    assert sorted(c.elements.value(values) / 2048 for c in gathered) == [64, 512, 1536, model.hidden_size]


@pytest.mark.parametrize("tp", [8, 16])
def test_ranks_that_share_key_value_heads_gather_what_they_project(tp: int) -> None:
    """Megatron-LM core_v0.16, transformer/attention.py, get_query_key_value_tensors: every rank gathers the joint
    projection whole and takes its queries, one key and one value head; backward its gradient is reduced and scattered.
    """
    model = sample_model("llama3.1-70b", num_key_value_heads=4)
    values = numbers(model, tp=tp, cp=2, micro_batch=3)
    tokens, apart, shared = 3 * 2048 / 2, block(model, "dense", SEQUENCE), block(model, "dense", SHARED)
    for phase, kind in ((FORWARD, "all-gather"), (BACKWARD, "reduce-scatter")):
        added = tally(chosen(shared, "tp", phase), values) - tally(chosen(apart, "tp", phase), values)
        assert added == Counter({(kind, tokens * (64 + 2 * 4) * 128): 1})
        assert [c.behind for c in chosen(shared, "tp", phase, "qkv")] == [None]  # the attention waits for it
    size = {held.tensor: held.elements.value(values) / tokens for held in shared.held}
    assert (size["q_rotated"], size["k_rotated"], size["v"]) == (64 * 128 / tp, 128, 128)
    weights = {weight.name: weight.elements.value(values) for weight in shared.weights}
    assert weights["qkv_proj.weight"] == 8192 * (64 + 2 * 4) * 128 / tp


def test_views_of_what_was_gathered_keep_all_of_it() -> None:
    """Megatron's own modules norm views; without rotary positions attention itself has nothing else."""
    model = sample_model("qwen3-30b-a3b")
    values = numbers(model, tp=8)
    gathered = 2048 * (32 + 2 * 4) * 128
    for views, kept in ((False, 0.0), (True, gathered)):
        derived = block(model, "moe", SHARED, viewed_values=views)
        stays = apply(derived, frozenset()).kept
        bare = {h.tensor: h.elements.value(values) for h, stay in zip(derived.held, stays, strict=True) if stay}
        assert bare.get("qkv_gathered", 0.0) == kept
        assert (bare["q"] == 0) is views


def test_a_bias_after_the_reduction_has_its_whole_gradient_on_every_rank() -> None:
    """It is added to the reduced output (RowParallelLinear); only a split sequence makes its gradient partial."""
    model = sample_model("gpt3-175b")
    for scheme, axes in ((PLAIN, ()), (SEQUENCE, ("tp",))):
        biases = {w.name: w.other_axes for w in block(model, "dense", scheme).weights if w.name.endswith("proj.bias")}
        assert biases == {"qkv_proj.bias": (), "o_proj.bias": axes, "up_proj.bias": (), "down_proj.bias": axes}


@pytest.mark.parametrize("scheme", [PLAIN, SEQUENCE, Scheme(True, "a2a")])
@pytest.mark.parametrize("name", ["llama2-13b", "mixtral-8x7b"])
def test_only_products_and_attention_can_run_beside_their_collectives(name: str, scheme: Scheme) -> None:
    """What an element-wise operator needs or makes is waited for: it takes no time in which anything could hide."""
    for kind, plain in blocks(sample_model(name)).items():
        light = {op.name for op in plain.operators if op.work is Work.MEMORY}
        for c in block(sample_model(name), kind, scheme).collectives:
            assert c.behind is None or c.behind[0] not in light, (kind, c)
            if c.phase is FORWARD:
                assert (c.behind is None) is (c.owner in light), (kind, c)


def test_an_adapter_of_the_joint_projection_is_added_before_heads_are_gathered() -> None:
    """megatron-bridge, peft/lora.py: the adapter's result has the shape of the projection's on each rank."""
    base = sample_model("llama2-13b-lora", num_key_value_heads=4)
    assert base.adapter is not None
    model = base.model_copy(update={"adapter": base.adapter.model_copy(update={"target_modules": ("qkv_proj",)})})
    gathered = [c.tensor for c in chosen(block(model, "dense", SHARED), "tp", FORWARD) if c.owner.startswith("take")]
    assert gathered == ["qkv.sum"]
