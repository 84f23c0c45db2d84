"""Meshes from clusters and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.mesh import Mesh, MeshLevel, load_mesh, of_cluster
from symconfig.errors import InputError

MESH = """\
schema: symconfig.mesh/1
levels:
  - {name: inner, size: 8, bandwidth_bytes_per_s: 450e9, latency_s: 3e-6, mesh: true}
  - {name: idle, size: 1, bandwidth_bytes_per_s: 1}
  - {name: outer, size: 4, bandwidth_bytes_per_s: 50e9, latency_s: 1e-5}
"""


def sizes(mesh: Mesh) -> list[tuple[str, int]]:
    return [(level.name, level.size) for level in mesh.levels]


def said(call: object) -> list[str]:
    assert isinstance(call, InputError)
    assert call.exit_code == 2
    return [str(problem) for problem in call.problems]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "mesh.yaml"


@pytest.mark.parametrize(
    ("cluster", "gpus", "levels"),
    [
        ("h100", 1, []),
        ("h100", 4, [("nvlink", 4)]),
        ("h100", 8, [("nvlink", 8)]),
        ("h100", 16, [("nvlink", 8), ("rail", 2)]),
        ("h100", 6, [("nvlink", 6)]),
        ("h100", 384, [("nvlink", 8), ("rail", 48)]),
        ("h100", 1024, [("nvlink", 8), ("rail", 128)]),
        ("a100-80gb", 64, [("nvlink", 8), ("rail", 8)]),
        ("a100-80gb", 1024, [("nvlink", 8), ("rail", 128)]),
        ("gb200-nvl72", 48, [("nvlink", 48)]),
        ("a100-80gb", 320, [("nvlink", 8), ("rail", 40)]),
        ("l40s", 8, [("pcie", 4), ("node", 2)]),
        ("gb200-nvl72", 36, [("nvlink", 36)]),
        ("ascend-910c", 1536, [("hccs", 768), ("spine", 2)]),
    ],
)
def test_a_mesh_has_the_levels_that_the_gpus_span(cluster: str, gpus: int, levels: list[tuple[str, int]]) -> None:
    mesh = of_cluster(load_cluster(cluster), gpus)
    assert sizes(mesh) == levels
    assert mesh.gpus == gpus


@pytest.mark.parametrize("name", zoo_clusters())
def test_every_cluster_gives_a_mesh_of_a_node(name: str) -> None:
    cluster = load_cluster(name)
    mesh = of_cluster(cluster, cluster.gpus_per_node)
    assert mesh.gpus == cluster.gpus_per_node
    inner = cluster.levels[0]
    expected = inner.bandwidth_bytes_per_s.value
    if inner.size == cluster.gpus_per_node or not inner.mesh:
        assert mesh.levels[0].bandwidth_bytes_per_s == expected


def test_a_part_of_a_node_without_a_switch_has_its_own_links_only() -> None:
    cluster = load_cluster("mi300x")
    whole, half = of_cluster(cluster, 8).levels[0], of_cluster(cluster, 4).levels[0]
    assert half.mesh
    assert half.bandwidth_bytes_per_s == pytest.approx(whole.bandwidth_bytes_per_s * 3 / 7)


def test_an_oversubscribed_level_has_what_goes_through_it() -> None:
    cluster = load_cluster("h100")
    spine = cluster.levels[-1]
    thin = spine.model_copy(update={"oversubscription": spine.oversubscription.model_copy(update={"value": 2.0})})
    thinner = cluster.model_copy(update={"levels": (*cluster.levels[:-1], thin)})
    mesh = of_cluster(thinner, 512)
    assert mesh.levels[-1].bandwidth_bytes_per_s == spine.bandwidth_bytes_per_s.value / 2


@pytest.mark.parametrize(
    ("cluster", "gpus", "words"),
    [
        ("h100", 12, "does not fill whole domains of nvlink (got 12, need a multiple of 8, or fewer). Try: 8 or 16"),
        ("l40s", 6, "does not fill whole domains of pcie (got 6, need a multiple of 4, or fewer). Try: 4 or 8"),
        ("h100", 0, "a mesh needs a GPU"),
    ],
)  # fmt: skip
def test_what_fills_no_domains_is_refused_with_the_nearest_that_does(cluster: str, gpus: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        of_cluster(load_cluster(cluster), gpus)
    (problem,) = said(caught.value)
    assert words in problem


def test_whole_nodes_need_not_fill_a_rail_unless_what_joins_rails_is_slower() -> None:
    cluster = load_cluster("a100-80gb")
    rail, spine = cluster.levels[-2:]
    thin = spine.model_copy(update={"oversubscription": spine.oversubscription.model_copy(update={"value": 2.0})})
    thinner = cluster.model_copy(update={"levels": (*cluster.levels[:-1], thin)})
    assert sizes(of_cluster(thinner, 64)) == [("nvlink", 8), ("rail", 8)]
    assert sizes(of_cluster(thinner, 320)) == [("nvlink", 8), ("rail", 20), ("spine", 2)]
    with pytest.raises(InputError, match=r"whole domains of rail .*need a multiple of 160, or fewer.*Try: 960 or 1120"):
        of_cluster(thinner, 1024)
    latencies = [of_cluster(cluster, gpus).levels[-1].latency_s for gpus in (64, 160, 1024)]
    assert latencies == [rail.latency_s.value, rail.latency_s.value, spine.latency_s.value]


def test_more_gpus_than_there_are_are_refused() -> None:
    cluster = load_cluster("h100").model_copy(update={"max_gpus": 16})
    with pytest.raises(InputError, match="more than the cluster has"):
        of_cluster(cluster, 32)
    with pytest.raises(InputError, match=r"Try: 8, or a mesh file"):
        of_cluster(cluster.model_copy(update={"max_gpus": 15}), 12)


def test_a_file_lists_levels_and_those_of_one_domain_vanish(written: Path) -> None:
    written.write_text(MESH)
    assert load_mesh(written) == Mesh((MeshLevel("inner", 8, 450e9, 3e-6, True), MeshLevel("outer", 4, 50e9, 1e-5)))


def test_the_documented_file_is_one(written: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cluster-files.md").read_text()
    written.write_text(page[page.index("schema: symconfig.mesh/1") :].split("```")[0])
    assert sizes(load_mesh(written)) == sizes(of_cluster(load_cluster("h100"), 64))


def test_all_that_is_wrong_in_a_file_is_said_with_its_place(written: Path) -> None:
    text = MESH.replace("size: 4", "size: 0").replace("bandwidth_bytes_per_s: 1}", "bandwidth_bytes_per_s: 0, x: 1}")
    written.write_text(text)
    with pytest.raises(InputError) as caught:
        load_mesh(written)
    problems = said(caught.value)
    assert len(problems) == 3
    assert any("mesh.yaml:5:" in line and "levels[2].size: out of range (got 0, need > 0)" in line for line in problems)
    assert any("mesh.yaml:4:" in line and "unknown field" in line for line in problems)
    assert any("mesh.yaml:4:" in line and "levels[1].bandwidth_bytes_per_s" in line for line in problems)
