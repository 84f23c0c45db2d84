"""Dims that are one, factored, or parallel."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from symconfig.graph.program.torch_source.axes import Axes


def test_two_factorings_are_refined_into_one() -> None:
    axes = Axes()
    one, other = axes.new(24), axes.new(24)
    axes.regroup((one,), [2, 12])
    axes.regroup((other,), [6, 4])
    assert axes.relate((one,), (other,))
    assert axes.sizes((one,)) == [2, 3, 4]
    assert axes.leaves((one,)) == axes.leaves((other,))


def test_factors_that_cross_are_not_related() -> None:
    axes = Axes()
    one, other = axes.new(12), axes.new(12)
    axes.regroup((one,), [3, 4])
    axes.regroup((other,), [4, 3])
    assert not axes.relate((one,), (other,))
    assert axes.regroup((one,), [4, 3]) is None


def test_distinct_axes_become_parallel_and_are_factored_alike() -> None:
    axes = Axes()
    queries, keys = axes.new(16), axes.new(16)
    axes.distinct([(queries,), (keys,)])
    assert axes.relate((queries,), (keys,))
    axes.regroup((queries,), [4, 4])
    assert axes.sizes((keys,)) == [4, 4]
    assert not set(axes.leaves((queries,))) & set(axes.leaves((keys,)))


def test_distinctness_is_inherited_by_what_is_united_and_by_factors() -> None:
    axes = Axes()
    a, b, c = axes.new(16), axes.new(16), axes.new(16)
    axes.distinct([(a,), (b,)])
    axes.relate((c,), (b,))
    axes.regroup((a,), [4, 4])
    assert axes.relate((a,), (c,))
    assert not set(axes.leaves((a,))) & set(axes.leaves((c,)))


@st.composite
def factorings(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two ways to cut one product, which always have a common refinement."""
    parts = draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=6))

    def cut() -> list[int]:
        borders = sorted(draw(st.sets(st.integers(1, max(1, len(parts) - 1)))))
        ends = [0, *(border for border in borders if border < len(parts)), len(parts)]
        return [prod(parts[a:b]) for a, b in pairwise(ends)]

    return cut(), cut()


@given(factorings())
def test_a_view_keeps_all_elements_and_their_order(cuts: tuple[list[int], list[int]]) -> None:
    old, new = cuts
    axes = Axes()
    group = tuple(axes.new(size) for size in old if size > 1)
    dims = axes.regroup(group, new)
    assert dims is not None
    assert [axes.size(dim) for dim in dims] == new
    assert axes.leaves(axis for dim in dims for axis in dim) == axes.leaves(group)
