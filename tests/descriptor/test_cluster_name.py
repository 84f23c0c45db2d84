"""A cluster's name with what differs: it is read, joined and spelled, and says no more and no less than a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.cluster_name import joined, pairs, split
from symconfig.descriptor.load import find_cluster, load_cluster
from symconfig.descriptor.mixed import load_mixed
from symconfig.errors import InputError


@pytest.mark.parametrize(
    ("name", "base", "changes"),
    [
        ("h100", "h100", {}),
        ("h100 with network=4x200Gb/s", "h100", {"network": "4x200Gb/s"}),
        (
            "h100 with network=8x400Gb/s, oversubscription 2, gpu_memory=96GB and gpus_per_node=4",
            "h100",
            {"network": "8x400Gb/s, oversubscription 2", "gpu_memory": "96GB", "gpus_per_node": "4"},
        ),
        ("h100 with network = 4x200 Gb/s , 2:1", "h100", {"network": "4x200 Gb/s , 2:1"}),
        ("sites/with us.yaml", "sites/with us.yaml", {}),
        ("h100 with levels.rail.size=128", "h100", {"levels.rail.size": "128"}),
        ("h100@4x100 Gb/s", "h100", {"network": "4x100 Gb/s"}),
    ],
)
def test_a_name_is_a_base_and_what_differs(name: str, base: str, changes: dict[str, str]) -> None:
    assert split(name) == (base, changes)
    if changes:
        assert split(joined(base, changes)) == (base, changes)


def test_a_change_gives_way_to_a_later_one() -> None:
    name = joined("h100 with network=4x200Gb/s and gpu_memory=96GB", {"network": "8x400Gb/s"})
    assert name == "h100 with network=8x400Gb/s and gpu_memory=96GB"
    assert joined("h100@4x200Gb/s", {}) == "h100@4x200Gb/s"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 16), st.sampled_from((25, 100, 200, 400, 800)), st.sampled_from((1, 2, 4, 8)))
def test_ports_times_their_speed_are_what_the_gpus_of_a_node_share(ports: int, gigabits: int, gpus: int) -> None:
    mine = load_cluster(f"h100 with network={ports}x{gigabits}Gb/s and gpus_per_node={gpus}")
    for level in mine.levels:
        if level.name in ("rail", "spine"):
            assert level.bandwidth_bytes_per_s.value * gpus * 8 == pytest.approx(ports * gigabits * 1e9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["network"], "--set: is no field of a cluster with a value (got network, need FIELD=VALUE as network="),
        (["=3"], "--set: is no field of a cluster with a value (got =3,"),
        (["network=1", "network=2"], "--set: network is given twice (got 1 and 2, need one value)."),
    ],
)  # fmt: skip
def test_words_that_are_no_change_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        pairs(words, "--set")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h100 with netwrok=4x200Gb/s", "cluster.netwrok: unknown field. Try: network."),
        ("h100 with gpu_memory=96", "cluster.gpu_memory: has no unit (got 96,"),
        ("h100 with gpu=3 and gpu.vendor=amd", "cluster.gpu.vendor: gpu is a value and a section."),
        ("h100 with gpu.vendor=amd and gpu=3", "cluster.gpu: gpu is a value and a section."),
        ("h20", "Try: h200 or 'h200 with gpu_memory=96GB and"),
        ("h1000 with network=4x200Gb/s", "cluster: unknown cluster (got h1000,"),
    ],
)
def test_a_wrong_change_is_said_with_its_field(name: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load_cluster(name)
    assert said in str(error.value)


def test_a_file_whose_name_looks_like_a_change_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "h100 with gpu_memory=20GB.yaml"
    path.write_text("base: h200\n", encoding="utf-8")
    assert load_cluster(path.name, tmp_path).gpu == load_cluster("h200").gpu
    assert find_cluster(path.name, tmp_path) == path
    assert find_cluster("h100 with gpu_memory=20GB").stem == "h100"


def test_a_name_lists_two_kinds_with_their_numbers() -> None:
    found = load_mixed("h100 with network=4x200Gb/s*16+ a100-80gb *8 over 4x100Gb/s")
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
