"""A cluster's name with what differs: it is read, joined and spelled, and says no more and no less than a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.cluster_name import joined, pairs, split
from symconfig.descriptor.load import find_cluster, load_cluster
from symconfig.errors import InputError

SIZES = st.integers(20, 400).map(lambda number: f"{number}GB")
NETWORKS = st.builds(
    lambda ports, rate, over: f"{ports}x{rate}Gb/s" + (f", {over}:1" if over else ""),
    st.integers(1, 16),
    st.sampled_from((25, 100, 200, 400, 800)),
    st.sampled_from((0, 2, 4)),
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "network": NETWORKS,
        "gpu_memory": SIZES,
        "host_memory": SIZES,
        "gpus_per_node": st.sampled_from((1, 2, 4, 16)),
        "kernels": st.fixed_dictionaries({"link_efficiency": st.floats(0.01, 1.0)}),
        "levels": st.fixed_dictionaries({"spine": st.fixed_dictionaries({"latency_s": st.floats(1e-6, 1e-3)})}),
    },
)


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
