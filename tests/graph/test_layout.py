"""The one rule: two layouts of a tensor give its collectives."""

from __future__ import annotations

from itertools import product

import pytest

from symconfig.graph.dims import Monomial
from symconfig.graph.layout import AXES, FLAT, PARTIAL, Kind, Layout, Place, moves

WHOLE = Monomial.of("rows", "columns")
SIZES = {"rows": 48.0, "columns": 60.0, "tp": 2.0, "cp": 3.0, "dp": 4.0}


def lay(**places: Place | None) -> Layout:
    return Layout.of({axis: place for axis, place in places.items() if place is not None})


# Before, after, collective, elements of the larger buffer on each of tp = 2 ranks (of 2880 in all).
PAIRS = [
    (PARTIAL, None, Kind.ALL_REDUCE, 2880),
    (PARTIAL, "rows", Kind.REDUCE_SCATTER, 2880),
    ("rows", None, Kind.ALL_GATHER, 2880),
    ("rows", "columns", Kind.ALL_TO_ALL, 1440),
    ("columns", "rows", Kind.ALL_TO_ALL, 1440),
    (None, "rows", None, 0),
    ("rows", "rows", None, 0),
    (PARTIAL, PARTIAL, None, 0),
    (None, None, None, 0),
    (PARTIAL, FLAT, Kind.REDUCE_SCATTER, 2880),
    (FLAT, None, Kind.ALL_GATHER, 2880),
]


@pytest.mark.parametrize(("before", "after", "kind", "elements"), PAIRS)
def test_a_pair_of_layouts_is_one_collective(
    before: Place | None, after: Place | None, kind: Kind | None, elements: int
) -> None:
    found = [(m.kind, m.axes, m.elements.value(SIZES)) for m in moves(lay(tp=before), lay(tp=after), WHOLE)]
    assert found == ([(kind, ("tp",), elements)] if kind else [])


PLACES = (None, "rows", "columns", PARTIAL)


@pytest.mark.parametrize("before", list(product(PLACES, repeat=2)))
def test_collectives_over_two_axes_conserve_elements(before: tuple[Place | None, Place | None]) -> None:
    """Replayed one by one, the buffers grow and shrink from the local size before to the local size after."""
    for after in product(PLACES[:3], repeat=2):
        produced, used = lay(tp=before[0], cp=before[1]), lay(tp=after[0], cp=after[1])
        local = 2880 / produced.parts().value(SIZES)
        touched: list[str] = []
        for axis, old, new in zip(("tp", "cp"), before, after, strict=True):
            if old is None and new is not None:  # slices are free and come first
                local /= SIZES[axis]
                touched.append(axis)
        for move in moves(produced, used, WHOLE):
            ranks = Monomial.of(*move.axes).value(SIZES)
            grown = local * ranks if move.kind is Kind.ALL_GATHER else local
            assert move.elements.value(SIZES) == pytest.approx(grown)
            local = grown / ranks if move.kind is Kind.REDUCE_SCATTER else grown
            touched.extend(move.axes)
        assert local == pytest.approx(2880 / used.parts().value(SIZES))
        assert sorted(touched) == sorted(a for a, x, y in zip(("tp", "cp"), before, after, strict=True) if x != y)


def test_no_axis_moves_twice_and_axes_of_one_kind_move_together() -> None:
    found = moves(lay(tp=PARTIAL, cp=PARTIAL, dp="rows"), lay(), WHOLE)
    assert [(m.kind, m.axes, m.elements.value(SIZES)) for m in found] == [
        (Kind.ALL_REDUCE, ("tp", "cp"), 720),  # while dp still cuts the rows in four
        (Kind.ALL_GATHER, ("dp",), 2880),
    ]


def test_slices_come_before_reductions() -> None:
    (move,) = moves(lay(tp=PARTIAL), lay(cp="rows"), WHOLE)
    assert (move.kind, move.elements.value(SIZES)) == (Kind.ALL_REDUCE, 960)


def test_parts_are_the_product_of_the_axes_that_split() -> None:
    layout = lay(tp="columns", cp="rows", dp=PARTIAL)
    assert layout.parts().value(SIZES) == 6
    assert layout.summed().partial == ()
    assert layout.axes_on("rows") == ("cp",)
    assert set(AXES) >= {"tp", "cp", "dp"}
