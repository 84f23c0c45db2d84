"""The way from a run to the best plan: every change with its own gain, all of them together the whole gain."""

from __future__ import annotations

import math

import pytest

from symconfig.api import plan as planned
from symconfig.audit.steps import DECISIONS
from symconfig.solve.predict import Configuration
from tests.audit.support import OVERLAPS, SEVENTY, audited


@pytest.mark.parametrize("line", [SEVENTY, f"{SEVENTY} {OVERLAPS}"])
def test_the_gains_multiply_to_the_whole_gain(line: str) -> None:
    found = audited(line, 128)
    assert found.judged is not None
    assert found.better is not None
    now, best = found.judged.plan.best.predicted.step_s, found.better.best.predicted.step_s
    assert found.gain == pytest.approx(1 - best / now)
    assert math.prod(1 - step.gain for step in found.way) == pytest.approx(best / now, rel=1e-9)
    assert found.way[-1].step_s == pytest.approx(best, rel=1e-9)
    assert found.way[-1].fits
    assert all(step.changes for step in found.way)


def test_the_best_plan_is_the_planners_own_where_the_run_has_its_kernels() -> None:
    found = audited(f"{SEVENTY} {OVERLAPS}", 128)
    own = planned("llama3.1-70b", "h100", 128, 256, 8192, top=1)
    assert found.better is not None
    assert found.better.best == own.best


def test_a_run_that_is_the_best_plan_has_no_way_to_go() -> None:
    own = planned("llama2-13b", "a100-80gb", 16, 64, 4096, top=1)
    found = audited(" ".join(own.megatron_args()), 16, "llama2-13b", "a100-80gb")
    assert found.way == ()
    assert found.gain == pytest.approx(0.0, abs=1e-12)


def test_a_run_that_does_not_fit_is_first_led_to_where_it_does() -> None:
    line = SEVENTY.replace(" --recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "")
    found = audited(line.replace("--micro-batch-size 1", "--micro-batch-size 8"), 128)
    assert found.judged is not None
    assert not found.judged.fits
    assert not found.runs
    assert "out-of-memory" in {finding.rule for finding in found.findings if finding.severity == "error"}
    assert found.gain is None
    fits = [step.fits for step in found.way]
    assert fits[-1]


def test_a_better_kernel_of_the_run_stays_in_its_best_plan() -> None:
    """--tp-comm-overlap is no decision of the planner: the run keeps it, and its best plan is judged with it."""
    plain, overlapped = (audited(f"{SEVENTY} {OVERLAPS}{more}", 128) for more in ("", " --tp-comm-overlap"))
    assert plain.judged is not None
    assert overlapped.judged is not None
    assert overlapped.judged.plan.best.predicted.step_s < plain.judged.plan.best.predicted.step_s
    assert overlapped.better is not None
    assert overlapped.better.best.predicted.step_s <= overlapped.judged.plan.best.predicted.step_s


def test_every_field_of_a_configuration_is_a_decision_or_given() -> None:
    given = {"dp", "global_batch", "seq_length", "precision", "packing", "backend", "version"}
    decided = {field for fields in DECISIONS.values() for field in fields}
    assert decided | given == set(Configuration.__dataclass_fields__)
    assert not decided & given


def test_nothing_is_predicted_where_the_gpus_do_not_divide() -> None:
    found = audited(SEVENTY, 24)
    assert found.judged is None
    assert any("do not divide the GPUs" in problem.what for problem in found.unpredicted)
    assert not found.runs
