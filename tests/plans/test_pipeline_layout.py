"""Megatron-LM's layout string, and the layers that it deals out without one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.plans.pipeline_layout import dealt, expanded, is_uneven, letters, problems, written

BODY = st.lists(st.integers(0, 9).map(lambda count: ["dense"] * count), min_size=2, max_size=12)


@given(BODY, st.integers(0, 2))
def test_what_is_written_reads_back(body: list[list[str]], mtp: int) -> None:
    chunks = [["embedding", *body[0]], *body[1:-1], [*body[-1], *["mtp"] * mtp, "head"]]
    layout = written(chunks)
    assert expanded(layout) == [letters(chunk) for chunk in chunks]
    assert len(layout) <= len("|".join(map(letters, chunks)))
    layers = sum(map(len, body))
    assert list(problems(layout, layers, mtp, "layout")) == []
    assert list(problems(layout, layers + 1, mtp, "layout"))


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        ((7, *(8,) * 14, 7), "Et*7|(t*8|)*14t*7L"),
        ((4, 3), "Et*4|t*3L"),
        ((0, *(1,) * 126, 0), "E|(t|)*126L"),
        ((3, 2, 2, 2, 1, 1), "Et*3|(tt|)*3t|tL"),
        ((2, 0, 0, 0, 2), "Ett||||ttL"),
    ],
)
def test_a_layout_is_written_for_people(sizes: tuple[int, ...], layout: str) -> None:
    chunks = [["dense"] * size for size in sizes]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("head")
    assert written(chunks) == layout


def test_layouts_are_read_as_megatron_reads_them() -> None:
    """Megatron-LM, core_v0.13 to core_v0.19 and main: commas go, groups do not nest, a space is no letter."""
    assert expanded("E|(tt|)*2,(t|)*4,mL") == ["E", "tt", "tt", "t", "t", "t", "t", "mL"]
    assert expanded("Et*3|(tt|)*29,m|L")[-3:] == ["tt", "m", "L"]
    assert expanded("Et*3|((t|)*2t)*2L") == ["Ettt", "(t", "(t", "t))L"]
    assert expanded("E||t|L") == ["E", "", "t", "L"]
    assert [str(problem) for problem in problems("Ett|t tL", 4, 0, "layout")]


@pytest.mark.parametrize("layout", ["Et*999999|" * 40, "(" * 50 + "t" + ")*9999" * 50, "t*" + "9" * 5000])
def test_no_layout_is_too_long_to_be_refused(layout: str) -> None:
    assert list(problems(layout, 8, 0, "layout"))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("Et*20|t*19L", "39 x t"),
        ("Et*20|t*21L", "41 x t"),
        ("t*20|t*20L", "0 x E"),
        ("Et*20|Lt*20", "L last"),
        ("|Et*40L", "E first"),
        ("Et*40L|", "L last"),
        ("Ex*20|t*20L", "letters other"),
        ("Et*20|t*20mL", "1 x m"),
    ],
)
def test_what_is_wrong_with_a_layout_is_named(layout: str, words: str) -> None:
    found = [str(problem) for problem in problems(layout, 40, 0, "layout")]
    assert any(words in sentence for sentence in found), found


@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 12),
)
def test_no_layer_is_lost_however_they_are_dealt(
    layers: int, pp: int, vpp: int, embedding: bool, loss: bool, first: int | None, last: int | None
) -> None:
    sizes = dealt(layers, pp, vpp, first=first, last=last, embedding=embedding, loss=loss)
    if sizes is None:
        return
    assert sum(sizes) == layers
    assert len(sizes) == pp * vpp
    assert all(sizes[1:-1])
    for count, stage in ((first, 0), (last, pp - 1)):
        assert count is None or sum(sizes[stage::pp]) == count


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"layers": 8, "pp": 4, "vpp": 1}, (2, 2, 2, 2)),
        ({"layers": 30, "pp": 4, "vpp": 1}, None),
        ({"layers": 30, "pp": 4, "vpp": 1, "first": 7, "last": 7}, (7, 8, 8, 7)),
        ({"layers": 30, "pp": 4, "vpp": 1, "embedding": True, "loss": True}, (7, 8, 8, 7)),
        ({"layers": 30, "pp": 4, "vpp": 1, "last": 6}, (8, 8, 8, 6)),
        ({"layers": 80, "pp": 16, "vpp": 2}, None),
        ({"layers": 12, "pp": 3, "vpp": 2, "first": 2, "last": 6}, (1, 2, 3, 1, 2, 3)),
        ({"layers": 12, "pp": 3, "vpp": 2, "first": 3}, None),  # three layers on two chunks
        ({"layers": 126, "pp": 16, "vpp": 8, "embedding": True, "loss": True}, (0, *(1,) * 126, 0)),
        ({"layers": 8, "pp": 2, "vpp": 1, "first": 3, "last": 4}, None),
        ({"layers": 8, "pp": 2, "vpp": 1, "first": 8}, None),
        ({"layers": 8, "pp": 2, "vpp": 1, "first": 3, "loss": True}, None),
    ],
)
def test_layers_are_dealt_as_megatron_does(given: dict[str, int], sizes: tuple[int, ...] | None) -> None:
    """get_num_layers_to_build in transformer_block.py."""
    layers, pp, vpp = (given.pop(name) for name in ("layers", "pp", "vpp"))
    assert dealt(layers, pp, vpp, **given) == sizes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "uneven"),
    [
        ((4, 4, 4, 4), False),
        ((3, 4, 4, 3), False),
        ((5, 4, 4, 0), False),
        ((6, 4, 4, 2), True),
        ((4, 4, 3, 4), True),
        ((1, 1, 2, 2, 2, 1), True),
        ((7, 1), False),  # nothing lies between them
    ],
)
def test_chunks_are_uneven_where_those_inside_differ_or_an_end_is_longer(sizes: tuple[int, ...], uneven: bool) -> None:
    chunks = [["dense"] * count for count in sizes]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("head")
    assert is_uneven(chunks) is uneven
