"""One plan under every schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.cost.device import device_bytes
from symconfig.descriptor.job import Limits
from symconfig.errors import InputError
from symconfig.schedule.schedules import SCHEDULES
from symconfig.solve.costed import Costed, costed
from symconfig.solve.prospect import Prospect
from symconfig.solve.restore import restore
from symconfig.solve.schedules import Compared, compare, suited
from symconfig.solve.timeline import refined_s
from tests.sample_plans import sample_plan

NO_MARGIN = Limits(memory_margin=0.0)


def candidate(**degrees: int) -> tuple[Prospect, Costed]:
    plan = sample_plan("llama2-13b", "a100-80gb", **{"tp": 2, "pp": 4, "dp": 2, "global_batch": 64, **degrees})
    found = restore(plan, plan.best)
    return found, costed(found)


@pytest.mark.parametrize("vpp", [1, 5])
def test_its_own_schedule_takes_the_step_that_is_predicted(vpp: int) -> None:
    found, parts = candidate(vpp=vpp)
    (own,) = [row for row in compare(found, parts).able if row.own]
    assert own.schedule.name == ("1f1b" if vpp == 1 else "interleaved")
    assert own.step_s == pytest.approx(refined_s(found, costed(found)), rel=1e-12)
    assert own.peak_bytes == pytest.approx(max(parts.peaks), rel=1e-5)


def test_it_fits_where_its_peak_does() -> None:
    plan = sample_plan("llama3.1-70b", "h100", tp=8, pp=4, vpp=5, dp=2, overlap_tp_comm=True)  # with buffers beside
    found = restore(plan, plan.best)
    parts = costed(found)
    needed = max(parts.peaks)
    for most, fits in ((needed, True), (needed - 1e6, False)):
        memory = device_bytes(most, found.machine, found.request.framework)
        request = replace(found.request, surprise=None, job=plan.job.model_copy(update={"limits": NO_MARGIN}))
        held = replace(found, request=request, machine=replace(found.machine, memory_bytes=memory))
        (own,) = [row for row in compare(held, parts).able if row.own]
        assert own.fits is fits
        assert own.peak_bytes == pytest.approx(needed, rel=1e-5)


def test_each_schedule_is_ranked_by_its_step() -> None:
    found = compare(*candidate(vpp=5))
    names = {each.schedule.name for each in (*found.able, *found.refused)}
    assert names == set(SCHEDULES) - {"interleaved-paired"}  # which hides all-to-alls
    assert [row.step_s for row in found.able] == sorted(row.step_s for row in found.able)
    assert len(found.able) > len(found.refused)


def test_gpipe_waits_as_1f1b_does_and_holds_every_microbatch() -> None:
    rows = {row.schedule.name: row for row in compare(*candidate()).able}
    gpipe, own = rows["gpipe"], rows["1f1b"]
    assert gpipe.idle == pytest.approx(own.idle, abs=0.01)
    assert gpipe.peak_bytes > 2 * own.peak_bytes


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
    found, parts = candidate(global_batch=4)  # two microbatches for four stages
    with pytest.raises(InputError, match="microbatch"):
        suited(found, parts, SCHEDULES["interleaved"])
    (refused,) = [each for each in compare(found, parts).refused if each.schedule.name == "interleaved"]
    assert "need" in refused.why


def test_a_single_stage_has_none() -> None:
    alone = candidate(pp=1, dp=8)
    assert compare(*alone) == Compared()
    with pytest.raises(InputError, match="single stage"):
        suited(*alone, SCHEDULES["gpipe"])


def test_a_model_that_a_stage_has_twice_is_counted_twice() -> None:
    found, parts = candidate()
    rows = {row.schedule.name: row for row in compare(found, parts).able}
    states = parts.cost.memory["weights"][0, 0, 0, 0] + parts.cost.memory["optimizer state"][0, 0, 0, 0]
    assert rows["dualpipe"].peak_bytes > rows["1f1b"].peak_bytes + 0.5 * states


def test_split_backwards_fill_the_bubble() -> None:
    rows = {row.schedule.name: row for row in compare(*candidate()).able}
    assert rows["zb-v"].step_s < rows["1f1b"].step_s
    assert rows["zb-h1"].step_s < rows["1f1b"].step_s
    assert rows["zb-v"].idle < rows["1f1b"].idle
