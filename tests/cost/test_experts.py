"""What a layer of experts costs beside its products: its tokens' journey, and the host that launches its kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.cost import formulas
from symconfig.cost.blocks import BlockCost, Policies, evaluate
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import LOAD, OF_STEP, Lattice
from symconfig.cost.machine import machine
from symconfig.cost.work import is_dispatch
from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON
from symconfig.graph.blocks.mlp import DISPATCH_LAUNCHES, ROUTE_LAUNCHES
from symconfig.graph.derive import derive
from symconfig.graph.derived import Phase, recompute_policy
from symconfig.graph.model import blocks
from symconfig.graph.scheme import Scheme
from tests.cost.test_invariants import levels
from tests.graph.support import numbers
from tests.sample_models import sample_cluster, sample_model

NODE = 8.0  # ranks of a domain in `levels`


def travel(amount: float, ranks: float, copies: float, once: float, groups: float = 1.0, chosen: float = 1.0) -> float:
    return float(formulas.all_to_all_s(amount, ranks, 1.0, copies, once, groups, chosen, **levels(1e11, 0.0)))


def test_copies_for_one_rank_travel_once() -> None:
    """Tokens draw their experts at random: counted with the formula's own drawing, with returns, over ranks."""
    rng, ranks, copies, tokens = np.random.default_rng(0), 8, 8, 20_000
    drawn = np.sort(rng.integers(0, ranks, (tokens, copies)), axis=1)
    distinct = 1 + (np.diff(drawn, axis=1) > 0).sum(axis=1)
    share = distinct.mean() / copies
    assert travel(8e9, ranks, copies, 1.0) == pytest.approx(share * travel(8e9, ranks, copies, 0.0), rel=0.01)


def test_across_nodes_a_token_goes_once_to_each_node() -> None:
    """With eight copies over two nodes nearly every token goes to the other one, once instead of four times."""
    slow = {**levels(1e11, 0.0), "level1_bytes_per_s": 1e9}
    plain = float(formulas.all_to_all_s(8e9, 16.0, 1.0, 8.0, 0.0, 1.0, 1.0, **slow))
    once = float(formulas.all_to_all_s(8e9, 16.0, 1.0, 8.0, 1.0, 1.0, 1.0, **slow))
    assert plain / once == pytest.approx(4 / (1 - 0.5**8))


def test_a_router_that_chooses_groups_first_keeps_tokens_on_fewer_nodes() -> None:
    """DeepSeek-V3 on eight nodes: half of its groups of experts, one a node, where free choice reaches 5.2. What
    follows one another, as one chosen group of eight, lies on two ranks of four experts, and on one node."""
    slow = {**levels(1e11, 0.0), "level1_bytes_per_s": 1e9}

    def across(groups: float, chosen: float) -> float:
        return float(formulas.all_to_all_s(8e9, 64.0, 1.0, 8.0, 1.0, groups, chosen, **slow))

    assert across(8.0, 4.0) / across(1.0, 1.0) == pytest.approx(4 / (8 * (1 - (7 / 8) ** 8)))
    assert across(32.0, 1.0) / across(8.0, 4.0) == pytest.approx(1 / 4, rel=0.06)
    assert travel(8e9, 8.0, 8.0, 1.0, 4.0, 1.0) == pytest.approx(2 / 8 * travel(8e9, 8.0, 8.0, 0.0))


def layer(framework: Framework, tokens: int = 64, ep: int = 8, precision: str = "bf16", **loads: float) -> BlockCost:
    """One MoE layer with few tokens, so that the host is the slower one."""
    model = sample_model("qwen3-30b-a3b")
    values = numbers(model, seq_length=tokens, ep=ep, dp=ep)
    lattice = Lattice({**values, "keys_full": tokens / 2, "keys_window": tokens / 2, **loads}, 1)
    block = derive(blocks(model, framework.implementation)["moe"], Scheme(False))
    cluster = sample_cluster() if precision == "bf16" else load_cluster("gb200-nvl72")
    return evaluate(block, lattice, machine(cluster, precision), framework)


def passes(cost: BlockCost) -> tuple[float, float]:
    """Forward and backward, communication apart."""
    result = cost.passes(Policies([recompute_policy(cost.derived, frozenset())]), 1e10, MEGATRON)
    return float(result[0, 0, 0]), float(result[1, 0, 0])


def test_a_slow_host_is_what_a_small_layer_waits_for() -> None:
    quick, slow = (layer(replace(MEGATRON, host_kernel_s=s)) for s in (0.0, 1e-3))
    for gpu, host in zip(passes(quick), passes(slow), strict=True):
        assert host > 10 * gpu
    # Sixteen experts of two products each, of which all but the first cost less, on top of what is launched once.
    once = len([work for work in slow.derived.work if work.op in ("router", "input_norm")])
    assert sum(passes(slow)) > 1e-3 * (3 * 2 * (1 + 15 / 3) + sum(ROUTE_LAUNCHES) + once)


def test_a_large_layer_waits_for_the_first_launches_behind_the_count_of_tokens() -> None:
    """The host has no lead there; from then on the GPU is the slower one."""
    each = 5e-5
    quick, slow = (layer(replace(MEGATRON, host_kernel_s=s), tokens=2**13) for s in (0.0, each))
    ahead, behind = passes(quick)[0], passes(slow)[0]
    assert sum(t.max() for (_, phase), t in slow.host_s.items() if phase is Phase.FORWARD) < ahead
    assert behind - ahead == pytest.approx(DISPATCH_LAUNCHES[0] * each - slow.work_s["dispatch", Phase.FORWARD].max())


def test_a_layer_waits_for_the_rank_whose_experts_have_most() -> None:
    """Its experts, what brings tokens to them and back, and both all-to-alls take as long as with twice the load in all
    layers, but for what does not grow with it; nothing else changes, and no rank of the mean load keeps more."""
    even, waiting, stated = (layer(MEGATRON, 2**13, **load) for load in ({}, {OF_STEP: 2.0}, {LOAD: 2.0}))
    longer = {key[0] for key, t in waiting.work_s.items() if t > even.work_s[key]}
    assert longer == {key[0] for key, t in stated.work_s.items() if t > even.work_s[key]}
    products = {"expert_gate_up_proj", "expert_activation", "expert_down_proj"}
    assert longer == {"dispatch", "combine", *products}
    for key, t in stated.work_s.items():
        assert float(waiting.work_s[key][0]) == pytest.approx(float(t[0]), rel=0.15 if key[0] in longer else 0.0)
    assert sum(waiting.work_s.values()) == pytest.approx(sum(stated.work_s.values()), rel=0.02)
    for collective, t, of in zip(even.derived.collectives, even.full_comm_s, waiting.full_comm_s, strict=True):
        assert float(of[0]) == pytest.approx(float(t[0]) * (2.0 if is_dispatch(collective) else 1.0))
    assert any(is_dispatch(collective) for collective in even.derived.collectives)
    np.testing.assert_array_equal(waiting.held_bytes, even.held_bytes)


def test_a_grace_launches_more_slowly_than_an_x86_server() -> None:
    launching = load_cluster("gb200-nvl72").host.launching
    assert launching.value > machine(load_cluster("b200"), "bf16").launching == 1.0
    kernel = layer(replace(MEGATRON, host_kernel_s=1e-3), precision="mxfp8").host_s["rope_q", Phase.FORWARD]
    assert kernel.max() == pytest.approx(1e-3 * launching.value)


def test_graphs_take_the_host_away() -> None:
    slow = replace(MEGATRON, host_kernel_s=1e-3)
    scopes = ("none", "router", "outside experts", "all")
    eager, router, some, all_ = (sum(passes(layer(replace(slow, graphed=GRAPHED[scope])))) for scope in scopes)
    assert all_ == pytest.approx(sum(passes(layer(replace(MEGATRON, host_kernel_s=0.0)))))
    assert all_ < some < router < eager
    # Norm, logits and choice: forward and the gradients of the norm's and the router's inputs and of its weight.
    assert eager - router == pytest.approx(1e-3 * (sum(ROUTE_LAUNCHES) + 2 + 3), rel=0.01)


def test_the_only_expert_of_a_rank_needs_no_sorting() -> None:
    """Tokens and eight slots for each are moved either way; sorting moves twice as many slots more."""
    two, one = (layer(MEGATRON, 2**16, ep).work_s["dispatch", Phase.FORWARD].max() for ep in (64, 128))
    assert one / two == pytest.approx((1 + 8) / (1 + 8 + 16), rel=0.01)


def test_blocks_with_scales_of_their_own_cost_the_host_more() -> None:
    """Of each expert's products, forward and both gradients: three times as much as where one scale serves all."""
    slow, launching = replace(MEGATRON, host_kernel_s=1e-3), machine(load_cluster("gb200-nvl72"), "fp8").launching
    fp8, mxfp8 = (sum(passes(layer(slow, precision=name))) / launching for name in ("fp8", "mxfp8"))
    dense, grouped = 2, 2 * (1 + 15 / 3)  # products of the attention, and of a rank's 16 experts
    assert mxfp8 - fp8 == pytest.approx(1e-3 * (3 - 1) * 3 * (dense + grouped), rel=0.02)
