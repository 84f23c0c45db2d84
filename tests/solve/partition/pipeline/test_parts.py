"""What a stage may be: stretches of layers, parts of the mesh, and programs that receive and send."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph.program.fold import Parts, structure
from symconfig.graph.program.repeats import Run
from symconfig.resources import data_dir
from symconfig.solve.partition.pipeline.run import layers
from symconfig.solve.partition.pipeline.stage import submeshes
from tests.solve.partition.pipeline.graphs import chain
from tests.solve.partition.programs import transformer

CLUSTERS = sorted(path.stem for path in (data_dir("model_zoo") / "clusters").glob("*.yaml"))


def test_few_operators_are_a_layer_each() -> None:
    assert layers(np.array([3.0, 0.0, 9.0]), np.ones(4), (), 3) == (0, 1, 2, 3)


@pytest.mark.parametrize("seed", range(6))
def test_layers_are_as_alike_as_any_of_as_many(seed: int) -> None:
    work = np.random.default_rng(seed).uniform(1, 3, 12)
    cuts = layers(work, np.ones(13), (), 5)
    count = len(cuts) - 1
    assert 3 <= count <= 5

    def squares(cuts: tuple[int, ...]) -> float:
        return sum(float(work[a:b].sum()) ** 2 for a, b in pairwise(cuts))

    least = min(squares((0, *inner, 12)) for inner in combinations(range(1, 12), count - 1))
    assert squares(cuts) == pytest.approx(least)


def test_repeats_stay_whole_and_cuts_are_where_little_crosses() -> None:
    run = Run(2, 5, 8)
    repeated = layers(np.ones(44), np.ones(45), (run,), 12)
    assert all((cut - run.start) % run.period == 0 for cut in repeated[1:-1] if run.start < cut < run.end)
    crossing = np.where(np.arange(101) % 5 == 0, 1.0, 10.0)
    assert all(cut % 5 == 0 for cut in layers(np.ones(100), crossing, (), 8))


@pytest.mark.parametrize("name", CLUSTERS)
def test_parts_of_a_mesh_are_the_meshes_of_so_many_gpus(name: str) -> None:
    cluster = load_cluster(name)
    node = cluster.levels[0].size or 8
    whole = of_cluster(cluster, node)
    for part in submeshes(whole)[1:]:
        mine = [(one.size, one.bandwidth_bytes_per_s, one.mesh) for one in part.levels]
        levels = of_cluster(cluster, part.gpus).levels
        assert [one[0] for one in mine] == [one.size for one in levels]
        assert [one[1] for one in mine] == pytest.approx([one.bandwidth_bytes_per_s for one in levels])
        assert [one[2] for one in mine] == [one.mesh for one in levels]


def test_stretches_have_one_key_only_where_they_are_alike(tmp_path: Path) -> None:
    parts = Parts(chain(tmp_path, [1024] * 7))
    assert parts.key(1, 3) == parts.key(2, 4) == parts.key(3, 5)
    assert len({parts.key(0, 2), parts.key(1, 3), parts.key(4, 6), parts.key(1, 4)}) == 4
    assert Parts(chain(tmp_path, [1024] * 7, skip=True)).key(1, 3) != parts.key(1, 3)


def test_parts_of_a_program_are_all_of_it_and_what_crosses_is_sent_and_received() -> None:
    program = transformer(layers=3, tied=True)
    parts, count = Parts(program), len(program.operators)
    made = [parts.program_of(a, b) for a, b in pairwise((0, count // 3, count // 2, count))]
    kept = [op for one in made for op in one.operators if op in program.operators]
    assert kept == list(program.operators)
    for before, after in pairwise(made):
        sent = {op.inputs[0].name for op in before.operators if op.work == "send"}
        assert sent == {op.outputs[0].name for op in after.operators if op.work == "receive"}
    assert {one.tensor.name for part in made for one in part.parameters} == {
        one.tensor.name for one in program.parameters
    }
    assert [one.tensor.name for one in parts.shared(0, count // 3)] == ["embedding"]
    assert parts.program_of(0, count).operators == program.operators
    assert structure(program, program.operators[0], {}) == structure(made[0], made[0].operators[0], {})
