"""Which numbers of GPUs are tried: enough to find the smallest that is in time, also where more GPUs are slower."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster
from symconfig.runs.sweep.size import HOPE, following, ladder, lattice

H100 = load_cluster("h100")
SIZES = lattice(H100, 1, 4096)


def searched(sizes: tuple[int, ...], rates: dict[int, float], needed: float) -> dict[int, float]:
    """What is known when nothing more is to be tried."""
    known: dict[int, float] = {}
    while new := following(sizes, known, needed):
        assert not set(new) & set(known)
        known |= {size: rates[size] for size in new}
    return known


def test_the_lattice_is_powers_of_two_in_a_node_and_then_whole_nodes() -> None:
    assert SIZES[:7] == (1, 2, 4, 8, 16, 24, 32)
    assert SIZES[3:67] == tuple(range(8, 513, 8))
    assert SIZES[67:70] == (576, 640, 704)
    assert SIZES[-1] == 4096
    assert lattice(H100, 500, 1024) == (504, 512, 576, 640, 704, 768, 832, 896, 960, 1024)
    assert lattice(H100, 5000, 4096) == ()
    assert lattice(H100.model_copy(update={"max_gpus": 16}), 1, 4096) == (1, 2, 4, 8, 16)


def test_the_ladder_has_few_rungs_and_both_ends() -> None:
    assert ladder(lattice(H100, 40, 300)) == (40, 48, 64, 96, 128, 192, 256, 296)


def test_all_alike_needs_little_more_than_the_ladder() -> None:
    known = searched(SIZES, dict.fromkeys(SIZES, 100.0), 100.0 * 300)
    assert min(size for size in known if size >= 300) == 304
    assert len(known) < 25


def test_where_nothing_is_in_time_all_that_could_be_were_tried() -> None:
    known = searched(SIZES, {size: 1.0 / size for size in SIZES}, 10.0)
    assert set(ladder(SIZES)) <= set(known)


def test_no_plan_at_all_ends() -> None:
    assert set(searched(SIZES, dict.fromkeys(SIZES, 0.0), 10.0)) == set(ladder(SIZES))
    assert searched((), {}, 10.0) == {}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_answer_is_that_of_trying_all_where_rates_differ_by_less_than_the_hope(data: st.DataObject) -> None:
    sizes = lattice(H100, data.draw(st.integers(1, 300)), data.draw(st.integers(320, 2000)))
    rate = st.one_of(st.just(0.0), st.floats(1.0, HOPE * 0.999))
    rates = {size: data.draw(rate) for size in sizes}
    rates[sizes[0]] = rates[ladder(sizes)[-1]] = 1.0  # something to go by
    needed = data.draw(st.floats(1.0, 2500.0))
    known = searched(sizes, rates, needed)
    every = [size for size in sizes if size * rates[size] >= needed]
    assert min(every, default=0) == min((size for size in known if size * known[size] >= needed), default=0)
