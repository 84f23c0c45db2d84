"""Borders of `whatif` against planning on both sides of them; what is kept through a change, against pinned plans."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig import plan, whatif_changes
from symconfig.api.planning import PlanResult
from symconfig.descriptor.cluster import NETWORK
from symconfig.errors import InputError
from symconfig.report.grid import plain
from symconfig.report.whatif import changes
from symconfig.runs.replan.changes import carried, judged
from symconfig.runs.whatif import WhatIf, changed, named, parsed, varied
from tests.cli.support import Run
from tests.sample_plans import learning_plan

JOB: dict[str, Any] = {
    "model": "llama3.1-8b",
    "gpus": 16,
    "global_batch_size": 64,
    "pins": {"cp": 1, "pp": "1..2", "tp": "1..2", "vpp": 1},
}


@cache
def planned() -> PlanResult:
    return symconfig.plan(**JOB, cluster="h100")


@cache
def answer() -> WhatIf:
    return symconfig.whatif(planned(), ["links=0.05..1x"])


def test_a_border_is_where_planning_on_either_side_gives_another_plan() -> None:
    (line,) = answer().lines
    assert len(line.spans) > 1
    for before, after in pairwise(line.spans):
        assert 1 < after.low / before.high <= 1 + 1e-3
        for span, value, step_s in ((before, before.high, before.high_s), (after, after.low, after.answer.step_s)):
            levels = [
                level
                if level.name in NETWORK
                else level.model_copy(
                    update={
                        "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s.model_copy(
                            update={"value": level.bandwidth_bytes_per_s.value * value}
                        )
                    }
                )
                for level in planned().plan.cluster.levels
            ]
            cluster = planned().plan.cluster.model_copy(update={"levels": tuple(levels)})
            found = symconfig.plan(**JOB, cluster=cluster).best
            assert (named(found), found.predicted.step_s) == (span.answer.name, step_s)
    assert (line.spans[0].low, line.spans[-1].high) == (0.05, 1.0)


def test_the_plan_itself_is_the_best_at_what_it_was_made_for() -> None:
    found = answer()
    assert found.lines[0].spans[-1].answer.name == found.now.name == named(planned().best)
    assert found.lines[0].spans[-1].high_s == planned().best.predicted.step_s


def test_batches_are_whole_steps_in_which_the_plan_can_run() -> None:
    (line,) = symconfig.whatif(planned(), ["global_batch_size=16..100"]).lines
    best = planned().best
    step = best.configuration.micro * best.configuration.dp
    assert line.vary.step == step
    assert [line.spans[0].low % step, line.spans[-1].high % step] == [0, 0]
    assert (line.spans[0].low, line.spans[-1].high) == (step, 100 // step * step)


def test_all_that_is_wrong_is_said_at_once() -> None:
    words = ["colour=1..2", "network=2..0.5x", "global_batch_size=a..4", "links=0.5..2", "memory", "seq_length=1..2x"]
    with pytest.raises(InputError) as caught:
        varied(planned().plan, words)
    told = "\n".join(map(str, caught.value.problems))
    for part in (
        "cannot be varied (got colour, need one of global_batch_size",
        "is no range (got network=2..0.5x, need network=0.5..2x, factors from 0.01 to 100)",
        "is no range (got global_batch_size=a..4, need global_batch_size=64..4096, whole numbers up to 16,777,216)",
        "is no range (got links=0.5..2, need links=0.5..2x",
        "is no range (got memory, need memory=0.5..2x",
        "is no range (got seq_length=1..2x, need seq_length=64..4096",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "nothing is varied"),
        (["network=1..2x", "network=1..3x"], "is varied twice"),
        (["global_batch_size=1..2"], "holds less than two values"),
        (["global_batch_size=1.5..64"], "whole numbers"),
        (["network=1..1000x"], "factors from 0.01 to 100"),
    ],
)
def test_each_of_them_is_a_sentence(words: list[str], part: str) -> None:
    with pytest.raises(InputError, match=part):
        varied(planned().plan, words)


@pytest.mark.parametrize(
    ("word", "ends"),
    [("global_batch_size=1e3..4e3", (1000, 4000)), ("network=.5..2x", (0.5, 2)), ("links=5E-1..1.5e+0x", (0.5, 1.5))],
)
def test_numbers_of_a_range_are_written_as_any(word: str, ends: tuple[float, float]) -> None:
    (vary,) = varied(planned().plan, [word])
    assert 0 <= vary.low - ends[0] < max(vary.step, 1e-9)
    assert 0 <= ends[1] - vary.high < max(vary.step, 1e-9)


@pytest.mark.parametrize("word", ["global_batch_size=64..512", "seq_length=512..4096"])
def test_sizes_that_a_section_says_are_not_varied(word: str) -> None:
    """A step of reinforcement learning is counted from its own section, so that nothing would follow from them."""
    with pytest.raises(InputError, match=r"follows from the section rl .*need one of network, links"):
        varied(learning_plan(), [word])


def test_a_step_of_several_phases_is_varied_as_a_whole() -> None:
    lengths = {"mean": 500.0, "max": 1024}
    job: dict[str, Any] = {"model": "llama3.2-1b", "cluster": "h100", "gpus": 8, "target": "trl"}
    paired = symconfig.plan(**job, preference={"pairs": 64}, sequences=lengths)
    found = symconfig.whatif(paired, ["links=0.9..1x"])
    assert found.now.step_s == pytest.approx(paired.plan.tuned[0].step_s)


CHANGED: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": "h100",
    "gpus": 16,
    "global_batch_size": 64,
    "seq_length": 4096,
}


def test_what_is_kept_is_the_old_plan_and_what_is_new_is_the_plan() -> None:
    old = plan(**CHANGED, top=1)
    (case,) = whatif_changes(old, [{"global_batch_size": 128}])
    anew = plan(**{**CHANGED, "global_batch_size": 128}, top=1)
    assert case.new.best == anew.best
    kept, best = case.kept.candidate.configuration, old.best.configuration
    names = ("tp", "pp", "vpp", "cp", "micro", "zero_stage", "recompute")
    assert [getattr(kept, name) for name in names] == [getattr(best, name) for name in names]
    assert kept.global_batch == 128
    assert symconfig.replan(old, global_batch_size=128, top=1).found.changes.stayed == case.kept


def test_no_gain_is_told_against_a_kept_plan_that_only_fits_with_a_risk() -> None:
    old = plan(**{**CHANGED, "model": "llama3.1-8b"}, top=1)
    (case,) = whatif_changes(old, [{"seq_length": 8192}])
    assert old.plan.usable_bytes > case.kept.candidate.predicted.device_bytes > case.new.best.predicted.device_bytes
    assert (case.kept.fits, case.kept.safe, case.gain) == (True, False, None)
    assert case.kept.slower < 0
    told = plain(changes([case]))
    assert re.search(r"74\.36 .* runs safely", told)
    assert "kept, the plan takes 1.82 % less time, with too high a risk of running out of memory." in told
    limits = case.new.job.limits.model_copy(update={"memory_risk": 0.5})
    bold = replace(case.new, job=case.new.job.model_copy(update={"limits": limits}))
    assert judged(bold, carried(old.best, bold)).safe


def test_a_gain_is_of_tokens_a_second() -> None:
    (case,) = whatif_changes(plan(**{**CHANGED, "attention": "unfused"}, top=1), [{"attention": "flash"}])
    kept, new = case.kept.candidate.predicted, case.new.best.predicted
    assert case.gain == pytest.approx(new.tokens_per_s_per_gpu / kept.tokens_per_s_per_gpu, rel=1e-3)
    assert case.gain >= 1 - 1e-9


@pytest.mark.parametrize("value", ["none", "null", None])
def test_none_clears_a_field(value: str | None) -> None:
    old = plan(**{**CHANGED, "sequences": {"mean": 500.0, "max": 4096}}, top=1)
    assert old.plan.job.sequences is not None
    _, _, job = changed(old.plan, {"sequences": str(value)})
    assert job.sequences is None


def test_a_strategy_that_does_not_run_says_why() -> None:
    (case,) = whatif_changes(plan(**{**CHANGED, "gpus": 8}, top=1), [{"seq_length": 131072, "global_batch_size": 8}])
    assert case.gain is None
    assert not case.kept.fits
    assert str(case.kept).startswith(("cannot run: ", "does not fit: "))


def test_all_that_is_wrong_with_changes_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        whatif_changes(
            plan(**CHANGED, top=1), [{"nonsense": 1}, {"seq_lengt": 1}, {"gpus": "x"}, {"model": "none-such"}]
        )
    told = " ".join(map(str, caught.value.problems))
    for words in ("change.nonsense", "Try: seq_length", "gpus", "none-such"):
        assert words in told
    with pytest.raises(InputError):
        parsed(["a", "b="])
    with pytest.raises(InputError, match="this argument is empty"):
        whatif_changes(plan(**CHANGED, top=1), [])


def test_the_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan(**CHANGED, top=1).to_json(), encoding="utf-8")
    told = run("whatif", path, "--change", "global_batch_size=128", "--json")
    assert told.code == 0
    data = json.loads(told.out)
    assert data["schema"] == "symconfig.adaptability/1"
    assert data["changes"][0]["change"] == {"global_batch_size": "128"}
    assert run("whatif", path, "--change", "x").code == 2
    assert run("whatif", path).code == 2
    both = run("whatif", path, "--change", "gpus=8", "--vary", "network=1..2x")
    assert both.code == 2
    assert "--vary and --change: cannot be given together" in both.err
