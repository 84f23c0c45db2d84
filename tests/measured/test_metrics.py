"""Scores against numbers computed by hand."""

from __future__ import annotations

import pytest

from symconfig.measured.judge import Judged
from symconfig.measured.score import error, oom, score, sweep
from tests.measured.support import file_of, run_text


def test_errors_by_hand() -> None:
    """Predicted 1.2, 0.95 and 0.7 of what was measured: off by 20, 5 and 30 %."""
    found = error([("a", (1.2, 1.0)), ("b", (1.9, 2.0)), ("c", (7.0, 10.0))])
    assert found is not None
    assert found.n == 3
    assert found.mape == pytest.approx((0.2 + 0.05 + 0.3) / 3)
    assert found.bias == pytest.approx((0.2 - 0.05 - 0.3) / 3)
    assert (found.worst, found.max_id) == (pytest.approx(-0.3), "c")
    assert (found.worst_under, found.worst_under_id) == (pytest.approx(0.3), "c")
    assert found.within_10 == pytest.approx(1 / 3)
    assert found.within_20 == pytest.approx(2 / 3)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """a: fits; b: fits and is slower; c: 8 GPUs of one replica each, which do not hold the model."""
    rows = (
        run_text("a", "{step_s: 10.0}"),
        run_text("b", "{step_s: 8.0}", recompute="full"),
        run_text("c", "{step_s: 9.0}", tp=1, dp=8),
        run_text("d", "{oom: true}", tp=1, dp=8),
        run_text("e", "{oom: true}", recompute="full"),
        run_text("f", "{oom: true}", tp=1, dp=8, micro=2),
    )
    return list(score([file_of(tmp_path_factory.mktemp("runs"), *rows)])[0].rows)


def test_out_of_memory_by_hand(judged: list[Judged]) -> None:
    """d and f are found, e is not; of a, b and c, which ran, c is called out of memory."""
    found = oom(judged)
    assert found is not None
    assert (found.ran_out, found.found, found.ran, found.false_oom) == (3, 2, 3, 1)
    assert found.recall == pytest.approx(2 / 3)
    assert found.false_oom_rate == pytest.approx(1 / 3)


def test_a_sweep_by_hand(judged: list[Judged]) -> None:
    """The prediction prefers a to b, of the two that fit; b was the best: 10 s over 8 s. The median is 9 s."""
    found = sweep("s", judged)
    assert found is not None
    assert (found.n, found.timed, found.pick, found.best) == (6, 3, "a", "b")
    assert found.regret == pytest.approx(0.25)
    assert found.choice in "ab"
    assert not found.choice_ran_out
    assert found.median_mape == pytest.approx((1 / 10 + 1 / 8 + 0) / 3)
