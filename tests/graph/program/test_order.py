"""Orders and cycles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from symconfig.graph.program.read import in_order

GRAPHS = st.integers(1, 8).flatmap(
    lambda count: st.lists(st.sets(st.integers(0, count - 1), max_size=3), min_size=count, max_size=count)
)


def of(before: list[set[int]]) -> tuple[list[int], list[list[int]]]:
    return in_order([{f"x{index}" for index in sources} for sources in before], [{f"x{i}"} for i in range(len(before))])


def reached(before: list[set[int]], start: int) -> set[int]:
    """All that `start` reads over some way."""
    found: set[int] = set()
    stack = [start]
    while stack:
        for source in before[stack.pop()] - found:
            found.add(source)
            stack.append(source)
    return found


@given(GRAPHS)
def test_each_comes_after_what_it_reads_or_hangs_on_a_cycle(before: list[set[int]]) -> None:
    order, _ = of(before)
    knots = {index for index in range(len(before)) if index in reached(before, index)}
    hanging = {index for index in range(len(before)) if index in knots or reached(before, index) & knots}
    assert sorted(order) == sorted(set(range(len(before))) - hanging)
    for place, index in enumerate(order):
        assert before[index] <= set(order[:place])


@given(GRAPHS)
def test_every_knot_has_a_cycle_as_data_flows_and_none_is_told_twice(before: list[set[int]]) -> None:
    _, cycles = of(before)
    knots = {frozenset(other for other in reached(before, index) if index in reached(before, other))
             for index in range(len(before)) if index in reached(before, index)}  # fmt: skip
    assert {next(knot for knot in knots if cycle[0] in knot) for cycle in cycles} == knots
    assert len({index for cycle in cycles for index in cycle}) == sum(map(len, cycles))
    for cycle in cycles:
        for source, reader in zip((cycle[-1], *cycle), cycle, strict=False):
            assert source in before[reader]


def test_equal_ones_keep_their_order() -> None:
    assert of([set(), {0}, set(), {0}, {2}])[0] == [0, 1, 2, 3, 4]
    assert of([{1}, set(), set()])[0] == [1, 0, 2]
