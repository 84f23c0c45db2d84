"""Every cluster of the zoo: loads strictly, names its sources, and agrees with the data sheets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ValidationError

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
            assert len(number.source) >= 8, (name, where)
            if number.source.startswith(("assumed", "fitted")):
                assert number.uncertainty > 0, (name, where)


def test_every_efficiency_admits_that_it_is_uncertain(clusters: dict[str, ClusterDescriptor]) -> None:
    for name, cluster in clusters.items():
        for where, number in quantities(cluster.kernels):
            assert 0.03 <= number.uncertainty <= 1.0, (name, where)


@pytest.mark.parametrize("name", DATASHEET)
def test_gpu_agrees_with_its_data_sheet(clusters: dict[str, ClusterDescriptor], name: str) -> None:
    units, _, gb_per_s, *tflops = DATASHEET[name]
    gpu = clusters[name].gpu
    assert gpu.compute_units == units
    assert gpu.memory_bandwidth_bytes_per_s.value == pytest.approx(gb_per_s * GIGA, rel=0.01)
    for precision, expected in zip(("fp16", "bf16", "fp8", "nvfp4"), tflops, strict=True):
        number = getattr(gpu.peak_flops, precision)
        assert (number is None) == (expected is None), precision
        if number is not None and expected is not None:
            assert number.value == pytest.approx(expected * TERA, rel=0.001), precision


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
