"""The best plan that a target can be told: the search over refusals is exact, and of two pins both hold."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks.constraint import other
from symconfig.plans.plan import Search
from symconfig.solve import answer
from symconfig.solve.pins import DEGREES, narrowed, parse

VALUES = {"tp": (1, 2, 4, 8), "cp": (1, 2, 4), "zero": (0, 1, 2, 3)}
Point = dict[str, int]
FREE = Search(1, 1, 0.0)


def has(point: Point, pins: dict[str, str]) -> bool:
    return all(parse(pins).allows(name, value) for name, value in point.items())


@dataclass(frozen=True)
class Rule:
    """Refuses the points with all of these values; what else there is differs in one of them."""

    values: Point

    def problem(self, point: Point) -> Problem | None:
        if any(point[name] != value for name, value in self.values.items()):
            return None
        pins = [pin for name, value in self.values.items() for pin in other(name, value)]
        return Problem("cannot be told", pins=tuple(pins))


points = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
rules = (
    st.dictionaries(st.sampled_from(list(VALUES)), st.integers(), min_size=1)
    .flatmap(lambda names: st.fixed_dictionaries({name: st.sampled_from(VALUES[name]) for name in names}))
    .map(Rule)
)


@given(
    st.lists(rules, max_size=6),
    st.randoms(use_true_random=False),
    st.dictionaries(st.sampled_from(["tp", "cp", "zero"]), st.sampled_from(["1", "1..2", "2.."]), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_the_first_plan_that_is_not_refused_is_the_best_of_all_that_are_not(
    refusals: list[Rule], random: Any, asked: dict[str, str]
) -> None:
    space = [dict(zip(VALUES, values, strict=True)) for values in product(*VALUES.values())]
    seconds = dict(zip(range(len(space)), random.sample(range(1, 1000), len(space)), strict=True))

    def solved(pins: Any) -> Any:
        fitting = [index for index, point in enumerate(space) if has(point, pins)]
        if not fitting:
            raise InfeasibleError("nothing has these pins")
        index = min(fitting, key=seconds.__getitem__)
        best = SimpleNamespace(
            parallel=SimpleNamespace(world_size=8), point=space[index], predicted=SimpleNamespace(step_s=seconds[index])
        )
        return _Fake(best, FREE)

    def variables(plan: Any) -> dict[str, object]:
        if problems := [found for rule in refusals if (found := rule.problem(plan.best.point))]:
            raise InfeasibleError(problems)
        return {}

    told = [
        index
        for index, point in enumerate(space)
        if has(point, asked) and not any(rule.problem(point) for rule in refusals)
    ]
    if not any(has(point, asked) for point in space):
        return
    job = SimpleNamespace(pins=asked, precision=None, target=None)
    target: Any = SimpleNamespace(name="fake", checked_variables=variables)
    if told:
        best: Any = answer.best_expressible(target, job, solved)  # type: ignore[arg-type]
        assert best.best.predicted.step_s == min(seconds[index] for index in told)
        fastest = min(seconds[index] for index, point in enumerate(space) if has(point, asked))
        if best.best.predicted.step_s > fastest:
            assert best.search.free_step_s == fastest
            assert has(best.best.point, best.search.narrowed)
        else:
            assert best.search == FREE
    else:
        with pytest.raises(InfeasibleError, match="no plan that it can express"):
            answer.best_expressible(target, job, solved)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Fake:
    """As much of a plan as is looked at."""

    best: Any
    search: Any
    alternatives: tuple[Any, ...] = ()


numbers = st.integers(1, 40)
ranges = st.one_of(
    numbers.map(str),
    numbers.map(lambda n: f"..{n}"),
    numbers.map(lambda n: f"{n}.."),
    st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}..{max(pair)}"),
)


@given(st.sampled_from([name for name in DEGREES if name != "zero"]), ranges, ranges, numbers)
def test_both_of_two_pins_hold_in_one(name: str, one: str, another: str, value: int) -> None:
    both = narrowed({name: one}, f"{name}={another}")
    each = [parse({name: text}).allows(name, value) for text in (one, another)]
    assert all(each) == (both is not None and parse(both).allows(name, value))
