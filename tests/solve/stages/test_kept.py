"""What is kept between questions to the stage solver changes no answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.solve.stages import solve as module
from symconfig.solve.stages.problem import Scope, StageProblem, StageSolution, Unsatisfied
from symconfig.solve.stages.solve import solve
from tests.solve.stages.samples import small


def answer(problem: StageProblem) -> StageSolution | Unsatisfied:
    found = solve(problem)
    return replace(found, seconds=0.0) if isinstance(found, StageSolution) else found


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("unlimited", [True, False])
def test_one_of_the_same_seconds_before_it_changes_no_answer(vpp: int, unlimited: bool) -> None:
    for seed in range(20):
        problem = small(seed, Scope.MODEL, vpp)
        if unlimited:
            problem = replace(problem, limit_bytes=float("inf"))
        module._begun.cache_clear()
        alone = answer(problem)
        module._begun.cache_clear()
        turned = {kind: tuple(reversed(each)) for kind, each in problem.kept_bytes.items()}
        answer(replace(problem, kept_bytes=turned, state_bytes=dict.fromkeys(problem.state_bytes, 9.0)))
        assert answer(problem) == alone
        assert module._begun.cache_info().misses == (1 if unlimited else 2)
