"""Clusters of two kinds of GPUs: their names, files, and what refuses them."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mixed import load_mixed
from symconfig.errors import InputError


def test_a_name_lists_two_kinds_with_their_numbers() -> None:
    found = load_mixed("h100 with network=4x200Gb/s*16+ a100-80gb *8 over 4x100Gb/s")
    assert found is not None
    one, other = found.shares
    assert (one.gpus, one.nodes) == (16, 2)
    assert (other.cluster.name, other.gpus, other.nodes) == ("a100-80gb", 8, 1)
    assert one.cluster.levels[-1].bandwidth_bytes_per_s.value == 4 * 25e9 / 8
    assert found.over_bytes_per_s == 4 * 12.5e9 / 8
    assert found.gpus == 24
    assert found.name == "h100 with network=4x200Gb/s*16 + a100-80gb*8 over 4x100Gb/s"
    assert load_mixed(found.name) == found


@pytest.mark.parametrize("name", ["h100", "h100 with network=4x200Gb/s", "h100@4x200Gb/s"])
def test_one_kind_is_none(name: str) -> None:
    assert load_mixed(name) is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("h100*16 + mi300x*16", "two vendors"),
        ("h100*16 + gb200-nvl72*16", "nodes of different sizes"),
        ("h100*12 + a100-80gb*16", "does not fill whole nodes"),
        ("h100*16 + a100-80gb*16 with network=4x200Gb/s", "cannot stand behind two kinds"),
        ("h100*16 + a1000*16", "unknown cluster"),
        (f"h100*16 + {'a' * 300}*16", "unknown cluster"),
        ("h100*16 + a100-80gb*16 over the sea", "states no speed|is not understood"),
    ],
)
def test_kinds_that_do_not_train_together_are_refused(name: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        load_mixed(name)


def test_whoever_takes_one_kind_says_so() -> None:
    with pytest.raises(InputError, match="two kinds of GPUs, and only symconfig plan takes"):
        load_cluster("h100*16 + a100-80gb*16")
