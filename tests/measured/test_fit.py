"""The fit itself, on functions whose constants are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from symconfig.measured.fit import ALIKE, BETWEEN_SOURCES, FORM_ERROR, Fit, Parameter, fit

SIZES = np.geomspace(1.0, 1000.0, 24)
WIDE = 3.0  # a prior that says next to nothing


def seconds(rate: NDArray[np.float64], floor: NDArray[np.float64]) -> NDArray[np.float64]:
    """[rows, n]: work over a rate, and a floor."""
    return SIZES[:, None] / rate + floor


def log_seconds(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(seconds(*np.exp(theta)))


def measured(rate: float, floor: float) -> NDArray[np.float64]:
    return np.log(seconds(np.array([rate]), np.array([floor])))[:, 0]


def fitted(of: NDArray[np.float64], uncertainty: float = WIDE, high: float = 1e3, leave_out: int = 4) -> Fit:
    parameters = [Parameter("rate", 10.0, uncertainty, 1e-2, high), Parameter("floor", 1.0, uncertainty, 1e-3, 1e3)]
    names = [f"model {index % leave_out}" for index in range(len(SIZES))]
    return fit(log_seconds, of, parameters, [names])


def test_constants_come_back() -> None:
    found = fitted(measured(3.0, 7.0))
    assert found.values == pytest.approx([3.0, 7.0], rel=0.01)
    assert found.log_s == pytest.approx(measured(3.0, 7.0), abs=0.01)
    assert found.left_out_log_s[0] == pytest.approx(measured(3.0, 7.0), abs=0.01)


def test_a_few_rows_far_off_do_not_decide() -> None:
    rows = measured(3.0, 7.0)
    rows[[3, 20]] += np.log(2.0)
    assert fitted(rows).values == pytest.approx([3.0, 7.0], rel=0.05)


def test_bounds_hold_and_the_rest_is_fitted_beside_them() -> None:
    found = fitted(measured(3.0, 7.0), high=2.0)
    assert found.values[0] == pytest.approx(2.0)
    assert 3.0 < found.values[1] < 7.0


def test_a_firm_prior_stays_and_its_uncertainty_too() -> None:
    found = fitted(measured(3.0, 7.0), uncertainty=1e-4)
    assert found.values == pytest.approx([10.0, 1.0], rel=0.01)
    assert found.uncertainty == pytest.approx([1e-4, 1e-4], rel=0.01)


def test_what_the_rows_do_not_determine_keeps_its_prior() -> None:
    parameters = [Parameter("rate", 10.0, WIDE, 1e-2, 1e3), Parameter("unused", 5.0, 0.5, 1e-3, 1e3)]
    names = ["one"] * len(SIZES)
    found = fit(lambda theta: np.log(SIZES[:, None] / np.exp(theta[:1])), np.log(SIZES / 3.0), parameters, [names])
    assert found.values == pytest.approx([3.0, 5.0], rel=0.01)
    assert found.uncertainty[1] == pytest.approx(0.5, rel=0.01)
    assert found.left_out_log_s[0] == pytest.approx(np.log(SIZES / 10.0))  # one model: leaving it out leaves the prior


def test_rows_left_out_are_predicted_without_being_seen() -> None:
    rows = measured(3.0, 7.0)
    rows[::4] += np.log(1.5)  # one model errs by half
    found = fitted(rows)
    seen, unseen = np.abs(found.log_s - rows)[::4].mean(), np.abs(found.left_out_log_s[0] - rows)[::4].mean()
    assert unseen == pytest.approx(np.log(1.5), abs=0.02)
    assert seen < unseen


def one_rate(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(SIZES[:, None] / np.exp(theta))


def test_offsets_of_sources_leave_the_constants_that_integrating_them_out_gives() -> None:
    counts = {"many": 18, "few": 6}
    sources = np.repeat(list(counts), list(counts.values()))
    rows = np.log(SIZES / 3.0) + np.where(sources == "many", 0.004, -0.004)
    parameter = Parameter("rate", 3.0, WIDE, 1e-2, 1e3)
    found = fit(one_rate, rows, [parameter], sources=sources.tolist())
    alike = [FORM_ERROR**2 * (1 + ALIKE * (counts[source] - 1)) for source in sources]
    covariance = np.diag(alike) + BETWEEN_SOURCES**2 * (sources[:, None] == sources)
    weights = np.linalg.inv(covariance).sum(axis=0)
    precision = weights.sum() + WIDE**-2
    assert np.log(found.values[0] / 3.0) == pytest.approx(weights @ (np.log(SIZES / 3.0) - rows) / precision, rel=0.02)
    assert found.uncertainty[0] == pytest.approx(precision**-0.5, rel=0.02)
    assert found.offsets["many"] > 0 > found.offsets["few"]


def test_a_source_far_from_the_others_counts_for_less() -> None:
    def moved(by: float) -> float:
        sources = [f"source {index % 6}" for index in range(len(SIZES))]
        rows = np.log(SIZES / 3.0) + by * np.array([source == "source 0" for source in sources])
        found = fit(one_rate, rows, [Parameter("rate", 3.0, WIDE, 1e-2, 1e3)], [sources], sources)
        assert found.left_out_log_s[0, ::6] == pytest.approx(np.log(SIZES / 3.0)[::6], abs=1e-3)  # a stranger has none
        return float(np.log(3.0 / found.values[0])) / by

    assert moved(0.6) < 0.5 * moved(0.05)


def test_the_pulls_of_all_rows_make_the_whole_way_from_the_prior() -> None:
    found = fitted(measured(3.0, 7.0))
    assert np.exp(found.pull.sum(axis=1)) * [10.0, 1.0] == pytest.approx(found.values, rel=0.02)


def test_the_row_that_only_one_constant_explains_pulls_it_most() -> None:
    found = fitted(measured(3.0, 7.0))
    rate, floor = np.abs(found.pull)
    assert SIZES[rate.argmax()] > 100
    assert SIZES[floor.argmax()] < 10


def test_a_row_that_is_left_out_moves_a_constant_by_about_its_pull() -> None:
    rows = measured(10.0, 1.0)
    rows[-1] += 0.08
    parameters = [Parameter("rate", 10.0, 0.2, 1e-2, 1e3), Parameter("floor", 1.0, 0.2, 1e-3, 1e3)]
    names = ["one", "two"] * (len(SIZES) // 2)
    whole = fit(log_seconds, rows, parameters, [names])
    without = fit(lambda theta: log_seconds(theta)[:-1], rows[:-1], parameters, [names[:-1]])
    moved = np.log(whole.values / without.values)
    assert whole.pull[0, -1] == pytest.approx(moved[0], rel=0.35)
    assert whole.pull[0, -1] < 0  # slower than the rest: a lower rate
