"""A cluster that states what differs from a base: in a file or in its name, with messages at their lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.cluster import ClusterDescriptor, joined, pairs, split
from symconfig.descriptor.difference import SHORT
from symconfig.descriptor.load import find_cluster, load_cluster, load_mixed, zoo_clusters
from symconfig.descriptor.write import cluster_yaml
from symconfig.errors import InputError

GIGA = 1e9
Write = Callable[..., ClusterDescriptor]


@pytest.fixture
def made(tmp_path: Path) -> Write:
    """The cluster of a file with these lines."""

    def make(text: str, name: str = "ours.yaml") -> ClusterDescriptor:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return load_cluster(str(tmp_path / name))

    return make


def refusal(made: Write, text: str) -> str:
    with pytest.raises(InputError) as error:
        made(text)
    return str(error.value).replace("\n", " | ")


# --- what a person writes ------------------------------------------------------------------------------------------


def test_two_lines_are_a_cluster(made: Write) -> None:
    mine, base = made("base: h100\nnetwork: 4x200Gb/s\n"), load_cluster("h100")
    assert (mine.name, mine.aliases) == ("ours", ())
    assert [level.bandwidth_bytes_per_s.value for level in mine.levels] == [450 * GIGA, 12.5 * GIGA, 12.5 * GIGA]
    assert mine.levels[1].bandwidth_bytes_per_s.source == "given by the user in ours.yaml: 4x200Gb/s"
    assert mine.source.startswith("given by the user in ours.yaml; what that leaves as it was: NVIDIA H100 datasheet")
    assert (mine.gpu, mine.host, mine.levels[0]) == (base.gpu, base.host, base.levels[0])


def test_ten_lines_are_the_cluster_that_a_whole_file_describes(made: Write) -> None:
    mine = made(
        "base: h100\nnetwork: 4x200Gb/s, oversubscription 2\nnvlink: 300GB/s\ngpu_memory: 96GB\nhost_memory: 1TB\n"
        "gpus_per_node: 4\ngpu_memory_bandwidth: 3TB/s\nhost_link: 32GB/s\nkernels: {launch_s: 5us}\n"
        "gpu: {power_w: 500}\n"
    )
    by_hand = yaml.safe_load(cluster_yaml(load_cluster("h100")))
    by_hand["gpus_per_node"] = 4
    by_hand["gpu"]["memory_bytes"]["value"] = 96e9
    by_hand["gpu"]["memory_bandwidth_bytes_per_s"]["value"] = 3e12
    by_hand["gpu"]["power_w"]["value"] = 500
    by_hand["host"]["memory_bytes"]["value"] = 1e12
    by_hand["host"]["link_bytes_per_s"]["value"] = 32e9
    by_hand["kernels"]["launch_s"]["value"] = 5e-6
    for level, size, rate in zip(by_hand["levels"], (4, 128, None), (300e9, 25e9, 25e9), strict=True):
        level["size"] = size
        level["bandwidth_bytes_per_s"]["value"] = rate
    by_hand["levels"][2]["oversubscription"]["value"] = 2.0
    whole = made(yaml.safe_dump(by_hand, sort_keys=False), "whole.yaml")
    assert numbers(mine) == numbers(whole)


def numbers(value: object) -> object:
    """A descriptor without its sources, uncertainties and names."""
    if isinstance(value, ClusterDescriptor):
        value = value.model_dump(mode="json", exclude={"name", "aliases", "source"})
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items() if k not in ("source", "uncertainty")}
    return [numbers(item) for item in value] if isinstance(value, list | tuple) else value


def test_a_plain_number_has_the_file_as_its_source_and_the_usual_uncertainty(made: Write) -> None:
    mine = made(
        "base: h100\ngpu: {memory_bytes: 80e9, context_bytes: 3GB}\nhost: {link_bytes_per_s: {value: 30GB/s}}\n"
        "kernels: {gemm_efficiency: 0.7, hbm_efficiency: {value: 0.8, source: measured, uncertainty: 0.02}}\n"
    )
    for number, value, uncertainty in (
        (mine.gpu.memory_bytes, 80e9, 0.0),
        (mine.gpu.context_bytes, 3e9, 0.1),
        (mine.host.link_bytes_per_s, 30e9, 0.0),
        (mine.kernels.gemm_efficiency, 0.7, 0.1),
    ):
        assert (number.value, number.source, number.uncertainty) == (
            value,
            "given by the user in ours.yaml",
            uncertainty,
        )
    assert mine.kernels.hbm_efficiency.source == "measured"
    assert mine.kernels.hbm_efficiency.uncertainty == 0.02


def without_sources(value: object) -> object:
    """A file's data with plain numbers where it has their sources."""
    if isinstance(value, dict):
        if "value" in value:
            return value["value"]
        return {k: without_sources(v) for k, v in value.items() if k != "source"}
    return [without_sources(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", zoo_clusters())
def test_a_changed_cluster_written_out_is_read_back(made: Write, name: str) -> None:
    mine = load_cluster(f"{name} with network=2x100Gb/s and gpu_memory=20GB")
    assert made(cluster_yaml(mine)) == mine


def test_the_file_on_the_page_of_clusters_is_a_cluster_in_at_most_ten_lines(made: Write) -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "reference" / "cluster-files.md").read_text(encoding="utf-8")
    guide = (docs / "how-to" / "own-cluster.md").read_text(encoding="utf-8")
    text = guide.split("This is a whole file:\n\n```yaml\n")[1].split("```")[0]
    assert 2 <= len(text.splitlines()) <= 10
    mine = made(text)
    assert (mine.gpus_per_node, mine.levels[-1].bandwidth_bytes_per_s.value) == (4, 25e9)
    for name in SHORT:
        assert f"`{name}`" in page


# --- bases ----------------------------------------------------------------------------------------------------------


def test_a_base_is_a_path_beside_the_file_and_may_have_a_base_itself(made: Write, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "node.yaml").write_text("base: h100\ngpu_memory: 80GB\nnvlink: 300GB/s\n", encoding="utf-8")
    mine = made("base: site/node.yaml\ngpu_memory: 70GB\n")
    assert (mine.gpu.memory_bytes.value, mine.levels[0].bandwidth_bytes_per_s.value) == (70e9, 300e9)
    assert made("base: h100 with gpu_memory=70GB\nnvlink: 300GB/s\n").gpu.memory_bytes.value == 70e9


def test_bases_that_go_round_are_refused_with_the_round(made: Write, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("base: ours.yaml\n", encoding="utf-8")
    said = refusal(made, "base: other.yaml\n")
    assert "ours.yaml:1:7: base: the base cluster cannot be loaded (got other.yaml)." in said
    assert "the bases go round in a circle (got ours.yaml -> other.yaml -> ours.yaml)." in said


# --- levels ---------------------------------------------------------------------------------------------------------


def test_levels_are_merged_by_their_names(made: Write) -> None:
    mine = made("base: h100\nlevels: {rail: {size: 64, bandwidth_bytes_per_s: 25GB/s}}\n")
    base = load_cluster("h100")
    assert [level.name for level in mine.levels] == ["nvlink", "rail", "spine"]
    assert (mine.levels[1].size, mine.levels[1].bandwidth_bytes_per_s.value) == (64, 25e9)
    assert mine.levels[1].latency_s == base.levels[1].latency_s
    assert (mine.levels[0], mine.levels[2]) == (base.levels[0], base.levels[2])


def test_a_level_with_a_new_name_goes_where_its_size_belongs(made: Write) -> None:
    mine = made(
        "base: h100\nlevels:\n  nvlink: {size: 4}\n  node: {size: 8, bandwidth_bytes_per_s: 20GB/s, latency_s: 6us}\n"
    )
    assert [(level.name, level.size) for level in mine.levels] == [
        ("nvlink", 4), ("node", 8), ("rail", 256), ("spine", None)]  # fmt: skip


def test_null_takes_a_level_out(made: Write) -> None:
    assert [level.name for level in made("base: h100\nlevels: {rail: null}\n").levels] == ["nvlink", "spine"]


@pytest.mark.parametrize(
    ("base", "gpus", "levels"),
    [
        ("h100", 4, [("nvlink", 4), ("rail", 128), ("spine", None)]),
        ("h100", 16, [("nvlink", 16), ("rail", 512), ("spine", None)]),
        ("h100", 1, [("rail", 32), ("spine", None)]),
        ("l40s", 4, [("pcie", 4), ("spine", None)]),
        ("l40s", 2, [("pcie", 2), ("spine", None)]),
        ("l40s", 16, [("pcie", 4), ("node", 16), ("spine", None)]),
        ("gb200-nvl72", 8, [("nvlink", 72), ("rail", 576), ("spine", None)]),
    ],
)
def test_levels_follow_the_gpus_of_a_node(made: Write, base: str, gpus: int, levels: list[tuple[str, int]]) -> None:
    mine = made(f"base: {base}\ngpus_per_node: {gpus}\n")
    assert mine.gpus_per_node == gpus
    assert [(level.name, level.size) for level in mine.levels] == levels


def test_fewer_gpus_with_a_link_to_each_peer_have_fewer_links(made: Write) -> None:
    mine, base = made("base: mi300x\ngpus_per_node: 4\n"), load_cluster("mi300x")
    assert mine.levels[0].bandwidth_bytes_per_s.value == base.levels[0].bandwidth_bytes_per_s.value * 3 / 7
    assert mine.kernels == base.kernels


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("netwrok: 4x200Gb/s", "ours.yaml:2:1: netwrok: unknown field. Try: network."),
        ("colour: green", "ours.yaml:2:1: colour: unknown field (need one of aliases, announced, gpu,"),
        ("gpu_memory: 96", "ours.yaml:2:13: gpu_memory: has no unit (got 96, need a size as 96GB or 90GiB)."),
        ("gpu_memory: 96Gb", "gpu_memory: Gb is no unit of it, GB is (got 96Gb,"),
        ("network: 200", "network: has no unit (got 200, need ports and their speed as 4x200Gb/s)."),
        ("network: 4x200", "ours.yaml:2:10: network: '200' is not understood (got 4x200,"),
        ("network: 4x200GB/s", "network: a port of 200GB/s (bytes) is faster than any, 200Gb/s (bits) is meant (got "),
        ("network: 200Gb/s", "network: does not state whether this is per GPU or per node (got 200Gb/s,"),
        ("nvlink: 900GB/s", "nvlink: is twice h100's 450 GB/s in one direction; data sheets add both directions up"),
        ("xgmi: 300GB/s", "xgmi: h100 has no such link (got 300GB/s, need one of its links: nvlink)."),
        ("nvlink: fast", "nvlink: 'fast' is not understood (got fast, need a speed of one GPU as 300GB/s)."),
        (
            "gpu_memory: 96GB\ngpu: {memory_bytes: 96e9}",
            "ours.yaml:2:1: gpu_memory: sets the same as gpu.memory_bytes. Try: one of them.",
        ),
        (
            "network: 4x200Gb/s\nlevels: {rail: {bandwidth_bytes_per_s: 1e9}}",
            "network: sets the same as levels.rail.bandwidth_bytes_per_s. Try: one of them.",
        ),
        ("gpu: {memory_bytes: 96Gb}", "ours.yaml:2:21: gpu.memory_bytes: Gb is no unit of it, GB is"),
        ("gpu: {compute_units: many}", '2:22: gpu.compute_units: wrong value (got "many", need a whole number)'),
        ("gpu: {memmory_bytes: 1e9}", "ours.yaml:2:7: gpu.memmory_bytes: unknown field. Try: memory_bytes."),
        ("kernels: {link_efficiency: 7}", "kernels.link_efficiency: is a share of the peak, above 0 and at most 1"),
        ("kernels: {link_efficiency: high}", "kernels.link_efficiency: wrong value (got high, need a number)."),
        ("levels:\n  rail: {size: 12}", "ours.yaml:3:3: levels: must grow by whole factors in size, got 8 then 12."),
        ("levels:\n  rail: {size: many}", 'ours.yaml:3:16: levels.rail.size: wrong value (got "many", need a whole'),
        ("levels: {nvlink: {size: many}, node: {size: 8}}", 'levels.nvlink.size: wrong value (got "many"'),
        ("levels: {node: null}", "levels.node: the base has no such level (need one of nvlink, rail, spine)."),
        ("levels: {rail: 3}", "levels.rail: wrong value (got 3, need the fields of a level, or null for none)."),
        ("nvlink: 300GB/s\nlevels: {nvlink: 5}", "levels.nvlink: wrong value (got 5, need the fields of a level"),
        ("levels: []", "levels: wrong value (got [], need a section of `level: fields`)."),
        ("levels: 3", "levels: wrong value (got 3, need a section of `level: fields`)."),
        ("levels: {node: {size: 16}}", "levels.node.latency_s: this field is missing."),
        ("levels:\n  rail: {latency_s: soon}", "3:21: levels.rail.latency_s: is no number with a unit"),
        ("gpus_per_node: 0", "ours.yaml:2:16: gpus_per_node: out of range (got 0, need > 0)."),
        ("kernels: h100-sxn", "2:10: kernels: the constants of the GPU type cannot be loaded (got h100-sxn)."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_line(made: Write, text: str, said: str) -> None:
    told = refusal(made, f"base: h100\n{text}\n")
    assert said in told
    assert told.count("error") == 0


def test_everything_that_is_wrong_is_said_at_once_and_once(made: Write) -> None:
    told = refusal(made, "base: h100\nnetwork: fast\ngpu_memory: 3\ngpu: {vendor: apple}\nlevels: {rail: {size: x}}\n")
    assert told.count(" | ") == 3
    for field in ("network: ", "gpu_memory: ", "gpu.vendor: ", "levels.rail.size: "):
        assert told.count(f": {field}") == 1


def test_a_network_needs_switches(made: Write, tmp_path: Path) -> None:
    alone = yaml.safe_load(cluster_yaml(load_cluster("h100")))
    alone["levels"] = [{**alone["levels"][0], "size": None}]
    (tmp_path / "alone.yaml").write_text(yaml.safe_dump(alone), encoding="utf-8")
    said = refusal(made, "base: alone.yaml\nnetwork: 4x200Gb/s\n")
    assert "network: h100 has no network between nodes (got 4x200Gb/s, need a base with a level rail or spine)." in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: h1000\n", "Try: h100"),
        ("base: 7\n", "base: wrong value (got 7, need a cluster's name)"),
        ("base:\n", "null"),
    ],
)
def test_a_base_that_is_none_is_refused(made: Write, text: str, said: str) -> None:
    assert said in refusal(made, text)


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
