"""What each recompute module keeps, runs again and brings back. They are those of Megatron's --recompute-modules."""

from __future__ import annotations

import pytest

from symconfig.graph.derived import DerivedBlock, recompute_policy
from tests.graph.support import SEQUENCE, block, held_bytes, kept, numbers
from tests.sample_models import sample_model

DENSE, MOE, LATENT = sample_model("llama2-13b"), sample_model("mixtral-8x7b"), sample_model("deepseek-v3")


def rerun(derived: DerivedBlock, *modules: str) -> set[str]:
    return set(recompute_policy(derived, frozenset(modules)).rerun)


def lost(derived: DerivedBlock, *modules: str) -> set[str]:
    """Tensors that are kept without recompute and not with it."""
    return kept(derived) - kept(derived, *modules)


def test_core_attention_keeps_its_inputs_and_the_output_that_the_projection_needs() -> None:
    flash = block(DENSE, "dense", SEQUENCE)
    assert lost(flash, "core_attn") == {"softmax_statistics"}
    assert rerun(flash, "core_attn") == {"flash_attention"}
    unfused = block(sample_model("gpt3-175b"), "dense", SEQUENCE, attention="fused_softmax")
    assert lost(unfused, "core_attn") == {"attention_weights", "attention_dropped", "attention_mask"}
    assert {"q", "k", "v", "attention_heads"} <= kept(unfused, "core_attn")


def test_norms_that_linear_layers_take_in_cannot_be_recomputed_alone() -> None:
    """Megatron's layers have a norm of their own before a router and before latent down projections only: elsewhere
    TELayerNormColumnParallelLinear keeps the norm's result (gpt_layer_specs.py; transformer_layer.py asks for
    IdentityOp; Transformer Engine, layernorm_linear.py saves ln_out)."""
    norms = {"input_norm", "mlp_norm"}
    for model, kind, own in (
        (DENSE, "dense", set()),
        (MOE, "moe", {"mlp_norm"}),
        (LATENT, "dense", {"input_norm"}),
        (LATENT, "moe", norms),
    ):
        derived = block(model, kind, SEQUENCE)
        assert rerun(derived, "layernorm") == own
        assert lost(derived, "layernorm") & norms == own


def test_mlp_keeps_its_input_only() -> None:
    derived = block(DENSE, "dense", SEQUENCE)
    assert lost(derived, "mlp") == {"gate", "up", "mlp_hidden", "mlp_norm", "mlp_norm.statistics"}
    assert rerun(derived, "mlp") == {"mlp_norm", "gate_up_proj", "activation", "down_proj"}
    assert "attention_residual" in kept(derived, "mlp")
    apart = block(DENSE, "dense", SEQUENCE, norms_in_linears=False)
    assert lost(apart, "mlp") == {"gate", "up", "mlp_hidden"}
    assert rerun(apart, "mlp") == {"gate_up_proj", "activation", "down_proj"}
    assert "mlp_norm" in kept(apart, "mlp")


def test_the_shared_expert_alone() -> None:
    derived = block(LATENT, "moe", SEQUENCE)
    assert lost(derived, "shared_experts") == {"shared_gate", "shared_up", "shared_mlp_hidden"}
    assert "expert_in" in kept(derived, "shared_experts")


def test_latent_up_projection_keeps_the_low_rank_tensors() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 3.2.3) recomputes norms and up-projections and keeps no output of them."""
    apart = block(LATENT, "dense", SEQUENCE, norms_in_linears=False)
    assert {"q", "k", "v"} <= lost(apart, "mla_up_proj")
    assert {"q_low_norm", "kv_low_norm"} <= kept(apart, "mla_up_proj")
    assert rerun(apart, "mla_up_proj") == {"q_up_proj", "kv_up_proj", "rope_q", "rope_k"}
    within = block(LATENT, "dense", SEQUENCE)
    assert {"q", "k", "v", "q_low_norm", "kv_low_norm"} <= lost(within, "mla_up_proj")
    assert {"q_low", "kv_low"} <= kept(within, "mla_up_proj")
    assert rerun(within, "mla_up_proj") == rerun(apart, "mla_up_proj") | {"q_low_norm", "kv_low_norm"}


@pytest.mark.parametrize("modules", ["core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "layer"])
def test_a_module_keeps_no_more_and_brings_back_what_it_does_not_keep(modules: str) -> None:
    for model, kind in ((DENSE, "dense"), (MOE, "moe"), (LATENT, "moe")):
        derived = block(model, kind, SEQUENCE)
        values = numbers(model, tp=2, ep=2, dp=2)
        plain, policy = recompute_policy(derived, frozenset()), recompute_policy(derived, frozenset({modules}))
        assert held_bytes(derived, policy, values) <= held_bytes(derived, plain, values)
        back = {derived.held[index].tensor for unit in policy.units for index in unit}
        assert back == {t for t in kept(derived) if t in lost(derived, modules)}
        assert set(policy.rerun) == {op for op, names in derived.modules if modules in names}


def test_offloaded_tensors_stay_kept_but_wait_elsewhere() -> None:
    derived = block(DENSE, "dense", SEQUENCE)
    policy = recompute_policy(derived, frozenset(), frozenset({"flash_attention"}))
    moved = {held.tensor for held, away in zip(derived.held, policy.offloaded, strict=True) if away}
    # o is needed by the projection as well, which is not among those that wait.
    assert moved == {"q_rotated", "k_rotated", "v", "softmax_statistics"}
    assert all(stays for stays, away in zip(policy.kept, policy.offloaded, strict=True) if away)
