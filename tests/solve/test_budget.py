"""The probability of running out of memory: from the interval's own distribution, and a limit of the search."""

from __future__ import annotations

import math
from typing import Any

import pytest

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InfeasibleError
from symconfig.solve.interval import NO_LIMIT, errors, interval, surprise
from symconfig.solve.predict import restore
from symconfig.solve.search import search
from symconfig.solve.space import fitting
from tests.solve.naive import job, tight, tiny

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
    for each in (plan.best, *plan.alternatives):
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
