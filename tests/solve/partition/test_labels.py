"""Labels against every assignment: whatever the price, below any ceiling."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.solve.partition import exact, labels
from symconfig.solve.partition.labels import cheapest
from symconfig.solve.partition.reduce import space
from tests.solve.partition import brute
from tests.solve.partition.samples import small


@pytest.mark.parametrize("prices", [(0.0,), (0.3,), (2.0, 0.0), (0.3, 0.6, None)], ids=str)
@pytest.mark.parametrize("seeds", [range(first, first + 40) for first in range(0, 160, 40)], ids=str)
def test_the_cheapest_that_fits_below_a_ceiling(seeds: range, prices: tuple[float | None, ...]) -> None:
    for seed in seeds:
        problem, known = small(seed), brute.solve(small(seed))
        of = space(problem)
        if of is None or problem.memory_limit == np.inf:
            continue
        for ceiling in (np.inf, 1e4, known.cost * 1.1 + 1, known.cost * 0.9) if known.choice else (50.0,):
            found = cheapest(of, prices, ceiling)
            assert found.complete
            if known.cost < ceiling:
                assert found.choice is not None, seed
                assert problem.cost(of.original(found.choice)) == pytest.approx(known.cost, rel=1e-9), seed
            else:
                assert found.choice is None, seed


def test_too_many_labels_are_given_up_and_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MOST", 2)
    given_up = 0
    for seed in range(0, 60, 3):
        problem = small(seed)
        of = space(problem)
        if of is not None and problem.memory_limit < np.inf:
            given_up += not cheapest(of, (0.0,), 1e4).complete
        assert exact.solve(problem).cost == pytest.approx(brute.solve(problem).cost, rel=1e-9)
    assert given_up >= 5
