"""Collectives of one layer against Megatron-LM (arXiv 1909.08053, section 3) and Korthikanti (arXiv 2205.05198).

1909.08053, figure 4: four communications in the forward and backward pass, each an all-reduce of b x s x h.
2205.05198, section 4.2.2 and figures 5 and 6: with sequence parallelism g is an all-gather forward and a reduce-scatter
backward, g-bar the reverse; Y is kept as its shard, for which an extra all-gather runs in the backward pass.
"""

from __future__ import annotations

import pytest

from symconfig.graph.derived import Phase, recompute_policy
from symconfig.graph.model import blocks
from symconfig.graph.operator import Work
from symconfig.graph.scheme import Scheme
from tests.graph.support import PLAIN, SEQUENCE, SHARED, block, chosen, numbers
from tests.sample_models import sample_model

FORWARD = Phase.FORWARD


def test_replicated_parameters_sum_their_gradients_over_tp_only_with_sequence_parallelism() -> None:
    """Megatron then all-reduces the layer norms' gradients over tp (finalize_model_grads.py)."""
    model = sample_model("llama2-13b")
    for scheme, axes in ((PLAIN, ()), (SEQUENCE, ("tp",))):
        norms = [w for w in block(model, "dense", scheme).weights if w.name.endswith("norm.weight")]
        assert len(norms) == 2
        assert {w.other_axes for w in norms} == {axes}
        assert all(w.elements.value(numbers(model, tp=4)) == model.hidden_size for w in norms)


def test_latent_attention_gathers_its_low_rank_tensors_instead_of_the_stream() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, equations 1 to 11): c_KV of 512, k_R of 64, c_Q of 1536 channels."""
    model = sample_model("deepseek-v3")
    gathered = [c for c in chosen(block(model, "dense", SEQUENCE), "tp", FORWARD) if str(c.kind) == "all-gather"]
    values = numbers(model, tp=4)
    assert sorted(c.elements.value(values) / 2048 for c in gathered) == [64, 512, 1536, model.hidden_size]


def test_views_of_what_was_gathered_keep_all_of_it() -> None:
    """Megatron's own modules norm views; without rotary positions attention itself has nothing else."""
    model = sample_model("qwen3-30b-a3b")
    values = numbers(model, tp=8)
    gathered = 2048 * (32 + 2 * 4) * 128
    for views, kept in ((False, 0.0), (True, gathered)):
        derived = block(model, "moe", SHARED, viewed_values=views)
        stays = recompute_policy(derived, frozenset()).kept
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
    model = base.model_copy(update={"adapter": base.adapter.model_copy(update={"target_modules": ("qkv_proj",)})})
    gathered = [c.tensor for c in chosen(block(model, "dense", SHARED), "tp", FORWARD) if c.owner.startswith("take")]
    assert gathered == ["qkv.sum"]
