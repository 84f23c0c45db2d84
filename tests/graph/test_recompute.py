"""What each recompute module keeps, runs again and brings back. They are those of Megatron's --recompute-modules."""

from __future__ import annotations

import pytest

from symconfig.graph.derived import DerivedBlock
from symconfig.graph.recompute import apply
from tests.graph.support import SEQUENCE, block, held_bytes, kept, numbers
from tests.sample_models import sample_model

DENSE, MOE, LATENT = sample_model("llama2-13b"), sample_model("mixtral-8x7b"), sample_model("deepseek-v3")


def rerun(derived: DerivedBlock, *modules: str) -> set[str]:
    return set(apply(derived, frozenset(modules)).rerun)


def lost(derived: DerivedBlock, *modules: str) -> set[str]:
    """Tensors that are kept without recompute and not with it."""
    return kept(derived) - kept(derived, *modules)


def test_nothing_is_run_again_without_modules_and_only_what_a_backward_needs_is_kept() -> None:
    derived = block(DENSE, "dense", SEQUENCE)
    policy = apply(derived, frozenset())
    assert policy.rerun == frozenset()
    assert policy.units == ()
    assert kept(derived) == {held.tensor for held in derived.held if held.needed_by}
    assert not {"attention_out", "mlp_out", "mlp_residual", "q", "k"} & kept(derived)  # sums and rotations need nothing


def test_core_attention_keeps_its_inputs_and_the_output_that_the_projection_needs() -> None:
    flash = block(DENSE, "dense", SEQUENCE)
    assert lost(flash, "core_attn") == {"softmax_statistics"}
    assert rerun(flash, "core_attn") == {"flash_attention"}
    unfused = block(sample_model("gpt3-175b"), "dense", SEQUENCE, attention="fused_softmax")
    assert lost(unfused, "core_attn") == {"attention_weights", "attention_dropped", "attention_mask"}
    assert {"q", "k", "v", "attention_heads"} <= kept(unfused, "core_attn")


def test_layer_norms_of_their_own_discard_their_outputs() -> None:
    derived = block(DENSE, "dense", SEQUENCE, norms_in_linears=False)
    norms = {"input_norm", "mlp_norm"}
    assert lost(derived, "layernorm") == norms | {f"{name}.statistics" for name in norms}
    assert rerun(derived, "layernorm") == norms
    assert {"layer_in", "attention_residual"} <= kept(derived, "layernorm")


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


def test_norms_and_mlp_together_keep_neither_the_norms_output() -> None:
    derived = block(DENSE, "dense", SEQUENCE, norms_in_linears=False)
    assert lost(derived, "mlp", "layernorm") == lost(derived, "mlp") | lost(derived, "layernorm")


def test_expert_activation_is_thrown_away_and_made_again() -> None:
    derived = block(MOE, "moe", SEQUENCE)
    assert lost(derived, "moe_act") == {"expert_mlp_hidden"}
    assert rerun(derived, "moe_act") == {"expert_activation"}


def test_the_whole_mixture_sends_its_tokens_again() -> None:
    derived = block(MOE, "moe", SEQUENCE)
    assert {"expert_in", "expert_gate", "expert_up", "expert_mlp_hidden"} <= lost(derived, "moe")
    late = block(MOE, "moe", SEQUENCE, weighted_experts=False)  # outputs are weighted when they are combined
    assert lost(late, "moe") - lost(derived, "moe") == {"expert_mlp_out"}
    assert kept(derived, "moe") == {name for name in kept(derived) if name not in lost(derived, "moe")}
    owners = {c.owner for c in derived.collectives if "ep" in c.axes and str(c.phase) == "forward"}
    assert owners <= rerun(derived, "moe")


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


@pytest.mark.parametrize(("model", "kind"), [(DENSE, "dense"), (MOE, "moe"), (LATENT, "moe"), (LATENT, "dense")])
def test_full_recompute_keeps_the_layers_input_and_runs_everything_again(model: object, kind: str) -> None:
    derived = block(model, kind, SEQUENCE)  # type: ignore[arg-type]
    assert kept(derived, "layer") == {"layer_in"}
    assert rerun(derived, "layer") == {name for name, _ in derived.modules}
    (unit,) = apply(derived, frozenset({"layer"})).units
    assert {derived.held[index].tensor for index in unit} == kept(derived) - {"layer_in"}


@pytest.mark.parametrize("modules", ["core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "layer"])
def test_a_module_keeps_no_more_and_brings_back_what_it_does_not_keep(modules: str) -> None:
    for model, kind in ((DENSE, "dense"), (MOE, "moe"), (LATENT, "moe")):
        derived = block(model, kind, SEQUENCE)
        values = numbers(model, tp=2, ep=2, dp=2)
        plain, policy = apply(derived, frozenset()), apply(derived, frozenset({modules}))
        assert held_bytes(derived, policy, values) <= held_bytes(derived, plain, values)
        back = {derived.held[index].tensor for unit in policy.units for index in unit}
        assert back == {t for t in kept(derived) if t in lost(derived, modules)}
        assert set(policy.rerun) == {op for op, names in derived.modules if modules in names}


def test_offloaded_tensors_stay_kept_but_wait_elsewhere() -> None:
    derived = block(DENSE, "dense", SEQUENCE)
    policy = apply(derived, frozenset(), frozenset({"flash_attention"}))
    moved = {held.tensor for held, away in zip(derived.held, policy.offloaded, strict=True) if away}
    # o is needed by the projection as well, which is not among those that wait.
    assert moved == {"q_rotated", "k_rotated", "v", "softmax_statistics"}
    assert all(stays for stays, away in zip(policy.kept, policy.offloaded, strict=True) if away)
