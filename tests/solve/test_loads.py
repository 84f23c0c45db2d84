"""Experts' loads: what the busiest rank holds, and that plans leave room for it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from symconfig.cost.lattice import OF_LAYER, OF_STAGE, OF_STEP
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.plans.plan import Plan
from symconfig.solve.candidate import under_loads
from symconfig.solve.costed import costed
from symconfig.solve.interval import TRAINED, UNTRAINED, uneven, waited
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect
from symconfig.solve.search import search

MODEL, CLUSTER = "qwen3-30b-a3b", "h100"
RISK = 0.05


@cache
def plan(model: str = MODEL, ep: int | None = None, **limits: Any) -> Plan:
    asked = {"model": model, "cluster": CLUSTER, "gpus": 16, "global_batch_size": 128, "seq_length": 4096}
    job = Job.model_validate({**asked, "limits": limits, "pins": {} if ep is None else {"ep": str(ep)}})
    return search(load_model(model), load_cluster(CLUSTER), job, top=3)


def loaded(found: Prospect) -> Prospect:
    """The same with the loads that a search lets plans fit with."""
    return replace(found, request=replace(found.request, uneven=True))


def test_loads_spread_with_fewer_experts_a_rank_and_average_out_over_layers() -> None:
    model = load_model(MODEL)
    of = uneven(model, np.array([1.0, 2.0, 8.0, 32.0]), "pretrain")
    assert of[OF_STAGE][0] == 0.0  # one rank has all experts
    assert of[OF_LAYER][0] == 1.0
    assert (np.diff(of[OF_STAGE]) > 0).all()
    assert (of[OF_LAYER] - 1 > of[OF_STAGE])[1:].all()
    assert model.experts is not None
    fewer = model.model_copy(update={"experts": model.experts.model_copy(update={"num_experts_per_tok": 4})})
    assert (uneven(fewer, np.array([8.0]), "pretrain")[OF_STAGE] > of[OF_STAGE][2]).all()
    assert uneven(load_model("llama3.1-8b"), np.array([1.0]), "pretrain") == {}


def test_the_busiest_ranks_peak_is_the_mean_ones_with_the_excess_of_its_slots() -> None:
    """Where nothing is recomputed, a stage's activations grow by the excess as with a load that is as high in all
    layers, and no more."""
    found = restore(plan(), plan().best)
    degrees, numbers = found.configuration, uneven(found.request.model, np.array([8.0]), "pretrain")
    found = found.having(ep=8) if degrees.ep != 8 else found
    excess = float(numbers[OF_STAGE][0]) * found.configuration.pp**0.5

    def activations(one: Prospect) -> float:
        return float(costed(one).cost.memory["activations"].max())

    limits = found.request.job.limits.model_copy(update={"expert_imbalance": 1 + excess})
    job = found.request.job.model_copy(update={"limits": limits})
    everywhere = replace(found, request=replace(found.request, job=job))
    assert activations(loaded(found)) == pytest.approx(activations(everywhere), rel=1e-9)
    assert activations(loaded(found)) > activations(found)
    working = [float(costed(one).cost.memory["working set"].max()) for one in (found, loaded(found))]
    assert working[1] >= working[0]


def test_every_plan_shown_survives_what_an_untrained_router_does() -> None:
    for one in plan().ranked:
        assert one.standing is not None
        assert one.standing.fits >= 1 - RISK
        drawn = under_loads(restore(plan(), one))
        assert drawn is None or drawn[0].min() >= max(costed(restore(plan(), one)).peaks)


def test_a_plan_says_what_the_fullest_gpu_holds_meanwhile() -> None:
    what = plan().best.predicted
    assert what.untrained is not None
    low, high = what.untrained["device_bytes"]
    assert what.device_bytes <= low < high <= what.interval["device_bytes"][1]
    assert 1.0 < what.untrained["load"][0] < what.untrained["load"][1] < what.untrained["layer_load"][1]
    slow, slower = what.untrained["step_s"]
    assert slow < what.step_s < slower < what.interval["step_s"][1]
    assert 1.0 < what.untrained["waited_load"][0] < what.untrained["waited_load"][1]


def test_a_router_of_a_checkpoint_loads_ranks_less_evenly_on_data_of_one_kind() -> None:
    """As uneven at least as a balancing loss leaves it; at most 32 experts of which 4 are chosen, and 256 of which 8,
    have the spread of lognormal loads with Gini coefficients of 0.44 and 0.65, as was counted of such models."""
    model, ranks = load_model(MODEL), np.array([2.0, 8.0, 32.0])
    new, tuned = (uneven(model, ranks, task) for task in ("pretrain", "rl"))
    assert (tuned[OF_STAGE] > 1.5 * new[OF_STAGE]).all()
    assert (tuned[OF_LAYER] <= ranks).all()
    assert UNTRAINED.most == pytest.approx(TRAINED.least, rel=0.15)
    for gini, chosen, experts in ((0.44, 4, 32), (0.65, 8, 256)):
        sigma = 2**0.5 * NormalDist().inv_cdf((gini + 1) / 2)
        spread = (np.exp(sigma**2) - 1) ** 0.5
        assert spread == pytest.approx((TRAINED.most * (experts / chosen - 1)) ** 0.5, rel=0.05)


def test_a_layer_waits_as_long_as_for_ranks_whose_experts_were_drawn() -> None:
    """Kinds of tokens, all as frequent, each of which has experts of its own in every layer."""
    model, rng, layers, alike = load_model(MODEL), np.random.default_rng(0), 400, 0.01
    assert model.experts is not None
    experts, chosen = model.experts.num_experts, model.experts.num_experts_per_tok
    drawn = rng.random((layers, round(1 / alike), experts)).argsort(axis=-1)[..., :chosen]
    counts = np.stack([np.bincount(layer.ravel(), minlength=experts) for layer in drawn])
    share = np.log(alike / TRAINED.least) / np.log(TRAINED.most / TRAINED.least)
    for ep in (2, 8, 32):
        ranks = counts.reshape(layers, ep, experts // ep).sum(axis=-1)
        expected = float((ranks.max(axis=-1) / ranks.mean(axis=-1)).mean())
        found = float(waited(model, np.array([float(ep)]), share)[OF_STEP][0])
        assert found - 1 == pytest.approx(expected - 1, rel=0.08)


def test_a_job_that_begins_with_a_checkpoint_says_so() -> None:
    job = plan().job.model_copy(update={"task": "sft"})
    tuned = search(load_model(MODEL), load_cluster(CLUSTER), job, top=1)
    assert tuned.best.predicted.untrained is not None
    assert plan().best.predicted.untrained is not None
    assert tuned.best.predicted.step_s > plan().best.predicted.step_s
    drawn = under_loads(restore(tuned, tuned.best))
    assert drawn is not None
    assert drawn[0].max() <= tuned.cluster.gpu.memory_bytes.value
