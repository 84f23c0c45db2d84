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
    assert "; gate then up: each rank holds its part of every piece\n" in (out / "placements.py").read_text()
    job = tmp_path / "job.yaml"
    job.write_text(f"program: {path}\ncluster: h100\ngpus: 8\nsolver: adaptive\nrewrite: true\n")
    assert run("partition", job, "--json").json() == data


LAYERS = """
schema: symconfig.program/1
name: layers
dims: {b: 512, h: 4096, f: 8192}
batch: [b]
inputs: {x: [b, h]}
operators:
  - repeat:
      name: layers
      times: 4
      carry: {x: y}
      parameters: {up: [h, f], gate: [h, f], down: [f, h]}
      body:
        - {do: "u[b,f] = x * up", path: mlp.up}
        - {do: "g[b,f] = x * gate", path: mlp.gate}
        - {do: "e[b,f] = silu(g)", path: mlp}
        - {do: "a[b,f] = mul(e, u)", path: mlp}
        - {do: "y[b,h] = a * down", path: mlp.down}
outputs: [y]
"""


def test_a_rewrite_of_a_repeat_names_all_its_places(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "layers.yaml", tmp_path / "out"
    path.write_text(LAYERS)
    words = ("partition --rewrite --no-flat --program", path, *SMALL)
    shown = run.done(*words, "--out", out).out
    data = json.loads((out / "partition.json").read_text())
    for one in data["rewrites"]["taken"]:
        times, (first, *more) = len(one["places"]), one["places"]
        assert f"  {one['rule']}{f' x {times}' if more else ''}: {one['words']} (" in shown
        assert ("layers.*." in one["words"]) == bool(more)
        assert more or one["words"] == first
    merged = [words for one in data["rewrites"]["taken"] if one["rule"] == "merge" for words in one["places"]]
    assert sorted(words.split(" in ")[0] for words in merged) == [f"layers.{n}.g and layers.{n}.u" for n in range(4)]
    text = (out / "placements.py").read_text()
    assert "layers.*.gate+up'" in text or "layers.0.gate+up'" in text
    assert "layers.*.mlp.gate+up'" in text or "layers.0.mlp.gate+up'" in text


def test_a_graph_without_repeats_cannot_run_them_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "gated.yaml"
    path.write_text(GATED)
    for more in ("", "--rewrite"):
        error = run.refused(f"partition --recompute full {more} --program", path, *SMALL)
        assert "--recompute: nothing in the graph repeats" in error


def test_where_no_rewrite_gains_it_says_so(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(PROGRAM)
    words = ("partition --program", path, *SMALL, "--rewrite")
    assert "The rules reach no other graph.\n" in run.done(*words).out
    data = run(*words, "--json").json()["rewrites"]
    assert data["taken"] == []
    assert data["cost_before"] == data["cost"]
    assert "The rules reach no other graph.\n" in run.done(*MODEL, "--rewrite").out


def test_a_partition_of_a_rewritten_module_is_not_distributed() -> None:
    pytest.importorskip("torch", reason="modules are traced with torch")
    where = {"cluster": "h100", "gpus": 8, "solver": "adaptive"}
    found = symconfig.partition(module="tests.solve.partition.small_modules:gated", rewrite=True, **where)
    assert found.rewritten.taken
    with pytest.raises(InputError, match="the module runs the one that it was given"):
        found.distribute(None)
    with pytest.raises(InputError, match="the module runs the one that it was given"):
        found.placements_file()
