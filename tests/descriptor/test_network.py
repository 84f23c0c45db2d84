"""A network as people state it: what it gives one GPU, what is not understood, a cluster file that states one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.amounts import PEAK, SIZE, SPAN, SPEED, Kind, amount, gpu_bytes_per_s, with_network
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError

GIGA = 1e9


@pytest.mark.parametrize(
    ("text", "gb_per_s"),
    [
        ("4x100 Gb/s", 6.25),
        ("4x100Gbps", 6.25),
        ("4x100 Gb/s RoCE per node", 6.25),
        ("4x Omni-Path 100 Gb/s per node (Jean Zay)", 6.25),
        ("8x HDR 200 Gb/s IB per node (Selene)", 25),
        ("1600 Gb/s per node RoCE", 25),
        ("1.6 Tb/s per node", 25),
        ("400 Gb/s IB per GPU (Eos)", 50),
        ("400 Gb/s RDMA per GPU", 50),
        ("2x200 Gb/s per GPU", 50),
        ("50 GB/s per GPU", 50),
        ("900 GB/s per GPU both directions", 450),
        ("900 GB/s bidirectional per GPU", 450),
        ("8x50GB/s", 50),
    ],
)
def test_a_network_is_read_as_the_share_of_one_gpu_of_eight(text: str, gb_per_s: float) -> None:
    assert gpu_bytes_per_s(text, 8) == pytest.approx(gb_per_s * GIGA)


def test_the_ports_of_a_node_are_shared_by_its_gpus_and_those_of_a_gpu_are_not() -> None:
    assert gpu_bytes_per_s("4x100 Gb/s", 4) == 2 * gpu_bytes_per_s("4x100 Gb/s", 8)
    assert gpu_bytes_per_s("400 Gb/s per GPU", 4) == gpu_bytes_per_s("400 Gb/s per GPU", 8)


def test_a_speed_alone_is_whose_the_caller_says() -> None:
    assert gpu_bytes_per_s("NVLink/NVSwitch 300 GB/s per direction", 8, "gpu") == 300 * GIGA
    with pytest.raises(InputError, match="of a GPU or a node"):
        gpu_bytes_per_s("400 Gb/s", 8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("RoCE RDMA", "states no speed"),
        ("", "states no speed"),
        ("8x400G", "'400G' is not understood"),
        ("two carrier pigeons, 8x400 Gb/s", "'two carrier pigeons"),
        ("8x400 Gb/s oversubscribed 3:2", "'oversubscribed 3:2' is not understood"),
        ("0 Gb/s per GPU", "is no speed"),
        (f"{'9' * 5000}x4 Gb/s", "is no speed"),
        (f"{'9' * 400} Gb/s per GPU", "is no finite number"),
        ("4x200gb/s", "gb/s is neither Gb/s .bits. nor GB/s .bytes."),
        ("4x200 Kb/s", "Kb/s is no unit of it"),
        ("4x400GB/s", "a port of 400GB/s .bytes. is faster than any, 400Gb/s .bits. is meant"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        gpu_bytes_per_s(text, 8)


@pytest.mark.parametrize("name", ["h100", "gb200-nvl72", "l40s", "ascend-910b"])
def test_only_levels_between_nodes_take_the_network(name: str) -> None:
    base = load_cluster(name)
    mine = with_network(base, "8 Gb/s per GPU", "a test")
    for old, new in zip(base.levels, mine.levels, strict=True):
        rate = GIGA if new.name in ("rail", "spine") else old.bandwidth_bytes_per_s.value
        assert new.bandwidth_bytes_per_s.value == rate
        assert (new.size, new.latency_s) == (old.size, old.latency_s)


@pytest.mark.parametrize(
    "text",
    [
        "8x400 Gb/s, 2:1",
        "8x400 Gb/s oversubscribed 2:1",
        "8x400Gb/s, oversubscription 2",
        "8x400Gb/s oversubscription 2:1",
    ],
)
def test_an_oversubscription_is_that_of_the_outermost_level(text: str) -> None:
    rail, spine = with_network(load_cluster("h100"), text, "a test").levels[1:]
    assert rail.oversubscription == load_cluster("h100").levels[1].oversubscription
    assert spine.oversubscription.value == 2
    assert spine.bandwidth_bytes_per_s.value == 50 * GIGA


def test_less_goes_through_than_below() -> None:
    with pytest.raises(InputError, match="is no oversubscription"):
        with_network(load_cluster("h100"), "8x400 Gb/s, 0.5:1", "a test")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("96GB", SIZE, 96e9),
        ("96 GB", SIZE, 96e9),
        ("90GiB", SIZE, 90 * 2**30),
        ("1.5TB", SIZE, 1.5e12),
        ("300GB/s", SPEED, 300e9),
        ("400Gb/s", SPEED, 50e9),
        ("400Gbps", SPEED, 50e9),
        ("1.6Tbit/s", SPEED, 200e9),
        ("5us", SPAN, 5e-6),
        ("3.4 µs", SPAN, 3.4e-6),
        ("989.4 TFLOP/s", PEAK, 989.4e12),
        ("2PFLOPS", PEAK, 2e15),
    ],
)
def test_an_amount_is_exactly_what_its_digits_say(text: str, kind: Kind, value: float) -> None:
    assert amount(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("96", SIZE, "has no unit"),
        ("much", SIZE, "is no number with a unit"),
        ("-3GB", SIZE, "is no number with a unit"),
        ("96Gb", SIZE, "Gb counts bits, and a memory is counted in bytes"),
        ("96GB/s", SIZE, "GB/s is a speed"),
        ("96gb", SIZE, "gb is no unit of it, GB is"),
        ("300GB", SPEED, "GB is no speed without /s"),
        ("300Gb", SPEED, "Gb is no speed without /s"),
        ("300gb/s", SPEED, "gb/s is neither Gb/s (bits) nor GB/s (bytes)"),
        ("5 sec", SPAN, "sec is no unit of it"),
    ],
)
def test_a_unit_that_is_none_is_refused_with_the_reason(text: str, kind: Kind, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        amount(text, kind)
    assert str(error.value) == why


@given(st.decimals(min_value=0, max_value=10**6, places=3))
def test_a_byte_is_eight_bits_at_every_speed(number: object) -> None:
    assert amount(f"{number}GB/s", SPEED) == pytest.approx(8 * amount(f"{number}Gb/s", SPEED))
