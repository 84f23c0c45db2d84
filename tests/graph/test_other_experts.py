"""Experts that read tokens in a latent width, choices that compute nothing, tokens weighed before their experts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.implementation import Experts, Implementation
from symconfig.graph.model import derived, parameters
from tests.graph.support import PLAIN, SEQUENCE, block, chosen, numbers, tally
from tests.sample_models import sample_model

S, HIDDEN, LATENT, WIDTH, COUNT, CHOICES = 96, 64, 24, 40, 8, 3


def model(name: str = "mixtral-8x7b", **changed: Any) -> ModelDescriptor:
    """A sample model whose experts have other fields."""
    base = sample_model(name)
    return base.model_copy(update={"experts": base.experts.model_copy(update=changed)})


def small(**changed: Any) -> ModelDescriptor:
    """A small one, with experts that have no gate (Nemotron 3)."""
    base = sample_model("mixtral-8x7b", hidden_size=HIDDEN, gated_mlp=False, hidden_act="relu2", num_hidden_layers=1)
    sizes = {"num_experts": COUNT, "num_experts_per_tok": CHOICES, "moe_intermediate_size": WIDTH}
    return base.model_copy(update={"experts": base.experts.model_copy(update={**sizes, **changed})})


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT])
def test_tokens_travel_in_the_latent_width(phase: Phase) -> None:
    latent = model(latent_size=1024)
    values = numbers(latent, seq_length=2048, ep=4, dp=4)
    found = tally(chosen(block(latent, "moe", SEQUENCE), "ep", phase), values)
    assert found == Counter({("all-to-all", 2048.0 * 2 * 1024): 2})


def test_latent_experts_take_what_torch_counts() -> None:
    """Transformers' NemotronHMoE: two projections around experts without a gate, a shared expert beside them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMoE

    ours = small(latent_size=LATENT, shared_expert_intermediate_size=56, scoring_func="sigmoid")
    config = transformers.NemotronHConfig(
        hidden_size=HIDDEN, moe_latent_size=LATENT, n_routed_experts=COUNT, num_experts_per_tok=CHOICES,
        moe_intermediate_size=WIDTH, moe_shared_expert_intermediate_size=56, n_group=1, topk_group=1,
    )  # fmt: skip
    config._experts_implementation = "eager"
    module = NemotronHMoE(config).float()
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(1, S, HIDDEN))
    values = numbers(ours, seq_length=S)
    mine = ("router", "latent_", "expert_", "shared_")
    flops = sum(
        2 * (work.batch * work.m * work.n * work.k).value(values)
        for work in derived(ours, Implementation(), PLAIN)["moe"].work
        if isinstance(work, Matmul) and work.phase is Phase.FORWARD and work.op.startswith(mine)
    )
    assert counter.get_total_flops() == flops
    names = [name for name, _ in module.named_parameters()]
    counted = parameters(ours).by_part["moe"] - parameters(small(num_experts=1, num_experts_per_tok=1)).by_part["moe"]
    bare = HIDDEN + 2 * HIDDEN * WIDTH  # the router and the expert of the other one
    assert sum(weight.numel() for weight in module.parameters()) == counted + bare, names


def test_choices_that_compute_nothing_take_no_slots() -> None:
    """LongCat-Flash: 12 of 768, of which 512 compute: 8 slots a token, and logits for all."""
    some = model(num_experts=512, num_experts_per_tok=12, zero_experts=256)
    values = numbers(some, seq_length=2048, ep=8, dp=8)
    moved = tally(chosen(block(some, "moe", SEQUENCE), "ep", Phase.FORWARD), values)
    assert moved == Counter({("all-to-all", 2048.0 * 8 * 4096): 2})
    router = next(work for work in block(some, "moe").work if isinstance(work, Matmul) and work.op == "router")
    assert router.n.value(values) == 768
    all_of_them = model(num_experts=512, num_experts_per_tok=8)
    assert parameters(some).active == parameters(all_of_them).active + 256 * 4096 * some.num_hidden_layers


def test_tokens_are_weighed_before_their_experts_and_not_behind() -> None:
    how = Implementation(experts=Experts(weighted_inside=False))
    for scaled, kept in ((True, {"expert_in", "slot_weights"}), (False, {"expert_mlp_out"})):
        found = derived(model(input_scaled=scaled), how, PLAIN)["moe"]
        held = {one.tensor for one in found.held if {"combine", "scale_slots"}.intersection(one.needed_by)}
        assert held - {"router_probabilities", "router_indices"} == kept
        scales = [work for work in found.work if isinstance(work, Traffic) and work.op == "scale_slots"]
        assert len(scales) == 2 * scaled
