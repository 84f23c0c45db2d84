"""What is refused of options beside the degrees: never a plan without them, and only where they cannot run."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.frameworks.constraint import Constraint, Fixed, Verdict, in_force
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.frameworks.megatron.option_constraints import DEEPEP_SIZES, OLD_RELEASES, OPTION_CONSTRAINTS
from symconfig.plans.configuration_set import ConfigurationSet

PLAIN = ConfigurationSet(
    overlap_tp_comm=False,
    moe_dispatcher="alltoall",
    moe_flex_backend=None,
    cuda_graphs="none",
    grad_bytes=4,
    fp8_param_gather=False,
    fused_loss=False,
    gtp=1,
    dp=8,
    zero_stage=1,
    expert_capacity=0.0,
    paged_stash=False,
    fp8_attention=False,
)
DEEPEP = PLAIN.having(moe_dispatcher="flex", moe_flex_backend="deepep")
# Of a constraint that names the releases without an option: the option.
FLAGS = {
    "expert capacity of an old release": "--moe-expert-rank-capacity-factor",
    "hybridep of an old release": "--moe-flex-dispatcher-backend",
    "fused loss of an old release": "--cross-entropy-fusion-impl",
    "bf16 gradients of an old release": "--grad-reduce-in-bf16",
    "graphs of an old release": "--external-cuda-graph",
}


@pytest.mark.parametrize("constraint", OPTION_CONSTRAINTS, ids=lambda one: one.name)
def test_a_plan_without_options_is_never_refused(constraint: Constraint) -> None:
    assert constraint.verdict(Fixed(), PLAIN) is Verdict.HOLDS
    assert constraint.verdict(Fixed(), PLAIN.having(moe_dispatcher="allgather")) is Verdict.HOLDS


@pytest.mark.parametrize("name", FLAGS)
def test_what_an_old_release_lacks_is_the_option(name: str) -> None:
    constraint = next(one for one in OLD_RELEASES if one.name == name)
    for version in versions():
        assert constraint.in_force(version) is not flags(version).known(FLAGS[name]), version


@pytest.mark.parametrize(
    ("ep", "etp", "runs"),
    [(1, 1, False), (2, 1, True), (8, 2, True), (16, 1, True), (40, 1, False), (64, 2, True), (72, 1, False)],
)
def test_deepep_has_settings_for_some_groups(ep: int, etp: int, runs: bool) -> None:
    found = DEEPEP_SIZES.verdict(Fixed(), DEEPEP.having(ep=ep, etp=etp))
    assert found is (Verdict.HOLDS if runs else Verdict.FAILS)


@pytest.mark.parametrize(
    ("version", "graphs", "recompute", "modules", "runs"),
    [
        ("core_v0.14.0", "router", "none", (), False),
        ("core_v0.15.0", "all", "none", (), True),
        ("core_v0.15.0", "all", "selective", ("core_attn",), False),
        ("core_v0.16.1", "all", "selective", ("core_attn",), True),
        ("core_v0.19.0", "all", "full", ("layer",), False),
    ],
)
def test_graphs_go_with_what_their_release_takes(
    version: str, graphs: str, recompute: str, modules: tuple[str, ...], runs: bool
) -> None:
    point = PLAIN.having(cuda_graphs=graphs, recompute=recompute, recompute_modules=modules)
    fixed = Fixed(
        num_experts=8 if graphs == "router" else 0, attention_dropout=0.0, hidden_dropout=0.0, architecture="hopper"
    )
    found = {one.verdict(fixed, point) for one in in_force(OPTION_CONSTRAINTS, version)}
    assert (Verdict.FAILS not in found) is runs
    assert Verdict.UNKNOWN not in found


@pytest.mark.parametrize(
    ("options", "precision", "runs"),
    [
        ({"optimizer_offload": 0.5}, "fp8", True),
        ({"optimizer_offload": 0.5}, "mxfp8", False),
        ({"zero_stage": 0}, "fp8", False),
        ({}, "nvfp4", False),
    ],
)
def test_weights_are_gathered_in_8_bits(options: dict[str, Any], precision: str, runs: bool) -> None:
    given = {"optimizer_offload": 0.0, "zero_stage": 1} | options
    point = PLAIN.having(fp8_param_gather=True, precision=precision, **given)
    found = {one.verdict(Fixed(), point) for one in in_force(OPTION_CONSTRAINTS, "core_v0.19.0")}
    assert (Verdict.FAILS not in found) is runs
