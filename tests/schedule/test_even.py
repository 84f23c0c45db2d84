"""Schedules on equal stages, against closed forms and published figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from symconfig.errors import InputError
from symconfig.schedule.ampnet import ampnet
from symconfig.schedule.schedule import FORWARD, Schedule, Shape
from symconfig.schedule.schedules import SCHEDULES
from symconfig.schedule.simulate import simulate
from symconfig.schedule.times import Array, Times


@dataclass(frozen=True)
class Even:
    """A schedule on equal stages: its speed-up over one stage that does it all, the microbatches on the fullest stage,
    and the copies of a stage's weights."""

    speedup: float
    held: float
    weights: float


def even(schedule: Schedule, stages: int, microbatches: int, slow: Array | float = 1.0) -> Even:
    """Simulate it in as few chunks as it takes, with backwards of twice a forward and free messages."""
    problems = {vpp: schedule.problem(stages, vpp, microbatches) for vpp in (1, 2)}
    vpp = next((vpp for vpp, problem in problems.items() if problem is None), None)
    if vpp is None:
        raise InputError("; ".join(map(str, problems.values())))
    each = np.full((stages, vpp), 1.0 / vpp)
    line = simulate(schedule, Times(each, 0.0 * each, each, each, slow=slow), microbatches)
    held = max(float(line.held(stage)[1].sum(axis=1).max()) for stage in range(stages))
    weights = max(len(placed) / vpp * schedule.versions(line.shape, stage) for stage, placed in enumerate(line.placed))
    return Even(3.0 * stages * microbatches / line.step_s, held / vpp / schedule.slices, weights)


@pytest.mark.parametrize(("stages", "published"), [(2, 1.8), (4, 3.4), (8, 6.3)])
def test_gpipes_published_speedups(stages: int, published: float) -> None:
    """arXiv 1811.06965, table 2, Transformer-48 on TPUs, 32 microbatches, over 2 stages with one microbatch.

    With one microbatch nothing overlaps, so that the base is one stage's time. Theirs has uneven ends and messages,
    which equal stages with free messages have not: it lies below by up to 8 %.
    """
    assert even(SCHEDULES["gpipe"], stages, 1).speedup == pytest.approx(1.0)
    simulated = even(SCHEDULES["gpipe"], stages, 32).speedup
    assert simulated == pytest.approx(stages * 32 / (32 + stages - 1))
    assert published < simulated < 1.08 * published


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 4), (8, 16), (16, 8)])
def test_pipemares_gain_over_gpipe(stages: int, microbatches: int) -> None:
    """arXiv 1910.05124, table 1: GPipe has N / (N + P - 1) of PipeMare's throughput, PipeMare one copy of weights."""
    mare, pipe = (even(SCHEDULES[name], stages, microbatches) for name in ("pipemare", "gpipe"))
    assert mare.speedup / pipe.speedup == pytest.approx((microbatches + stages - 1) / microbatches)
    assert (mare.weights, even(SCHEDULES["pipedream"], stages, microbatches).weights) == (1, stages)


@pytest.mark.parametrize("m", [1, 3, 4, 8])
@pytest.mark.parametrize("name", ["pipemare", "ampnet"])
def test_staleness_without_versions_follows_from_the_order(name: str, m: int) -> None:
    """Each forward takes the weights that are there; those are updated after every m backwards of a stage."""
    schedule, shape = SCHEDULES[name], Shape(4, 1, m, 4)
    for stage, order in enumerate(schedule.orders(*shape)):
        ended, late = 0, []
        for kind, _, microbatch in order:
            if kind == FORWARD:
                late.append(microbatch // m - ended // m)
            else:
                ended += 1
        assert max(late) == schedule.staleness(shape, stage)


@pytest.mark.parametrize("active", [1, 2, 4, 8])
def test_ampnet_is_as_fast_as_it_has_microbatches_in_flight(active: int) -> None:
    """arXiv 1705.09786, section 3: more active keys until all workers are busy; one is no pipeline at all."""
    found = even(ampnet(active), 8, 16)
    assert found.speedup == pytest.approx(active)
    assert found.held == active
    with pytest.raises(InputError, match="need a multiple of 3"):
        even(ampnet(3), 8, 16)


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "chimera", "pipedream"])
def test_a_slow_stage_slows_what_it_holds(name: str) -> None:
    """Whatever chunks it has: a pipeline is never faster than its slowest stage, nor slower than all as slow."""
    m = 4 if name == "chimera" else 16
    even_speed = even(SCHEDULES[name], 4, m).speedup
    slow = np.array([1.0, 2.0, 1.0, 1.0])
    slowed = even(SCHEDULES[name], 4, m, slow).speedup
    assert even_speed / 2 <= slowed + 1e-9
    assert slowed <= 2.0 + 1e-9
    assert even(SCHEDULES[name], 4, m, 2.0).speedup == pytest.approx(even_speed / 2)
