"""Modules with their partitions, written as files and trained on CPU ranks, for tests and docs/evidence/trained.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from symconfig.api.partition import solved_partition
from symconfig.api.partition_job import partition_job
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.net import Net
from symconfig.solve.partition.run import folded
from tests.solve.partition.strategies import named_rows, random_rows

TWO = Mesh((MeshLevel("nvlink", 2, 1e13, 1e-9),))
FOUR = Mesh((MeshLevel("nvlink", 2, 1e11, 1e-7), MeshLevel("rail", 2, 1e10, 1e-7)))
MODULES, SMALL = "tests.graph.program.modules:", "tests.solve.partition.small_modules:"
REAL = ("t5_plain", "resnet_of_100k_classes", "gpt2_plain", "llama", "mixtral")
MORE = ("bert", "gemma2", "qwen3_moe", "opt", "vit", "convnext")  # by random splits, for the page alone
CUT = ("t5_plain", "llama", "mixtral")  # by a random split, too
NAMED = {"mixtral": "gshard", "t5_plain": "zero3"}


def dtype(factory: str) -> str:
    return "float64" if "resnet" in factory or SMALL in factory else "float32"


@cache
def traced(factory: str) -> tuple[Any, Net]:
    from tools.partitions.executed.build import trace

    lowering = trace(factory)
    return lowering, folded(lowering.program)


def built(factory: str, rows: Any, mesh: Mesh) -> Any:
    """By rows, by the name of a strategy, or by the number of a random one."""
    from tools.partitions.executed.build import executed
    from tools.partitions.executed.partitioned import Partitioned

    lowering, of = traced(factory)
    if isinstance(rows, int):
        rows = random_rows(of, mesh.axes(), rows)
    elif isinstance(rows, str):
        rows = named_rows(of, mesh.axes(), rows)
    return Partitioned(factory, executed(lowering, of, mesh.axes(), np.array(rows, dtype=np.int64)))


def solved(factory: str, mesh: Mesh) -> Any:
    from tools.partitions.executed.build import executed
    from tools.partitions.executed.partitioned import Partitioned

    lowering, of = traced(factory)
    found = solved_partition(
        partition_job({"program": of.program, "cluster": "h100", "mesh": mesh, "solver": "adaptive"})
    ).found
    return Partitioned(factory, executed(lowering, found.net, found.axes, np.array(found.rows, dtype=np.int64)))


@cache
def files(more: bool = False) -> dict[str, tuple[str, int, Any]]:
    """Of each case its factory, ranks, and what is written."""
    result: dict[str, tuple[str, int, Any]] = {}
    for name in REAL:
        factory = MODULES + name
        if name == "llama":
            result[f"{name}_solved_2"] = (factory, 2, solved(factory, TWO))
        result[f"{name}_solved_4"] = (factory, 4, solved(factory, FOUR))
        if name in CUT:
            result[f"{name}_random_4"] = (factory, 4, built(factory, 1, FOUR))
    for name, way in NAMED.items():
        result[f"{name}_{way.replace('-', '_')}_4"] = (MODULES + name, 4, built(MODULES + name, way, FOUR))
    for seed in range(8):
        result[f"rows_{seed}_4"] = (SMALL + "rows", 4, built(SMALL + "rows", seed, FOUR))
    for way in ("zero3", "data"):
        result[f"odd_{way}_4"] = (SMALL + "odd", 4, built(SMALL + "odd", way, FOUR))
    result["masked_0_4"] = (SMALL + "masked", 4, built(SMALL + "masked", 0, FOUR))
    for name in MORE if more else ():
        result[f"{name}_random_4"] = (MODULES + name, 4, built(MODULES + name, 2, FOUR))
    return result


def write(folder: Path, more: bool = False) -> dict[str, Path]:
    """Write every case's file and table. Return the files."""
    result = {}
    for name, (_, _, one) in files(more).items():
        result[name] = folder / f"{name}.py"
        result[name].write_text(one.python(name))
        result[name].with_suffix(".json").write_text(one.table())
    return result


def run(written: dict[str, Path], more: bool = False) -> dict[str, Any]:
    """Train all cases in one go: processes start once for two ranks and once for four."""
    cases = [
        {"name": name, "factory": factory, "ranks": ranks, "dtype": dtype(factory), "file": str(written[name]),
         "refuses": name == "llama_solved_2"}
        for name, (factory, ranks, _) in files(more).items()
    ]  # fmt: skip
    path = next(iter(written.values())).with_name("cases.txt")
    path.write_text(json.dumps(cases))
    worker = Path(__file__).with_name("executed_worker.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(worker), str(path)], capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(cases), done.stderr[-3000:]
    return {line["case"]: line for line in lines}
