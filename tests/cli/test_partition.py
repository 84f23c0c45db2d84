"""`symconfig partition`: what it prints and writes, what it refuses; where something is least or does not divide."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import symconfig
from symconfig.api.graph_source import divisors, thinned
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.mesh import of_cluster
from tests.cli.support import Run

SMALL = ("--cluster", "h100", "--gpus", "8", "--solver", "adaptive")
MODEL = ("partition", "--model", "llama2-7b", *SMALL, "--global-batch-size", "8", "--num-microbatches", "1")
PROGRAM = """
schema: symconfig.program/1
name: two
dims: {b: 64, h: 4096, f: 16384}
batch: [b]
inputs: {x: [b, h]}
parameters: {up: [h, f], down: [f, h]}
operators:
  - u[b,f] = x[b,h] * up[h,f]
  - g[b,f] = gelu(u)
  - y[b,h] = g[b,f] * down[f,h]
outputs: [y]
"""
MESH = """
schema: symconfig.mesh/1
levels:
  - {name: nvlink, size: SIZE, bandwidth_bytes_per_s: 450.0e9, latency_s: 3.0e-6}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(PROGRAM)
    return path


def test_it_says_how_operators_are_split_what_moves_and_what_is_held(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    outcome = run.done(*MODEL)
    assert outcome.out.startswith("llama2-7b on 8 x NVIDIA H100")
    for words in (
        "folded into", "layers.*.gate_up_proj", "How parameters are kept", "What moves in a step", "In total",
    ):  # fmt: skip
        assert words in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 125
    assert not any(line.endswith(" ") for line in outcome.out.splitlines())


def test_json_holds_what_the_python_function_gives_and_is_the_same_each_time(run: Run) -> None:
    first, second = run(*MODEL, "--json"), run(*MODEL, "--json")
    assert first.out == second.out
    data = first.json()
    assert data["schema"] == "symconfig.partition/3"
    result = symconfig.partition("llama2-7b", "h100", 8, 8, solver="adaptive", num_microbatches=1)
    assert json.loads(json.dumps(result.to_dict())) == data
    assert set(result.strategies) >= {operator["name"] for operator in data["operators"]}


def test_numbers_in_json_add_up(run: Run) -> None:
    data = run(*MODEL, "--json", "--baselines").json()
    spent, solution = data["spent"], data["solution"]
    parts = spent["computation"] + spent["optimizer"] + spent["communication"]
    assert parts == pytest.approx(solution["cost"], rel=1e-9)
    assert sum(one["exposed"] for one in data["collectives"]) == pytest.approx(spent["communication"], rel=1e-9)
    held = sum(value for name, value in spent.items() if name.endswith("_bytes"))
    assert held == pytest.approx(solution["memory_bytes"], rel=1e-9)
    for operator in data["operators"]:
        for tensor in operator["tensors"]:
            for dim, parts in zip(tensor["dims"], tensor["strategy"], strict=True):
                assert dim["size"] % parts == 0
    fitting = [one for one in data["baselines"] if one["cost"] is not None]
    assert fitting
    assert min(one["cost"] for one in fitting) >= solution["cost"] * (1 - 1e-9)


def test_a_program_on_a_mesh_of_a_file(run: Run, program: Path, tmp_path: Path) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text(MESH.replace("SIZE", "4"))
    words = ("partition --cluster h100 --solver exact --json --program", program, "--mesh", mesh)
    data = run.done(*words).json()
    assert data["mesh"]["gpus"] == 4
    assert data["solution"]["closed"] is True
    brute = run(*words, "--num-microbatches", "1", "--recompute", "none").json()
    assert brute["solution"]["cost"] >= data["solution"]["cost"] * (1 - 1e-9)


def test_no_flat_leaves_no_weight_in_smaller_parts_than_it_is_used(run: Run, program: Path) -> None:
    data = run("partition --program", program, *SMALL, "--no-flat", "--json").json()
    assert all(set(parameter["zero"].values()) == {0} for parameter in data["parameters"])


def test_a_pin_is_kept(run: Run) -> None:
    outcome = run(*MODEL, "--pin", "layers.*.down_proj=B/2, F/4", "--pin", "layers.*.gate.F=4", "--json")
    data = json.loads(outcome.out)
    (mine,) = [one for one in data["operators"] if one["name"] == "layers.0.down_proj"]
    split = {one["option"]: one["parts"] for one in mine["does"]}
    assert split == {"batch": [{"level": "nvlink", "size": 2}], "intermediate_size": [{"level": "nvlink", "size": 4}]}
    assert "pinned layers.*.down_proj=B/2, F/4, pinned layers.*.gate.F=4" in data["job"]


def test_one_operator_is_explained_in_full(run: Run) -> None:
    outcome = run.done(*MODEL, "--explain", "layers.*.down_proj")
    assert "What moves in a step" in outcome.out
    assert "In total" not in outcome.out
    assert run(*MODEL, "--explain", "layers.7.down_proj").out == outcome.out


def test_where_nothing_fits_it_names_what_binds_and_the_mesh_that_would_do(run: Run) -> None:
    said = run.refused(*MODEL, "--memory-limit", "10GiB", code=1)
    assert "no partition was found that fits in memory" in said
    assert "most of it is weight layers.*.mlp.gate_up_proj.weight" in said
    gpus = int(said.split("Try: ")[1].split()[0].replace(",", ""))
    assert gpus % 8 == 0
    run.done(*MODEL, "--memory-limit", "10GiB", "--gpus", gpus)


def test_files_are_written_whole_or_not_at_all(run: Run, program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("partition --program", program, *SMALL, "--out", out)
    outcome = run.done(*words, "--json")
    assert json.loads((out / "partition.json").read_text()) == outcome.json()
    ast.parse((out / "placements.py").read_text())
    assert run.refused(*words).count("exists already") == 1
    run.done(*words, "--force")


def test_a_gpu_without_bf16_is_partitioned_in_fp16(run: Run) -> None:
    job = "partition --model llama2-7b --cluster v100-16gb --gpus 32 --solver adaptive --global-batch-size 32"
    told = run.done(job).out
    assert "4,096 tokens, fp16, unfused attention\n" in told
    assert "mesh: 8·nvlink (150 GB/s) x 4·spine (0.391 GB/s), 32 GPUs, cut into axes of " in told


@pytest.mark.parametrize("name", zoo_clusters())
def test_no_bandwidth_is_rounded_by_more_than_half_a_percent(name: str) -> None:
    mesh = of_cluster(load_cluster(name), 4 * load_cluster(name).joined_gpus)
    shown = [float(text.replace(",", "")) for text in re.findall(r"\((\S+) GB/s\)", str(mesh))]
    assert shown == [pytest.approx(level.bandwidth_bytes_per_s / 1e9, rel=5e-3) for level in mesh.levels]


def test_less_kept_is_worth_more_moved_where_gamma_is_small() -> None:
    """The source paper's sum of kept / gamma + moved."""
    results = [
        symconfig.partition(
            model="llama2-7b", cluster="h100", gpus=8, global_batch_size=8, num_microbatches=1, solver="adaptive",
            objective="symtensor", gamma=gamma,
        )
        for gamma in (1e6, 1e-3)
    ]  # fmt: skip
    assert [one.found.gamma for one in results] == [1e6, 1e-3]
    kept, moved = zip(
        *((one.spent.relative * one.found.gamma, one.spent.communication) for one in results), strict=True
    )
    assert kept[1] < kept[0]
    assert moved[1] > moved[0]


def test_what_the_relative_cost_leaves_out_is_said_with_the_seconds_of_its_partition(run: Run) -> None:
    """The seconds are those of the objective time; its own partition takes no longer."""
    job = {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 8, "num_microbatches": 1,
           "recompute": "none", "solver": "adaptive"}  # fmt: skip
    relative, timed = (symconfig.partition(**job, objective=objective) for objective in ("symtensor", "time"))
    notes = " ".join(relative.contents().notes)
    assert float(notes.partition("this partition takes ")[2].partition(" s a step")[0]) >= timed.found.cost * 0.99
    assert not any("relative cost" in note for note in timed.contents().notes)


STAGES = ("partition", "--model", "llama2-7b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "64",
          "--num-microbatches", "32")  # fmt: skip


def test_stages_are_written_and_add_up_to_the_step(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run.done(*MODEL, "--out", tmp_path / "out")
    outcome = run.done(*STAGES, "--stages", "4", "--out", tmp_path / "out", "--force")
    data = json.loads((tmp_path / "out" / "partition.json").read_text())
    stages, solution = data["stages"], data["solution"]
    assert data["schema"] == "symconfig.pipeline/2"
    assert "note: of an earlier partition: placements.py" in outcome.err
    assert f"{solution['step_s']:.3f} s a step in 4 stages, 32 microbatches" in outcome.out
    busy = [(solution["microbatches"] - 1) * one["microbatch_s"] + one["once_s"] for one in stages]
    assert solution["step_s"] == pytest.approx(sum(one["microbatch_s"] for one in stages) + max(busy), rel=1e-9)
    assert sum(one["gpus"] for one in stages) == 8
    assert [one["in_flight"] for one in stages] == [4, 3, 2, 1]
    for one, after in zip(stages, [*stages[1:], None], strict=True):
        names = [operator["name"] for operator in one["partition"]["operators"]]
        assert sum(name.startswith("send ") for name in names) == (after is not None)
        assert one["partition"]["solution"]["memory_bytes"] == pytest.approx(one["memory_bytes"])
        assert one["memory_bytes"] <= solution["memory_limit_bytes"]
    operators = sum(one["operators"]["count"] for one in stages)
    assert operators == run(*STAGES, "--stages", "1", "--json").json()["stages"][0]["operators"]["count"]


def test_a_module_and_a_program_are_cut_into_stages(run: Run, program: Path) -> None:
    words = ("--cluster", "h100", "--gpus", "4", "--num-microbatches", "8", "--stages", "2..4", "--json")
    data = run("partition --program", program, *words).json()
    assert 2 <= len(data["stages"]) <= 3
    pytest.importorskip("torch", reason="modules are traced with torch")
    data = run("partition --module tests.solve.partition.small_modules:rows", *words).json()
    assert 2 <= len(data["stages"]) <= 4


def test_a_pipeline_that_does_not_fit_names_its_fullest_stage_and_what_would_do(run: Run) -> None:
    job = "partition --model llama2-7b --cluster h100 --gpus 4 --global-batch-size 4 --num-microbatches 4 --stages 4"
    said = run.refused(f"{job} --memory-limit 32GiB", code=1)
    assert "no pipeline of 4 stages was found that fits in memory: the fastest holds" in said
    assert "of 32.00 GiB on stage 1 of 4, at 4 microbatches. Try: " in said


TWO = """
schema: symconfig.program/1
name: two
dims: {b: 8, c: 6, u: UNEVEN, h: 4096, f: 16384}
batch: [b, c]
inputs: {x: [b, c, u, h]}
parameters: {up: [h, f]}
operators:
  - y[b,c,u,f] = x[b,c,u,h] * up[h,f]
outputs: [y]
"""
CLUSTER = ("--cluster", "h100", "--gpus", "8", "--solver", "adaptive")


def small_program(folder: Path, batch: str, uneven: str) -> Path:
    """batch: the dims that count examples."""
    path = folder / "two.yaml"
    path.write_text(TWO.replace("UNEVEN", uneven).replace("batch: [b, c]", f"batch: [{batch}]"))
    return path


@pytest.mark.parametrize("solver", ["adaptive", "exact"])
def test_one_gpu_holds_everything_whole(run: Run, tmp_path: Path, solver: str) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text(MESH.replace("SIZE", "1"))
    where = ("--mesh", mesh, "--cluster", "h100", "--solver", solver, "--timeout", "2")
    words = (
        "partition",
        "--program",
        small_program(tmp_path, "b", "4"),
        *where,
        "--baselines",
        "--out",
        tmp_path / "out",
    )
    data = run(*words, "--json").json()
    assert data["mesh"]["gpus"] == 1
    assert data["collectives"] == []


def test_one_gpu_trains_adapters(run: Run) -> None:
    job = "partition --model qwen2.5-7b-lora --cluster h100 --gpus 1 --global-batch-size 8 --solver adaptive"
    assert "on 1 x NVIDIA H100" in run.done(job).out


def test_a_batch_that_is_no_power_of_two_is_cut_by_its_own_divisors(run: Run) -> None:
    job = "partition --model llama2-7b --cluster a100-40gb --gpus 8 --global-batch-size 729 --solver adaptive"
    assert 729 % run.done(f"{job} --json").json()["solution"]["microbatches"] == 0
    said = run.refused(f"{job} --memory-limit 12GiB", code=1)
    assert "with 1, 3, 9, 27, 81, 243 or 729 microbatches" in said


@pytest.mark.parametrize(("batch", "gpus"), [(1, 8), (8, 8), (729, 8), (720, 8), (7919, 8), (2**20, 64), (30030, 7)])
def test_what_is_tried_divides_the_batch_and_holds_the_most_that_gives_every_gpu_an_example(
    batch: int, gpus: int
) -> None:
    every = [turns for turns in range(1, batch + 1) if batch % turns == 0]
    assert divisors(batch) == tuple(every)
    tried = thinned(every, batch // gpus)
    assert list(tried) == sorted(set(tried) & set(every))
    assert len(tried) == min(len(every), 12)
    assert {1, batch} <= set(tried)
    assert max([1, *(turns for turns in every if batch // turns >= gpus)]) in tried


def test_microbatches_that_leave_a_dim_in_pieces_are_not_tried(run: Run, tmp_path: Path) -> None:
    path = small_program(tmp_path, "b", "12 * b / 32")  # 3 where b is 8, 1.5 where it is 4
    run.done("partition --program", path, *CLUSTER)
    said = run.refused("partition --num-microbatches 2 --program", path, *CLUSTER)
    assert "--num-microbatches: leaves a dim of the program that is not whole (got 2, need 1)" in said


@pytest.mark.parametrize("turns", ["3", "16"])
def test_every_dim_that_counts_examples_is_cut(run: Run, tmp_path: Path, turns: str) -> None:
    path = small_program(tmp_path, "b, c", "4")
    said = run.refused("partition --program", path, *CLUSTER, "--num-microbatches", turns)
    assert f"--num-microbatches: does not divide the batch (got {turns}, need 1 or 2, which divide b of 8" in said
    run.done("partition --num-microbatches 2 --program", path, *CLUSTER)


def test_attention_falls_back_where_the_gpu_has_no_kernel(run: Run) -> None:
    job = "partition --model llama3.2-1b --gpus 8 --global-batch-size 8 --solver adaptive --seq-length 512 --json"
    for cluster, words, names in (
        ("h100", (), {"flash_attention"}),
        ("h100", ("--attention", "unfused"), {"scores", "softmax", "context"}),
        ("v100-16gb", (), {"scores", "softmax", "context"}),
    ):
        data = run(job, "--cluster", cluster, *words).json()
        found = {one["name"].rpartition(".")[2] for one in data["operators"]}
        assert found & {"flash_attention", "scores", "softmax", "context"} == names
        assert ("unfused attention" in data["job"]) == (names != {"flash_attention"})


def test_a_file_has_the_options_as_keys_and_options_override_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    two = small_program(tmp_path / "g", "b", "4")
    path = tmp_path / "g" / "job.yaml"
    path.write_text("program: two.yaml\ncluster: h100\ngpus: 8\nsolver: adaptive\nflat: false\npins:\n  y.f: 2\n")
    options = ("--program", two, "--cluster", "h100", "--gpus", "8", "--solver", "adaptive", "--no-flat")
    assert run("partition", path, "--json").json() == run("partition", *options, "--pin", "y.f=2", "--json").json()
    both = run("partition", path, "--gpus", "4", "--pin", "y.b=2", "--json").json()
    assert both["mesh"]["gpus"] == 4
    assert [dim["parts"] for dim in both["operators"][0]["tensors"][-1]["dims"]][0::3] == [
        [{"level": "nvlink", "size": 2}], [{"level": "nvlink", "size": 2}]
    ]  # fmt: skip
    path.write_text("program: two.yaml\ncluster: h100\ngpus: 8\nprecison: bf16\npins: y.f\n")
    wrong = run("partition", path)
    assert wrong.code == 2
    assert f"{path}:4:1: precison: unknown field. Try: precision." in wrong.err
    assert f"{path}:5:7: pins: must hold `NAME: SPLIT` lines" in wrong.err
    path.write_text("program: two.yaml\ncluster: h100\ngpus: 8\nrecompute: some\npins:\n  y.f: 3\n")
    assert f'{path}:4:12: recompute: wrong value (got "some"' in run("partition", path).err
    assert '--recompute: wrong value (got "any"' in run("partition", path, "--recompute", "any").err
    path.write_text("program: two.yaml\ncluster: h100\ngpus: 8\npins:\n  y.f: 3\n")
    assert f"{path}:5:3: pins: f of 16,384 cannot be cut into 3 parts on 8 GPUs" in run("partition", path).err
