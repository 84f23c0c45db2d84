"""Expert capacity per rank: the bytes of its buffers; no search uses it unasked."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.api.planning import plan
from symconfig.errors import SymconfigError
from symconfig.frameworks.extras import on
from symconfig.plans.plan import Candidate
from symconfig.render.bridge import sections
from tests.sample_plans import sample_plan

PINS = {"tp": "1", "ep": "8", "dp": "8", "mbs": "1", "zero": "1", "recompute": "none", "dispatcher": "hybridep",
        "cuda_graphs": "full_iteration"}  # fmt: skip


def planned(**pins: str) -> Candidate:
    return plan("qwen3-30b-a3b", "b200", 8, 64, 4096, pins=PINS | pins, top=1).plan.best


def test_buffers_take_memory_by_their_capacity_and_pages_of_the_mean() -> None:
    usual, wide = planned(expert_capacity="1"), planned(expert_capacity="2")
    pages = planned(expert_capacity="2", paged_stash="on")
    kept = [one.predicted.memory["activations"] for one in (usual, pages, wide)]
    assert kept == sorted(kept)
    assert kept[1] - kept[0] == pytest.approx(0.1 * (kept[2] - kept[0]), rel=1e-6)  # pages hold 1.1 times the mean
    assert pages.predicted.memory["working set"] >= usual.predicted.memory["working set"]
    # What takes time is the tokens that come, whatever there is room for; products are slowed down in proportion.
    assert wide.predicted.step_s == pytest.approx(usual.predicted.step_s, rel=0.03)
    assert pages.predicted.step_s == pytest.approx(usual.predicted.step_s, rel=0.01)


@pytest.mark.parametrize(
    "pins", [{}, {"paged_stash": "on"}, {"expert_capacity": "1.5", "dispatcher": "deepep"}], ids=str
)
def test_one_graph_of_experts_needs_their_capacity_and_that_hybridep(pins: dict[str, str]) -> None:
    with pytest.raises(SymconfigError, match="capacity"):
        planned(**pins)


def test_nothing_is_used_unasked() -> None:
    asked = {"expert_capacity", "paged_stash", "fp8_attention"}
    for pins in ({}, {"dispatcher": "hybridep"}):
        found = plan("qwen3-30b-a3b", "b200", 8, 64, 4096, pins=pins, precision="mxfp8", allow=["all"]).plan
        for one in found.ranked:
            assert not asked & {*on(one.configuration)}
            assert one.configuration.cuda_graphs != "full iteration"
            assert one.configuration.gtp == 1


def test_bridge_alone_sets_attention_in_fp8() -> None:
    given: dict[str, Any] = {"precision": "fp8", "version": "core_v0.16.1"}
    field = "fp8_dot_product_attention"
    assert sections(sample_plan("llama2-13b", "h100", fp8_attention=True, **given))["mixed_precision"][field] is True
    assert field not in sections(sample_plan("llama2-13b", "h100", **given))["mixed_precision"]
    with pytest.raises(SymconfigError, match="fp8 attention"):
        plan("llama3.1-8b", "h100", 8, 64, 4096, precision="fp8", pins={"fp8_attention": "on"})
