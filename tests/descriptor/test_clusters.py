"""Every cluster of the zoo, with its sources and data sheets; and a network as people state it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from symconfig.descriptor.amounts import PEAK, SIZE, SPAN, SPEED, Kind, amount, gpu_bytes_per_s, with_network
from symconfig.descriptor.cluster import ClusterDescriptor, Quantity
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.write import cluster_yaml
from symconfig.errors import InputError
from symconfig.resources import data_dir

GIB = 2**30
TERA = 1e12
GIGA = 1e9

PUBLISHED = yaml.safe_load((Path(__file__).parents[1] / "published" / "clusters.yaml").read_text(encoding="utf-8"))
DATASHEET, LINKS = PUBLISHED["datasheet"], PUBLISHED["links"]
# Another product: an H100 with 96 GB that is limited to 500 W.
NOT_OURS = ("h100-sxm5-96gb",)


def quantities(node: BaseModel, path: str = "") -> Iterator[tuple[str, Quantity]]:
    """All numbers with a source below `node`, with their place."""
    for field in type(node).model_fields:
        value = getattr(node, field)
        for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
            where = f"{path}.{field}[{index}]" if isinstance(value, tuple) else f"{path}.{field}"
            if isinstance(item, Quantity):
                yield where, item
            elif isinstance(item, BaseModel):
                yield from quantities(item, where)


@pytest.fixture(scope="module")
def clusters() -> dict[str, ClusterDescriptor]:
    return {name: load_cluster(name) for name in zoo_clusters()}


def test_the_promised_clusters_exist_under_their_names(clusters: dict[str, ClusterDescriptor]) -> None:
    assert set(DATASHEET) <= set(clusters)
    assert all(cluster.name == stem for stem, cluster in clusters.items())


def test_every_number_names_a_source_and_a_guess_is_never_certain(clusters: dict[str, ClusterDescriptor]) -> None:
    for name, cluster in clusters.items():
        found = list(quantities(cluster))
        assert len(found) >= 20, name
        for where, number in found:
            assert len(number.source) >= 8, f"{name}{where}: too short to find the number in: {number.source!r}"
            if number.source.startswith(("assumed", "fitted")):
                assert number.uncertainty > 0, (name, where)


def test_every_efficiency_admits_that_it_is_uncertain(clusters: dict[str, ClusterDescriptor]) -> None:
    for name, cluster in clusters.items():
        for where, number in quantities(cluster.kernels):
            assert 0.03 <= number.uncertainty <= 1.0, (name, where)


@pytest.mark.parametrize("name", DATASHEET)
def test_gpu_agrees_with_its_data_sheet(clusters: dict[str, ClusterDescriptor], name: str) -> None:
    units, _, gb_per_s, *tflops = DATASHEET[name]
    gpu, row = clusters[name].gpu, f"{name}: row of `datasheet` in tests/published/clusters.yaml"
    assert gpu.compute_units == units, row
    assert gpu.memory_bandwidth_bytes_per_s.value == pytest.approx(gb_per_s * GIGA, rel=0.01), row
    for precision, expected in zip(("fp16", "bf16", "fp8", "nvfp4"), tflops, strict=True):
        number = getattr(gpu.peak_flops, precision)
        assert (number is None) == (expected is None), f"{precision} of {row}"
        if number is not None and expected is not None:
            assert number.value == pytest.approx(expected * TERA, rel=0.001), f"{precision} of {row}"


@pytest.mark.parametrize("name", DATASHEET)
def test_usable_memory_lies_below_the_nominal_size_but_near_it(
    clusters: dict[str, ClusterDescriptor], name: str
) -> None:
    # Vendors print GiB as GB, or decimal GB (H200); what the driver gives lies up to 8 % below the first.
    nominal_gb = DATASHEET[name][1]
    gpu = clusters[name].gpu
    assert 0.92 * nominal_gb * GIB < gpu.memory_bytes.value < nominal_gb * GIB
    assert 0.01 * nominal_gb * GIB < gpu.context_bytes.value < 0.10 * nominal_gb * GIB


@pytest.mark.parametrize("name", sorted(LINKS))
def test_links_agree_with_the_published_ones(clusters: dict[str, ClusterDescriptor], name: str) -> None:
    inner, network, size, per_node = LINKS[name]
    cluster = clusters[name]
    assert cluster.levels[0].bandwidth_bytes_per_s.value == pytest.approx(inner * GIGA, rel=0.01)
    assert cluster.levels[-1].bandwidth_bytes_per_s.value == pytest.approx(network * GIGA, rel=0.01)
    assert (cluster.levels[0].size, cluster.gpus_per_node) == (size, per_node)


def test_levels_slow_down_outwards_and_respect_the_node(clusters: dict[str, ClusterDescriptor]) -> None:
    for name, cluster in clusters.items():
        bandwidths = [level.bandwidth_bytes_per_s.value for level in cluster.levels]
        latencies = [level.latency_s.value for level in cluster.levels]
        assert bandwidths == sorted(bandwidths, reverse=True), name
        assert latencies == sorted(latencies), name
        sizes = [level.size for level in cluster.levels if level.size is not None]
        # A node is one of the levels, or the innermost level joins whole nodes (NVL72, CloudMatrix384).
        assert cluster.gpus_per_node in sizes or sizes[0] % cluster.gpus_per_node == 0, name
        assert all(size % cluster.gpus_per_node == 0 or size < cluster.gpus_per_node for size in sizes), name


def test_kernel_constants_are_possible(clusters: dict[str, ClusterDescriptor]) -> None:
    for name, cluster in clusters.items():
        kernels = cluster.kernels
        for rate in ("gemm_efficiency", "hbm_efficiency", "attention_efficiency", "link_efficiency"):
            assert 0.15 <= getattr(kernels, rate).value <= 0.95, (name, rate)
        assert kernels.attention_efficiency.value < kernels.gemm_efficiency.value, name
        assert 0.5 <= kernels.attention_backward_ratio.value <= 1.0, name
        assert 50 <= kernels.gemm_k_half.value <= 1000, name
        assert 2e-6 <= kernels.launch_s.value <= 20e-6, name


def test_published_spellings_lead_to_exactly_one_cluster(clusters: dict[str, ClusterDescriptor]) -> None:
    owners: dict[str, list[str]] = {}
    for name, cluster in clusters.items():
        for spelling in {name, *cluster.aliases}:
            owners.setdefault(spelling, []).append(name)
    assert {spelling: names for spelling, names in owners.items() if len(names) > 1} == {}
    for spelling, expected in PUBLISHED["spellings"].items():
        assert owners.get(spelling) == [expected], spelling
    assert not set(NOT_OURS) & set(owners)


def test_a_number_without_a_source_is_refused() -> None:
    with pytest.raises(ValidationError):
        Quantity.model_validate({"value": 1.0, "source": "", "uncertainty": 0.0})
    with pytest.raises(ValidationError):
        Quantity.model_validate({"value": 1.0})


def test_ones_own_cluster_is_one_file(tmp_path: Path) -> None:
    text = (data_dir("model_zoo") / "clusters" / "h100.yaml").read_text()
    own = tmp_path / "ours.yaml"
    own.write_text(text.replace("name: h100", "name: ours").replace("gpus_per_node: 8", "gpus_per_node: 4"))
    cluster = load_cluster(str(own))
    assert (cluster.name, cluster.gpus_per_node) == ("ours", 4)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("size: 256", "size: 12", "whole factors"),
        ("size: null", "size: 4096", "null"),
        ("size: 8", "size: 1", "joins nothing"),
        ("compute_units: 132", "compute_units: 132\n  colour: green", "colour"),
        ("value: 3.35e+12", "value: fast", "memory_bandwidth_bytes_per_s"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, old: str, new: str, word: str) -> None:
    text = (data_dir("model_zoo") / "clusters" / "h100.yaml").read_text()
    assert old in text
    own = tmp_path / "ours.yaml"
    own.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=word):
        load_cluster(str(own))


@pytest.mark.parametrize("value", ["7.15", "0"])
def test_a_share_of_the_peak_is_at_most_one(tmp_path: Path, value: str) -> None:
    own = tmp_path / "ours.yaml"
    text = cluster_yaml(load_cluster("h100"))
    was = f"gemm_efficiency:\n    value: {load_cluster('h100').kernels.gemm_efficiency.value}\n"
    assert was in text
    own.write_text(text.replace(was, f"gemm_efficiency:\n    value: {value}\n"))
    with pytest.raises(InputError, match=r"ours.yaml:\d+:\d+: kernels.gemm_efficiency.value: is a share of the peak"):
        load_cluster(str(own))


def test_clusters_of_one_gpu_type_share_its_constants(clusters: dict[str, ClusterDescriptor]) -> None:
    assert clusters["a100-40gb"].kernels == clusters["a100-80gb"].kernels == clusters["a800"].kernels
    assert clusters["h100"].kernels == clusters["h200"].kernels == clusters["h800"].kernels
    assert clusters["b200"].kernels != clusters["gb200-nvl72"].kernels


def test_a_file_of_constants_lies_beside_the_cluster_or_in_the_zoo(tmp_path: Path) -> None:
    text = (data_dir("model_zoo") / "clusters" / "h100.yaml").read_text(encoding="utf-8")
    constants = (data_dir("model_zoo") / "kernels" / "h100-sxm.yaml").read_text(encoding="utf-8")
    (tmp_path / "ours.yaml").write_text(constants.replace("launch_s:\n  value: ", "launch_s:\n  value: 1"), "utf-8")
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(text.replace("kernels: h100-sxm", "kernels: ours.yaml"), encoding="utf-8")
    assert load_cluster(str(cluster)).kernels.launch_s.value > load_cluster("h100").kernels.launch_s.value


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
        ("4x200gb/s", "gb/s is no unit of it, Gb/s .bits. or GB/s .bytes. is"),
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
        ("96Gb", SIZE, "Gb is no unit of it, GB is"),
        ("96GB/s", SIZE, "GB/s is no unit of it"),
        ("96gb", SIZE, "gb is no unit of it, GB is"),
        ("300GB", SPEED, "GB is no unit of it, Gb/s (bits) or GB/s (bytes) is"),
        ("300Gb", SPEED, "Gb is no unit of it, Gb/s (bits) or GB/s (bytes) is"),
        ("300gb/s", SPEED, "gb/s is no unit of it, Gb/s (bits) or GB/s (bytes) is"),
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
