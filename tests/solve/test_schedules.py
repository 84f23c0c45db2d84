"""A plan under another schedule."""

from __future__ import annotations

import pytest

from symconfig.errors import InputError
from symconfig.schedule.schedules import SCHEDULES
from symconfig.solve.costed import Costed, costed
from symconfig.solve.prospect import Prospect
from symconfig.solve.restore import restore
from symconfig.solve.timeline import idle, stage_memory, suited, timeline
from tests.sample_plans import sample_plan


def candidate(**degrees: int) -> tuple[Prospect, Costed]:
    plan = sample_plan("llama2-13b", "a100-80gb", **{"tp": 2, "pp": 4, "dp": 2, "global_batch": 64, **degrees})
    found = restore(plan, plan.best)
    return found, costed(found)


def drawn(name: str) -> tuple[float, float, float]:
    """Return the step, the idle share and the peak of the candidate under a schedule."""
    cut, parts = suited(*candidate(), SCHEDULES[name])
    line = timeline(cut, parts, SCHEDULES[name])
    return line.step_s, idle(line), max(float(held.max()) for _, held in stage_memory(cut, parts, line))


def test_gpipe_waits_as_1f1b_does_and_holds_every_microbatch() -> None:
    (_, waits, holds), (_, own_waits, own_holds) = drawn("gpipe"), drawn("1f1b")
    assert waits == pytest.approx(own_waits, abs=0.01)
    assert holds > 2 * own_holds


def test_stages_are_cut_into_the_chunks_that_a_schedule_has() -> None:
    found, parts = candidate(vpp=5)
    cut, again = suited(found, parts, SCHEDULES["1f1b"])
    assert cut.split.vpp == 1
    assert sorted(kind for chunk in cut.split.chunks for kind in chunk) == sorted(
        kind for chunk in found.split.chunks for kind in chunk
    )
    assert again.setting.vpp == 1
    assert suited(found, parts, SCHEDULES["interleaved"]) == (found, parts)


def test_what_cannot_run_says_what_it_lacks() -> None:
    with pytest.raises(InputError, match="microbatch"):
        suited(*candidate(global_batch=4), SCHEDULES["interleaved"])  # two microbatches for four stages
    with pytest.raises(InputError, match="single stage"):
        suited(*candidate(pp=1, dp=8), SCHEDULES["gpipe"])


def test_split_backwards_fill_the_bubble() -> None:
    own, v, h1 = drawn("1f1b"), drawn("zb-v"), drawn("zb-h1")
    assert max(v[0], h1[0]) < own[0]
    assert v[1] < own[1]
