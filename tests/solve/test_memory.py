"""Memory over time against a walk through the simulated tasks; and the probability of running out of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed, stage_memory, timeline
from symconfig.solve.interval import NO_LIMIT, errors, interval, surprise
from symconfig.solve.pieces import PLAIN, WHOLE
from symconfig.solve.predict import as_found, restore
from symconfig.solve.prospect import recomputing
from symconfig.solve.search import search
from symconfig.solve.space import fitting
from tests.sample_configurations import configuration
from tests.sample_models import sample_cluster
from tests.sample_plans import sample_plan
from tests.solve.naive import job, tight, tiny

PLANS = {
    "1f1b": {"tp": 2, "pp": 4, "dp": 2, "global_batch": 64},
    "interleaved": {"tp": 2, "pp": 4, "vpp": 5, "dp": 2, "global_batch": 64},
    "few microbatches": {"tp": 2, "pp": 4, "dp": 2, "global_batch": 4},
    "one stage": {"tp": 2, "pp": 1, "dp": 4, "global_batch": 32},
}


def plan(name: str) -> Plan:
    return sample_plan("llama2-13b", "a100-80gb", **PLANS[name])


@pytest.mark.parametrize("layout", ["Et*3|t*3|t*2|t*2|t*3|t*2|t|t*2L", "Et*2|t|t*4|t*5|t*2|t*2|t|tL"])
@pytest.mark.parametrize(("vocab_size", "first"), [(1024, 0), (128000, 0), (1024, 1), (128000, 1), (1024, 2)])
def test_the_peak_of_uneven_chunks_is_that_of_the_cost_model(layout: str, vocab_size: int, first: int) -> None:
    """But on the last stage, whose activations peak when the loss is not there, and where layers of chunks of very
    different lengths are recomputed: there the cost model has at most 1/7 more."""
    model = tiny(num_hidden_layers=18, vocab_size=vocab_size)
    asked = configuration(
        pp=2,
        micro=1,
        global_batch=16,
        seq_length=4096,
        vpp=4,
        pipeline_layout=layout,
        **recomputing(WHOLE if first else PLAIN, first),
    )
    found = as_found(model, sample_cluster(), asked)
    parts = costed(found)
    memory = stage_memory(found, parts, timeline(found, parts))
    peaks = [float(bytes_.max()) for _, bytes_ in memory]
    for stage, (simulated, peak) in enumerate(zip(peaks, parts.peaks, strict=True)):
        over = 0.0 if stage == 0 and not first else 1 / 7
        assert simulated * (1 - 5e-3) < peak < simulated * (1 + 5e-3 + over)


def test_layers_recomputed_at_the_head_of_each_chunk_keep_their_input_only() -> None:
    """2 of 5 layers of every chunk: their microbatches keep 2 inputs and 3 whole layers' activations."""
    degrees = {"tp": 2, "pp": 4, "vpp": 2, "dp": 2, "global_batch": 64}
    kept = []
    for recompute in (
        {"recompute": "none"},
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 2},
        {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
    ):
        made = sample_plan("llama2-13b", "a100-80gb", **degrees, **recompute)
        found = restore(made, made.best)
        parts = costed(found)
        levels = np.unique(stage_memory(found, parts, timeline(found, parts))[1][1])
        kept.append(levels[-1] - levels[-2])  # one microbatch in one chunk
    whole, some, inputs = kept
    assert some == pytest.approx(0.6 * whole + 0.4 * inputs, rel=1e-6)


@pytest.mark.parametrize("name", PLANS)
def test_at_each_moment_it_is_that_of_the_microbatches_held(name: str) -> None:
    found = restore(plan(name), plan(name).best)
    parts = costed(found)
    line = timeline(found, parts)
    for stage, (seconds, bytes_) in enumerate(stage_memory(found, parts, line)):
        assert seconds[0] == 0.0
        assert (np.diff(seconds) >= 0).all()
        begun = sorted(event.start_s for event in line.events(stage) if event.kind == "forward")
        ended = sorted(event.end_s for event in line.events(stage) if event.kind == "weight")
        levels: dict[int, set[float]] = {}
        for before, after, level in zip(seconds[:-1], seconds[1:], bytes_[:-1], strict=True):
            if after - before > 1e-9:
                middle = (before + after) / 2
                held = sum(at < middle for at in begun) - sum(at < middle for at in ended)
                levels.setdefault(held, set()).add(level)
        assert bytes_[-1] == bytes_[0] if begun[0] > 0 else bytes_[-1] <= bytes_.min()
        if line.vpp > 1 and stage == line.pp - 1:
            continue  # what the loss keeps comes and goes
        # Equal chunks: their number decides, but for the little that the embedding keeps.
        assert all(max(same) - min(same) < 1e-5 * max(same) for same in levels.values())
        each = np.diff([max(levels[held]) for held in sorted(levels) if held > 0])
        assert each == pytest.approx(np.full(len(each), each[0] if len(each) else 0.0), rel=1e-3)


MODEL = tiny()


@pytest.mark.parametrize("name", ["llama3.1-8b", "mixtral-8x7b", "llama2-70b-lora"])
def test_nineteen_in_twenty_stay_below_the_upper_end_of_the_interval(name: str) -> None:
    model, cluster = load_model(name), load_cluster("h100")
    high = interval("memory", cluster, model).high
    assert errors("memory", cluster, model).cdf(math.log(high)) == pytest.approx(0.95)
    assert surprise(model, cluster, 0.05) == pytest.approx(high)
    assert surprise(model, cluster, 0.05) == pytest.approx(math.exp(errors("memory", cluster, model).inv_cdf(0.95)))
    assert surprise(model, cluster, NO_LIMIT) is None


def _search(cluster: ClusterDescriptor, **limits: float) -> Any:
    return search(MODEL, cluster, job(4, 4, 4096, limits=limits))


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.3])
def test_no_plan_has_a_larger_risk_than_its_job(risk: float) -> None:
    cluster = tight(MODEL, 2.0)
    plan = _search(cluster, memory_risk=risk)
    assert plan.search.opened == ()
    for each in plan.ranked:
        found = restore(plan, each)
        assert fitting(found.request, found.machine, [each.predicted.peak_bytes], cluster) >= 1 - risk - 1e-9
    if risk <= 0.05:
        assert not plan.may_not_fit


def test_where_nothing_meets_the_risk_the_plan_says_first_that_it_may_not_fit() -> None:
    """In the least memory, to a hundredth, that any plan fits in: the margin alone is left free."""

    def at(step: int) -> Any:
        try:
            return _search(tight(MODEL, 0.99**step), memory_risk=0.05)
        except InfeasibleError:
            return None

    fits, last = 0, 128
    while last - fits > 1:
        middle = (fits + last) // 2
        fits, last = (middle, last) if at(middle) is not None else (fits, middle)
    plan = at(fits)
    assert plan.search.opened[0].name == "memory_risk"
    assert plan.may_not_fit
