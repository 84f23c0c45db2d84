"""`symconfig partition --rewrite`: what it says and writes of the rewritten graph, and where it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.errors import InputError
from tests.cli.support import Run
from tests.cli.test_partition import MODEL, PROGRAM, SMALL

GATED = """
schema: symconfig.program/1
name: gated
dims: {b: 64, h: 4096, f: 11008}
batch: [b]
inputs: {x: [b, h]}
parameters: {gate: [h, f], up: [h, f], down: [f, h]}
operators:
  - g[b,f] = x * gate
  - u[b,f] = x * up
  - e[b,f] = silu(g)
  - a[b,f] = mul(e, u)
  - y[b,h] = a * down
outputs: [y]
"""


def test_a_rewritten_graph_is_reported_and_written(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "gated.yaml", tmp_path / "out"
    path.write_text(GATED)
    plain = run("partition --program", path, *SMALL, "--json").json()
    words = ("partition --program", path, *SMALL, "--rewrite")
    data, shown = run(*words, "--json", "--out", out).json(), run.done(*words, "--baselines").out
    found = data["rewrites"]
    assert sorted(one["rule"] for one in found["taken"]) == ["fuse", "merge"]
    assert found["taken"][-1]["cost"] == found["cost"] == data["solution"]["cost"]
    assert found["cost_before"] == plain["solution"]["cost"] > found["cost"]
    assert "rewrites" not in plain
    assert f"Rewrites: {1e3 * found['cost']:.3f} ms a step, {1e3 * found['cost_before']:.3f} ms without (-" in shown
    assert "  merge: g and u in one product, which read x (" in shown
    assert json.loads((out / "partition.json").read_text()) == data
    assert {one["name"] for one in data["parameters"]} == {"gate+up", "down"}
    file = dict[str, Any]()
    exec((out / "placements.py").read_text(), file)
    assert {*file["PARAMETERS"]} == {"gate+up", "down"}
    job = tmp_path / "job.yaml"
    job.write_text(f"program: {path}\ncluster: h100\ngpus: 8\nsolver: adaptive\nrewrite: true\n")
    assert run("partition", job, "--json").json() == data


def test_where_no_rewrite_gains_it_says_so(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(PROGRAM)
    words = ("partition --program", path, *SMALL, "--rewrite")
    assert "No rewrite makes the step faster, of 1 graph.\n" in run.done(*words).out
    data = run(*words, "--json").json()["rewrites"]
    assert data["taken"] == []
    assert data["cost_before"] == data["cost"]
    assert "No rewrite makes the step faster" in run.done(*MODEL, "--rewrite").out


def test_a_partition_of_a_rewritten_module_is_not_distributed() -> None:
    pytest.importorskip("torch", reason="modules are traced with torch")
    where = {"cluster": "h100", "gpus": 8, "solver": "adaptive"}
    found = symconfig.partition(module="tests.solve.partition.small_modules:gated", rewrite=True, **where)
    assert found.rewritten.taken
    with pytest.raises(InputError, match="the module runs the one that it was given"):
        found.distribute(None)
