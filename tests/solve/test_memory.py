"""Memory over time against a walk through the simulated tasks, and against the peaks of the cost model."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.plan import Plan
from symconfig.solve.detail import detail
from symconfig.solve.memory import stage_memory
from symconfig.solve.restore import restore
from symconfig.solve.timeline import timeline
from tests.sample_plans import sample_plan

PLANS = {
    "1f1b": {"tp": 2, "pp": 4, "dp": 2, "global_batch": 64},
    "interleaved": {"tp": 2, "pp": 4, "vpp": 5, "dp": 2, "global_batch": 64},
    "few microbatches": {"tp": 2, "pp": 4, "dp": 2, "global_batch": 4},
    "one stage": {"tp": 2, "pp": 1, "dp": 4, "global_batch": 32},
}


def plan(name: str) -> Plan:
    return sample_plan("llama2-13b", "a100-80gb", **PLANS[name])


@pytest.mark.parametrize("name", PLANS)
def test_the_peak_of_every_stage_is_that_of_the_cost_model(name: str) -> None:
    found = restore(plan(name), plan(name).best)
    parts = detail(found)
    memory = stage_memory(found, parts, timeline(found, parts))
    assert [bytes_.max() for _, bytes_ in memory] == pytest.approx(list(parts.peaks), rel=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_at_each_moment_it_is_that_of_the_microbatches_held(name: str) -> None:
    found = restore(plan(name), plan(name).best)
    parts = detail(found)
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
                levels.setdefault(held, set()).add(round(level / 1e3))
        assert all(len(found) == 1 for found in levels.values())  # equal chunks: their number decides
        each = np.diff([max(levels[held]) for held in sorted(levels) if held > 0])
        assert each == pytest.approx(np.full(len(each), each[0] if len(each) else 0.0), rel=1e-5)
        assert bytes_[-1] == bytes_[0] if begun[0] > 0 else bytes_[-1] <= bytes_.min()
