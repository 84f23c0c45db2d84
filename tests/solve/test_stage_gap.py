"""What is proved of a candidate's own stages holds against layouts drawn at random."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from symconfig.solve.costed import Costed, costed
from symconfig.solve.prospect import Prospect
from symconfig.solve.run import run
from symconfig.solve.search import resolved, search
from symconfig.solve.split import plainest
from symconfig.solve.stage_gap import stage_gap, whole_question
from symconfig.solve.timeline import stage_seconds, times
from tests.solve.naive import tight
from tests.solve.test_refine import CASES, cut

PINS = {"pp": "2..4"}


def piped(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Prospect]:
    """The best candidates with a pipeline."""
    monkeypatch.setattr("symconfig.solve.weighed.EACH", 8)
    model, gib, plain = CASES[name]
    cluster = tight(model, 1.3 * gib)
    wanted = resolved(model, cluster, plain.model_copy(update={"pins": {**plain.pins, **PINS}}))
    return run(model, cluster, wanted, 8, None, time.perf_counter()).weighed.best


def slowest_s(found: Prospect, parts: Costed) -> float:
    return float(stage_seconds(parts, times(found, parts)).max())


@pytest.mark.parametrize("name", CASES)
def test_no_layout_has_a_slowest_stage_that_is_faster_than_what_is_said(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, gaps, tried = np.random.default_rng(4), [], 0
    for found in piped(name, monkeypatch):
        gap, parts = stage_gap(found), costed(found)
        assert gap is not None
        assert 0 <= gap < 1
        gaps.append(gap)
        least, limit = slowest_s(found, parts) * (1 - gap), whole_question(found, parts).limit_bytes
        for _ in range(60):
            layouts, pp = found.request.limits.layouts, found.split.pp
            split = plainest(pp, cut(found.request.model, pp * found.split.vpp, random), layouts)
            if split is None or any(len(chunk) <= found.block_layers for chunk in split.chunks):
                continue
            other = replace(found, split=split)
            theirs = costed(other)
            if max(theirs.peaks) <= limit:
                assert slowest_s(other, theirs) >= least * (1 - 1e-9)
                tried += 1
    assert tried > 20
    assert 0.0 in gaps


def test_the_plan_says_it_where_there_is_a_pipeline_to_lay_out() -> None:
    model, gib, plain = CASES["dense"]
    cluster = tight(model, 1.3 * gib)

    def of(**pins: str) -> float | None:
        return search(model, cluster, plain.model_copy(update={"pins": {**plain.pins, **pins}})).search.stage_gap

    assert of(pp="2", vpp="1") == 0.0
    assert of(pp="1") is None
    assert of(pp="2", layout="Et*3|t*4L") is None


@pytest.mark.parametrize("vpp", [1, 2, 3])
def test_a_slower_layout_is_told_by_how_much(vpp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = next(one for one in piped("dense", monkeypatch) if one.split.vpp == vpp and not one.block_layers)
    slow = replace(found.request.framework, handover_s=1e-3)  # each time that a chunk begins
    found = replace(found, request=replace(found.request, framework=slow))
    blocks = tuple(kind for chunk in found.split.chunks for kind in chunk)
    few = 2 * vpp - 1  # chunks of a block each, and one of all others
    chunks = (blocks[:2], *((kind,) for kind in blocks[2 : few + 1]), blocks[few + 1 :])
    split = plainest(2, chunks, found.request.limits.layouts)
    assert split is not None
    worse, parts = replace(found, split=split), costed(found)
    gap = stage_gap(worse)
    assert gap is not None
    assert slowest_s(worse, costed(worse)) * (1 - gap) == pytest.approx(slowest_s(found, parts), rel=1e-6)
