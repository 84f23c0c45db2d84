"""Partitioned modules trained on two and four CPU ranks against the modules themselves on one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symconfig.api.graph_job import asked
from symconfig.api.partition import answered, partition
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.errors import InputError
from symconfig.graph.program.net import Net
from symconfig.graph.program.torch_source.tidy import tidy
from symconfig.solve.partition.baselines import baseline, random_rows
from symconfig.solve.partition.run import folded

torch = pytest.importorskip("torch", reason="modules run in torch")
pytest.importorskip("transformers", reason="the modules of these tests come from transformers")

TWO = Mesh((MeshLevel("nvlink", 2, 1e13, 1e-9),))
FOUR = Mesh((MeshLevel("nvlink", 2, 1e11, 1e-7), MeshLevel("rail", 2, 1e10, 1e-7)))
MODULES, SMALL = "tests.graph.program.modules:", "tests.solve.partition.small_modules:"
REAL = ("t5_plain", "resnet_of_100k_classes", "gpt2_plain", "llama", "mixtral")
NAMED = {"llama": "megatron-tp-sp", "gpt2_plain": "matmul-2d", "mixtral": "gshard", "t5_plain": "zero3"}
# Rounding of float32: sums in another order. ReLUs of a ResNet turn at zero, and it has no fp32 inside: in float64.
# Rounding of float32: sums in another order, which AdamW's epsilon of 1e-4 at a rate of 1e-2 makes up to 100 times as
# large in the weights. ReLUs of a ResNet turn at zero, and it has no fp32 inside: in float64.
TOLERANCE = {
    "float32": {"loss": 4e-6, "gradients": 1e-5, "state": 3e-5},
    "float64": {"loss": 1e-10, "gradients": 1e-10, "state": 1e-10},
}


def dtype(factory: str) -> str:
    return "float64" if "resnet" in factory or SMALL in factory else "float32"


@cache
def traced(factory: str) -> tuple[Any, Net]:
    from symconfig.solve.partition.executed.build import trace

    lowering = trace(factory)
    return lowering, folded(tidy(lowering.lowered.program))


def built(factory: str, rows: Any, mesh: Mesh) -> Any:
    """By rows, by the name of a strategy, or by the number of a random one."""
    from symconfig.solve.partition.executed.build import executed
    from symconfig.solve.partition.executed.file import Partitioned

    lowering, of = traced(factory)
    if isinstance(rows, int):
        rows = random_rows(of, mesh.axes(), rows)
    elif isinstance(rows, str):
        rows = baseline(of, mesh.axes(), rows).rows
    return Partitioned(factory, executed(lowering, of, mesh.axes(), np.array(rows, dtype=np.int64)))


def solved(factory: str, mesh: Mesh) -> Any:
    from symconfig.solve.partition.executed.build import executed
    from symconfig.solve.partition.executed.file import Partitioned

    lowering, of = traced(factory)
    found = answered(asked({"program": of.program, "cluster": "h100", "mesh": mesh, "solver": "adaptive"})).found
    return Partitioned(factory, executed(lowering, found.net, found.axes, np.array(found.rows, dtype=np.int64)))


@cache
def files() -> dict[str, tuple[str, int, Any]]:
    """Of each case its factory, ranks, and what is written."""
    result: dict[str, tuple[str, int, Any]] = {}
    for name in REAL:
        factory = MODULES + name
        result[f"{name}_solved_2"] = (factory, 2, solved(factory, TWO))
        result[f"{name}_solved_4"] = (factory, 4, solved(factory, FOUR))
        result[f"{name}_random_4"] = (factory, 4, built(factory, 1, FOUR))
    for name, strategy in NAMED.items():
        result[f"{name}_{strategy.replace('-', '_')}_4"] = (MODULES + name, 4, built(MODULES + name, strategy, FOUR))
    for seed in range(8):
        result[f"rows_{seed}_4"] = (SMALL + "rows", 4, built(SMALL + "rows", seed, FOUR))
    for strategy in ("zero3", "data"):
        result[f"odd_{strategy}_4"] = (SMALL + "odd", 4, built(SMALL + "odd", strategy, FOUR))
    for seed in range(3):
        result[f"masked_{seed}_4"] = (SMALL + "masked", 4, built(SMALL + "masked", seed, FOUR))
    return result


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("partitioned")
    result = {}
    for name, (_, _, one) in files().items():
        (folder / f"{name}.py").write_text(one.python(name))
        (folder / f"{name}.json").write_text(one.table())
        result[name] = (folder / f"{name}.py", one)
    return result


@pytest.fixture(scope="module")
def ran(written: Mapping[str, tuple[Path, Any]]) -> dict[str, Any]:
    """All cases in one go: processes start once for two ranks and once for four."""
    cases = [
        {"name": name, "factory": factory, "ranks": ranks, "dtype": dtype(factory), "file": str(written[name][0]),
         "refuses": name == "llama_solved_2"}
        for name, (factory, ranks, _) in files().items()
    ]  # fmt: skip
    path = written["t5_plain_solved_2"][0].with_name("cases.txt")
    path.write_text(json.dumps(cases))
    worker = Path(__file__).with_name("executed_worker.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(worker), str(path)], capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(cases), done.stderr[-3000:]
    return {line["case"]: line for line in lines}


CASES = [
    *(f"{name}_{kind}" for name in REAL for kind in ("solved_2", "solved_4", "random_4")),
    *(f"{name}_{strategy.replace('-', '_')}_4" for name, strategy in NAMED.items()),
    *(f"rows_{seed}_4" for seed in range(8)), "odd_zero3_4", "odd_data_4",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_one_rank(ran: Mapping[str, Any], case: str) -> None:
    factory, _, _ = files()[case]
    found = ran[case]
    assert found["ranks"] == found["replicas"] == 0.0
    for what, most in TOLERANCE[dtype(factory)].items():
        assert found[what] <= most, (what, found)


@pytest.mark.parametrize("seed", range(3))
def test_dropout_draws_the_same_where_ranks_compute_the_same(ran: Mapping[str, Any], seed: int) -> None:
    found = ran[f"masked_{seed}_4"]
    assert found["ranks"] == found["replicas"] == 0.0
    assert found["loss"] > 1e-3  # another mask than one rank draws


def test_each_operator_that_needs_all_ranks_was_cut_where_it_does() -> None:
    """Some strategy of the small module cuts what each of them sums over."""
    wanted = dict.fromkeys(("layer_norm", "rms_norm", "softmax", "_native_batch_norm_legit_functional"), "Shard(2)")
    wanted |= {"embedding": "Shard(0)", "cross_entropy_loss": "Shard(1)"}
    seen = set()
    for name, (_, _, one) in files().items():
        if name.startswith("rows_"):
            table = json.loads(one.table())
            for node, word in wanted.items():
                inputs = table["nodes"].get(node, {"inputs": []})["inputs"]
                if inputs and word in table["layouts"][inputs[0]]["placements"]:
                    seen.add(node)
    assert seen == set(wanted)


def test_inputs_of_another_shape_are_refused_with_both(ran: Mapping[str, Any]) -> None:
    assert "traced with the inputs {'input_ids': [4, 32], 'labels': [4, 32]}" in ran["llama_solved_2"]["refused"]
    assert "called with [1, 32], [1, 32]" in ran["llama_solved_2"]["refused"]


def test_the_file_needs_torch_alone_and_the_table_is_words_and_numbers(written: Mapping[str, tuple[Path, Any]]) -> None:
    path, _ = written["mixtral_solved_2"]
    nodes = list(ast.walk(ast.parse(path.read_text())))
    roots = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert roots - set(sys.stdlib_module_names) == {"torch"}
    assert not {"pickle", "eval", "exec"} & {
        node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
    }
    table = json.loads(path.with_suffix(".json").read_text())
    words = {word for layout in table["layouts"] for key in ("placements", "gradient") for word in layout.get(key, [])}
    assert words <= {"Replicate()", "Partial()", *(f"Shard({dim})" for dim in range(5))}


def test_what_runs_whole_is_said_with_its_reason_and_bytes() -> None:
    name = MODULES + "wide_resnet"
    one = built(name, "spatial", FOUR)
    first, *rest = one.said()
    gathered = one.executed.gathered
    assert f"{len({each.node for each in gathered})} of " in first
    assert any("windows reach into the next part" in line for line in rest)
    stem = next(each for each in gathered if each.node == "conv2d" and each.mesh == "rail")
    assert stem.bytes_each == 0  # every rank is given the images
    later = next(each for each in gathered if each.node == "max_pool2d" and each.mesh == "rail")
    assert later.bytes_each in (8 * 64 * 32 * 32 * 4 / 2, 8 * 64 * 32 * 32 * 4 / 4)


def test_a_model_of_the_zoo_is_no_module() -> None:
    found = partition("llama2-7b", "h100", 2, 2, 128, solver="adaptive")
    with pytest.raises(InputError, match="only a module can be written"):
        found.partitioned()
