"""Stages and tensors solved together: against every cut and the planner; what a stage may be."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

import symconfig
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph.operator import Work
from symconfig.graph.program.fold import Run, structure
from symconfig.resources import data_dir
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Times
from symconfig.solve.partition.pipeline.run import Pipeline, ideals, layers, pipeline
from symconfig.solve.partition.pipeline.stage import Parts, submeshes
from symconfig.solve.partition.run import Ask, partition
from tests.solve.partition.pipeline.brute import ask, branches, chain, least_step_s, orders
from tests.solve.partition.programs import transformer

WIDE = [1024, 1024, 8192, 8192, 1024, 1024]


def solved(program: object, of: Ask, least: int = 1, most: int = 4) -> Pipeline:
    found = pipeline(lambda turns: program, of, least, most)  # type: ignore[arg-type,return-value]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "turns"), [("wide", 4), ("wide", 32), ("skip", 1), ("skip", 32), ("tied", 8), ("rising", 2)]
)
def test_no_cut_on_any_parts_of_the_mesh_is_faster(tmp_path: Path, kind: str, turns: int) -> None:
    widths = {"wide": WIDE, "skip": [2048, 1024, 4096, 2048, 1024], "tied": [4096, 1024, 1024, 1024, 4096]}
    program = chain(tmp_path, widths.get(kind, [1024, 2048, 4096, 8192]), skip=kind == "skip", tied=kind == "tied")
    for least, most in ((1, 4), (3, 3)):
        found = solved(program, ask(4, turns), least, most)
        assert found.step_s == pytest.approx(least_step_s(program, ask(4, turns), least, most), rel=1e-9)
        assert least <= len(found.stages) <= most


@pytest.mark.parametrize(
    ("left", "right"),
    [([1024, 2048, 4096], [1024, 4096, 512, 4096]), ([1024, 8192, 1024], [1024, 4096, 1024]), ([512, 4096], [512] * 4)],
)
def test_no_order_of_branches_is_faster(tmp_path: Path, left: list[int], right: list[int]) -> None:
    """Against all cuts of all orders in which the operators may run."""
    program = branches(tmp_path, [*left[:-1], 4096], [*right[:-1], 4096])
    every, of, most = orders(program), ask(4, 8), 3
    steps = [least_step_s(replace(program, operators=order), of, 2, most) for order in every]
    found = solved(program, of, 2, most)
    assert found.step_s == pytest.approx(min(steps), rel=1e-9)
    assert found.program.operators in every
    assert found.bounds[-1] == len(program.operators)


def test_stages_may_be_cut_in_another_order_than_the_written_one(tmp_path: Path) -> None:
    """The heavy right branch, written last, is the first stage: the left one and the sum follow."""
    program, of = branches(tmp_path, [512, 2048, 512], [512, 8192, 512]), ask(4, 32)
    assert len(ideals(program, range(6))) == 3 * 3 + 1
    found = solved(program, of, 4, 4)
    assert [program.operators.index(found.program.operators[n]) for n in range(5)] == [2, 3, 0, 1, 4]
    assert found.step_s < 0.9 * least_step_s(program, of, 4, 4)


@pytest.mark.parametrize("room", [0.7, 0.8])
def test_nor_where_memory_binds_with_more_microbatches_in_flight_on_earlier_stages(tmp_path: Path, room: float) -> None:
    program = chain(tmp_path, WIDE)
    free = solved(program, ask(4, 8), 2, 4)
    tight = replace(ask(4, 8), memory_limit=room * max(stage.memory for stage in free.stages))
    found, least = pipeline(lambda turns: program, tight, 2, 4), least_step_s(program, tight, 2, 4)
    assert (found.step_s if found is not None else np.inf) == pytest.approx(least, rel=1e-9)
    if found is not None:
        assert max(stage.memory for stage in found.stages) <= tight.memory_limit
        assert [stage.alive for stage in found.stages] == list(range(len(found.stages), 0, -1))


def test_one_stage_is_the_tensor_solvers_answer(tmp_path: Path) -> None:
    program, of = chain(tmp_path, WIDE), ask(8, 4)
    whole = partition(lambda turns: program, of)
    found = solved(program, of, 1, 1)
    assert found.step_s == pytest.approx(whole.cost, rel=1e-12)
    assert found.stages[0].memory == pytest.approx(whole.memory)


def test_a_chain_of_equal_layers_is_cut_evenly(tmp_path: Path) -> None:
    found = solved(chain(tmp_path, [4096] * 9), ask(4, 64), 4, 4)
    assert [len(found.operators(number)) for number in range(4)] == [2, 2, 2, 2]
    assert [stage.gpus for stage in found.stages] == [1, 1, 1, 1]


def test_a_wide_layer_gets_a_stage_with_more_of_the_mesh(tmp_path: Path) -> None:
    """Of five products the middle one has 3/5 of the work and more: even stages would wait for it."""
    program = chain(tmp_path, [2048, 2048, 8192, 8192, 2048, 2048])
    found = solved(program, ask(8, 64), 3, 3)
    gpus = [stage.gpus for stage in found.stages]
    assert sum(gpus) == 8
    assert len(set(gpus)) > 1
    middle = next(number for number in range(3) if 2 in found.operators(number))
    assert gpus[middle] == max(gpus)
    even = solved(program, ask(8, 64), 2, 2)
    assert found.step_s < even.step_s or even.stages[0].gpus != even.stages[1].gpus


def test_a_skip_over_stages_is_sent_over_each_cut_on_its_way(tmp_path: Path) -> None:
    """Bytes are those of the tensor that the far operator reads, forward and back, by both ends of each cut."""
    widths = [2048] * 5
    plain, skip = (chain(tmp_path, widths, skip=one) for one in (False, True))
    parts = Parts(skip)
    assert parts.crossing(3) == ["y1", "y3"]
    middle = parts.program_of(2, 3)
    assert [op.work for op in middle.operators].count(Work.RECEIVE) == 2
    assert [op.work for op in middle.operators].count(Work.SEND) == 2
    seconds = [_of_one_operator(Parts(one).program_of(2, 3), ask(1, 1)) for one in (plain, skip)]
    link = ask(2, 1).mesh.levels[-1]
    wire = 4096 * 2048 * 2 / link.bandwidth_bytes_per_s
    more = seconds[1] - seconds[0]  # received and sent, and both again for the gradient
    assert 4 * wire < more < 4 * wire * 1.5 + 4e-5


def _of_one_operator(program: object, of: Ask) -> float:
    from symconfig.cost.partition import rates

    between = rates.between_stages(ask(2, 1).mesh, of.cluster)
    found = partition(lambda turns: program, replace(of, between=between))  # type: ignore[arg-type,return-value]
    return found.cost


def test_the_sum_is_what_a_simulated_1f1b_takes(tmp_path: Path) -> None:
    found = solved(chain(tmp_path, WIDE), ask(8, 16), 3, 3)
    turn = np.array([[stage.turn_s] for stage in found.stages])
    third, none = turn / 3, np.zeros_like(turn)
    line = simulate(Times(forward=third, recompute=none, backward=third, weight=third), 16)
    once = [stage.once_s for stage in found.stages]
    finish = float(np.max(line.finish_s))
    assert finish <= found.step_s * (1 + 1e-9)
    assert found.step_s <= (finish + max(once)) * 1.02


def test_stages_of_a_model_cost_and_hold_what_the_planners_do() -> None:
    """llama2-7b over eight GPUs: a pipeline over data parallel, by both clocks; and the bytes of each stage.

    The planner has the last stage 3 % longer, a turn of one GPU with all layers 1 to 2 %: hence 2 %.
    """
    job = {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 32}
    cut = symconfig.pipeline(**job, num_microbatches=32, stages=8, recompute="none").found
    one = symconfig.pipeline(**job, num_microbatches=4, stages=1, recompute="none").found
    pins = {"tp": "1", "cp": "1", "vpp": "1", "recompute": "none"}
    plans = [symconfig.plan(**job, pins=pins | {"pp": pp}).best for pp in ("8", "1")]
    assert [stage.gpus for stage in cut.stages] == [1] * 8
    planned = [best.predicted.step_s - best.predicted.time["overhead"] for best in plans]
    assert cut.step_s / one.step_s == pytest.approx(planned[0] / planned[1], rel=0.02)
    layers = [sum("input_norm" in cut.program.operators[i].name for i in cut.operators(n)) for n in range(8)]
    assert layers == [4] * 8
    for stage, mine in zip(cut.stages, plans[0].stages, strict=True):
        assert stage.memory == pytest.approx(mine.peak_bytes, rel=0.03)


def test_alike_stages_are_solved_once_and_split_alike() -> None:
    found = symconfig.pipeline(
        model="llama2-7b", cluster="h100", gpus=8, global_batch_size=32, num_microbatches=32, stages=8
    ).found
    assert found.like == (0, 1, 1, 1, 1, 1, 1, 7)
    assert found.solved < 120


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
