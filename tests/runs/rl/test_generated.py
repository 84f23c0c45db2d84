"""The model of generation against steps of an engine's kind that an H100 took (docs/evidence/generation.md)."""

from __future__ import annotations

from statistics import mean

import pytest

from symconfig.runs.rl import engine
from symconfig.runs.rl.engine import LAYER_S, STEP_S, TOGETHER, UNCERTAIN
from tools.generate import evidence as script
from tools.generate import is_current


@pytest.fixture(scope="module")
def parts() -> list[list[script.Step]]:
    """The parts of the page: fitted, decoding and prompts of the rest, decoding and prompts with experts, sampling."""
    return list(script.parted(script.points()).values())


def test_steps_that_the_fit_did_not_see_are_predicted(parts: list[list[script.Step]]) -> None:
    """The longest prompt is 7 % off: its attention's rate is one that training was fitted to."""
    decoded, prompts = ([point.off for point in part] for part in parts[1:3])
    assert (len(decoded), len(prompts)) == (13, 4)
    assert mean(map(abs, decoded)) < 0.03
    assert all(-0.06 < each < 0.07 for each in decoded)
    assert all(-0.06 < each < 0.07 for each in prompts)


def test_words_are_drawn_in_the_time_of_their_logits(parts: list[list[script.Step]]) -> None:
    """Of few words the softmax alone takes 40 us, whatever the GPU does beside it: no more is claimed of them."""
    for point in parts[5]:
        assert point.predicted_s == pytest.approx(point.seconds, rel=0.08, abs=4e-5)


def test_kernels_of_a_step_with_experts_take_what_is_predicted() -> None:
    """But for PyTorch's routing, which is no engine's: its grouped products of few tokens are slower than others."""
    rows = [row for row in script.kernels() if row["model"] == script.EXPERTS]
    taken = [sum(us for name, us in row["kernels"].items() if name != script.OTHER) for row in rows]
    errors = [row["predicted"] / us - 1 for row, us in zip(rows, taken, strict=True)]
    assert len(errors) == 4
    assert all(-0.15 < each < 0.0 for each in errors)
    assert mean(errors) > -0.1


def test_the_two_fitted_constants_are_the_best_of_those_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for layer_s in (LAYER_S - 2e-6, LAYER_S, LAYER_S + 2e-6):
        for together in (TOGETHER - 1, TOGETHER, TOGETHER + 1):
            monkeypatch.setattr(engine, "LAYER_S", layer_s)
            monkeypatch.setattr(engine, "TOGETHER", together)
            fitted, *_ = script.parted(script.points()).values()
            found[layer_s, together] = mean(abs(point.off) for point in fitted)
    assert min(found, key=lambda at: found[at]) == (LAYER_S, TOGETHER)


def test_the_interval_has_the_errors_and_other_seconds_between_steps(parts: list[list[script.Step]]) -> None:
    """Beside 10 ms of work on the GPU: dense steps with 0.5 ms between them, and with experts by PyTorch with 6 ms."""
    dense = [1 / (1 + point.off) for part in parts[1:3] for point in part]
    experts = [1 / (1 + point.off) for point in parts[3] if point.sequences * point.context > 2**14]
    low, high = 10 * min(dense) + 0.5, 10 * sorted(experts)[len(experts) // 2] + 6
    work = 10 + 1e3 * STEP_S
    assert UNCERTAIN[0] <= low / work < UNCERTAIN[0] + 0.025
    assert UNCERTAIN[1] - 0.025 < high / work <= UNCERTAIN[1]


def test_the_page_is_of_these_numbers() -> None:
    assert is_current("generation"), "python -m tools generate generation"
