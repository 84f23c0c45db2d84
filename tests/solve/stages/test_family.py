"""Cuts that a target without free layouts can say, by hand."""

from __future__ import annotations

from dataclasses import replace

from symconfig.solve.stages.cuts import every, longest_chunk
from symconfig.solve.stages.problem import Layouts, Scope
from tests.solve.stages.samples import large


def sizes(layers: int, pp: int, vpp: int = 1, **layouts: bool) -> list[list[int]]:
    """Layers of each chunk, in every cut."""
    sequence = ("embedding", *("dense",) * layers, "head")
    problem = large(sequence, pp, vpp, Scope.MODEL, layouts=Layouts(any_cut=False, **layouts))
    return [[chunk.count("dense") for chunk in cut] for cut in every(problem)]


def test_equal_chunks() -> None:
    assert sizes(8, 4) == [[2, 2, 2, 2]]
    assert sizes(8, 2, 2) == [[2, 2, 2, 2]]
    assert sizes(7, 4) == []


def test_ends_take_the_place_of_a_layer() -> None:
    assert sizes(6, 4, account=True) == [[1, 2, 2, 1]]
    assert sizes(7, 4, account=True) == [[1, 2, 2, 2], [2, 2, 2, 1]]


def test_a_chunk_of_an_end_alone_must_be_allowed() -> None:
    assert sizes(2, 4, account=True) == []
    assert sizes(3, 4, account=True) == []
    assert sizes(2, 4, account=True, empty_ends=True) == [[0, 1, 1, 0]]
    assert sizes(3, 4, account=True, empty_ends=True) == [[0, 1, 1, 1], [1, 1, 1, 0]]


def test_the_first_and_the_last_stage_have_their_own_numbers() -> None:
    cuts = sizes(6, 3, first_last=True)
    assert [2, 2, 2] in cuts
    assert [1, 2, 3] in cuts
    assert [1, 4, 1] in cuts
    assert len(cuts) == len({tuple(cut) for cut in cuts})
    assert all(sum(cut) == 6 and min(cut) >= 1 for cut in cuts)


def test_two_stages_have_no_middle_ones() -> None:
    assert sizes(5, 2, first_last=True) == [[1, 4], [2, 3], [3, 2], [4, 1]]
    assert sizes(6, 2, 2, first_last=True) == [[1, 2, 1, 2], [2, 1, 2, 1]]
    assert sizes(5, 1, first_last=True) == [[5]]


def test_chunks_that_are_as_long_inside() -> None:
    rules = Layouts(any_cut=True, empty_ends=True, uneven=False)
    assert (rules.free(1), rules.free(2)) == (True, False)
    problem = large(("embedding", *("dense",) * 9, "head"), 2, 2, Scope.MODEL, layouts=rules)
    found = [[chunk.count("dense") for chunk in cut] for cut in every(problem)]
    assert found[:3] == [[2, 2, 2, 3], [3, 2, 2, 2], [1, 3, 3, 2]]
    assert sorted(found[3:]) == [[0, 3, 3, 3], [0, 4, 4, 1], [1, 4, 4, 0], [2, 3, 3, 1], [3, 3, 3, 0]]


def test_the_longest_chunk_leaves_the_others_their_layer() -> None:
    problem = large(("embedding", *("dense",) * 8, "head"), 4, 1)
    assert longest_chunk(problem) == 5
    assert longest_chunk(replace(problem, layouts=Layouts(any_cut=True, empty=True))) == 8
