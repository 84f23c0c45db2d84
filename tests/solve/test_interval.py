"""Intervals of predictions: which runs count as alike, and what their errors make of a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.solve import interval as module
from symconfig.solve.interval import KINDS, Ratios, Relative, Spread, expected, interval, posterior, recorded
from tools.accuracy_unseen import SEVERAL, spread

DENSE, EXPERTS, ADAPTER = load_model("llama2-13b"), load_model("mixtral-8x7b"), load_model("llama2-70b-lora")
A100, H100 = load_cluster("a100-80gb"), load_cluster("h100")
SPREAD = Spread(run=0.05, source=0.08, reach=dict.fromkeys(KINDS, 1.8))


def ratios(n: int, low: float, high: float) -> tuple[float, ...]:
    return tuple(low + (high - low) * index / (n - 1) for index in range(n))


KNOWN = (
    Ratios("time", "ampere", "dense", "first", ratios(101, 0.92, 1.08)),
    Ratios("time", "ampere", "dense", "second", ratios(9, 0.9, 1.1)),
    Ratios("time", "hopper", "dense", "third", ratios(21, 1.1, 1.3)),
    Ratios("time", "hopper", "experts", "third", ratios(5, 0.8, 1.2)),
)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "recorded", lambda _: (KNOWN, SPREAD))
    kept = (module.errors, module._expected)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


@pytest.mark.usefixtures("runs")
def test_it_rests_on_runs_of_the_same_kind_on_the_same_gpu() -> None:
    found = interval("time", A100, DENSE)
    assert found.basis == "110 held-out runs of dense models on ampere GPUs, from 2 sources"
    assert found.low < 0.9 < 1.1 < found.high
    experts = interval("time", A100, EXPERTS).basis
    assert experts == "5 held-out runs of mixtures of experts on other GPUs, from 1 source"
    assert interval("time", A100, ADAPTER).basis.endswith("136 held-out runs of other models, from 3 sources")


@pytest.mark.usefixtures("runs")
def test_the_less_is_known_the_wider() -> None:
    widths = [found.high / found.low for found in (interval("time", A100, each) for each in (DENSE, EXPERTS, ADAPTER))]
    assert widths == sorted(widths)


@pytest.mark.parametrize("quantity", ["time", "memory"])
def test_nine_in_ten_runs_of_every_kind_lie_where_the_others_say(quantity: module.Quantity) -> None:
    seen, recorded_spread = recorded(quantity)
    now, then = asdict(spread(seen)), asdict(recorded_spread)
    assert now.pop("reach") == pytest.approx(then.pop("reach"))
    assert now == pytest.approx(then)
    inside: dict[str, list[bool]] = {}
    for each in seen:
        others = [other for other in seen if other.source != each.source]
        mean, deviation = expected(others, recorded_spread.run, recorded_spread.source, each.gpu, each.kind)
        reach = recorded_spread.reach[each.kind] * deviation + 1e-12  # rounding
        inside.setdefault(each.kind, []).extend(
            mean - reach <= module.math.log(ratio) <= mean + reach for ratio in each.measured
        )
    sources = {name: {each.source for each in seen if each.kind == name} for name in inside}
    for name, of_kind in inside.items():
        assert sum(of_kind) >= 0.9 * len(of_kind) or len(sources[name]) < SEVERAL, name
    assert sum(map(sum, inside.values())) >= 0.9 * sum(map(len, inside.values()))


@pytest.mark.parametrize(("announced", "before"), [("vr200-nvl72", "gb300-nvl72"), ("mi455x-helios", "mi355x")])
def test_times_of_an_announced_gpu_are_less_certain(announced: str, before: str) -> None:
    new, old = load_cluster(announced), load_cluster(before)
    assert new.announced
    assert not old.announced
    assert new.kernels == old.kernels
    model = load_model("llama3.1-70b")
    wide, narrow = (interval("time", cluster, model) for cluster in (new, old))
    assert wide.low < narrow.low
    assert wide.high > narrow.high
    assert "on other GPUs" in wide.basis


def test_a_member_that_is_known_is_what_it_is_and_a_stranger_is_the_roots() -> None:
    seen = [Relative(("a", "b", "c"), 0.7, 0.0)]
    assert posterior(("a", "b", "c"), seen, (1, 1, 1)) == pytest.approx((0.7, 0.0))
    assert posterior(("x", "b", "c"), seen, (1, 1, 1)) == pytest.approx((0.0, 3.0))
    assert posterior(("a",), [], (2,)) == pytest.approx((0.0, 2.0))


def test_it_is_what_drawing_many_families_gives() -> None:
    """Members of two branches, observed with noise; the conditional mean by least squares over many draws."""
    rng = np.random.default_rng(3)
    n = 400_000
    root, left, right = rng.normal(0, 0.5, n), rng.normal(0, 1, n), rng.normal(0, 1, n)
    first, second, other = root + left + rng.normal(0, 2, n), root + left + rng.normal(0, 2, n), root + right
    wanted = root + left + rng.normal(0, 2, n)
    noisy = np.stack([first + rng.normal(0, 0.3, n), second, other + rng.normal(0, 2, n)])
    weights = np.linalg.lstsq(noisy.T, wanted, rcond=None)[0]
    at = (0.4, -1.0, 2.0)
    variances = (0.25, 1.0, 4.0)
    paths = (("r", "left", 1), ("r", "left", 2), ("r", "right", 3))
    seen = [Relative(path, value, noise) for path, value, noise in zip(paths, at, (0.09, 0.0, 0.0), strict=True)]
    mean, variance = posterior(("r", "left", 9), seen, variances)
    assert mean == pytest.approx(float(weights @ at), abs=0.01)
    assert variance == pytest.approx(float(np.var(wanted - weights @ noisy)), rel=0.02)
