"""Refinement: no layout of stages drawn at random is faster than the plan by more than a tie, and what is kept fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.model import sequence
from symconfig.plans.pipeline_layout import is_uneven
from symconfig.solve.choice import TIE
from symconfig.solve.costed import costed, refined_s
from symconfig.solve.run import run, weigh_all
from symconfig.solve.search import resolved
from symconfig.solve.space import peak_budget
from symconfig.solve.split import Split, plainest
from tests.solve.naive import job, tight, tiny
from tests.solve.test_brute_force import LATENT_SIZES

CASES: dict[str, tuple[ModelDescriptor, float, Job]] = {
    "dense": (tiny(num_hidden_layers=7), 1.0, job(4, 8, 4096, pins={"optimizer_offload": "0"})),
    "unequal layers": (
        tiny("deepseek-v3", **LATENT_SIZES, num_hidden_layers=5),
        0.8,
        job(4, 8, pins={"cp": "1", "etp": "1", "optimizer_offload": "0", "activation_offload": "0"}),
    ),
    "tied": (
        tiny("qwen2.5-7b", tie_word_embeddings=True, num_hidden_layers=6),
        0.6,
        job(4, 16, pins={"optimizer_offload": "0", "cp": "1"}),
    ),
}


def drawn(model: ModelDescriptor, split: Split, random: np.random.Generator) -> tuple[tuple[str, ...], ...]:
    """A layout drawn at random: the ends where they must be."""
    blocks = sequence(model)
    head = next(place for place, kind in enumerate(blocks) if kind in ("mtp", "head"))
    borders = sorted(int(place) for place in random.integers(1, head + 1, len(split.chunks) - 1))
    return tuple(blocks[a:b] for a, b in pairwise((0, *borders, len(blocks))))


@pytest.mark.parametrize("name", CASES)
def test_no_layout_drawn_at_random_is_much_faster(name: str) -> None:
    model, gib, asked = CASES[name]
    cluster = tight(model, 2 * gib)
    whole = resolved(model, cluster, asked.model_copy(update={"pins": {**asked.pins, "pp": "2.."}}))
    best_s = min(each.step_s for each in run(model, cluster, whole, 5).best)
    random, tried = np.random.default_rng(3), 0
    for found in weigh_all(model, cluster, whole, 40).best:
        for _ in range(20):
            split = plainest(found.split.pp, drawn(model, found.split, random), found.request.limits.layouts)
            if split is None or not all(split.chunks) or (split.vpp > 1 and is_uneven(split.chunks)):
                continue  # which is laid out only where it is pinned
            laid = replace(found, split=split)
            parts = costed(laid)
            if max(parts.peaks) <= peak_budget(laid.request, laid.machine):
                tried += 1
                assert refined_s(laid, parts) * TIE >= best_s
    assert tried > 20


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_kept_fits_and_the_same_job_is_refined_the_same_way(name: str) -> None:
    model, gib, asked = CASES[name]
    cluster = tight(model, gib)
    first, second = (run(model, cluster, resolved(model, cluster, asked), 3) for _ in range(2))
    assert first.simulated == second.simulated > 0
    ours, theirs = ([(one.configuration, one.split, one.step_s) for one in each.best] for each in (first, second))
    assert ours == theirs
    for one in first.best:
        assert max(costed(one).peaks) <= peak_budget(one.request, one.machine)
