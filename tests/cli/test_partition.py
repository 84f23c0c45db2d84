"""`symconfig partition`: what it prints and writes, what it refuses."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import symconfig
from tests.cli.support import Run, run

__all__ = ["run"]

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


def test_it_says_how_each_operator_is_split_what_moves_and_what_is_held(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    outcome = run(*MODEL)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("llama2-7b on 8 x NVIDIA H100")
    for words in (
        "folded into",
        "layers.*.gate_up_proj",
        "How parameters are kept",
        "What moves in a step",
        "In total",
    ):
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
    outcome = run("partition", "--program", program, "--mesh", mesh, "--cluster", "h100", "--solver", "exact", "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.json()
    assert data["mesh"]["gpus"] == 4
    assert data["solution"]["closed"] is True
    brute = run("partition", "--program", program, "--mesh", mesh, "--cluster", "h100", "--num-microbatches", "1",
                "--recompute", "none", "--solver", "exact", "--json").json()  # fmt: skip
    assert brute["solution"]["cost"] >= data["solution"]["cost"] * (1 - 1e-9)


def test_no_flat_leaves_no_weight_in_smaller_parts_than_it_is_used(run: Run, program: Path) -> None:
    data = run("partition", "--program", program, *SMALL, "--no-flat", "--json").json()
    assert all(set(parameter["zero"].values()) == {0} for parameter in data["parameters"])


def test_a_pin_is_kept_and_one_that_cannot_be_is_refused_with_what_can(run: Run) -> None:
    outcome = run(*MODEL, "--pin", "layers.*.down_proj=B/2, F/4", "--pin", "layers.*.gate.F=4", "--json")
    data = json.loads(outcome.out)
    (mine,) = [one for one in data["operators"] if one["name"] == "layers.0.down_proj"]
    split = {one["option"]: one["parts"] for one in mine["does"]}
    assert split == {"batch": [{"level": "nvlink", "size": 2}], "intermediate_size": [{"level": "nvlink", "size": 4}]}
    assert "pinned layers.*.down_proj=B/2, F/4, pinned layers.*.gate.F=4" in data["job"]
    wrong = run(*MODEL, "--pin", "layers.*.down=F/4", "--pin", "layers.*.gate.C=2")
    assert wrong.code == 2
    assert "--pin: there is no such operator (got layers.*.down). Try: layers.*.down_proj" in wrong.err
    assert "layers.*.gate has no such dim (got C, need batch or sequence or intermediate_size)" in wrong.err
    few = run(*MODEL, "--pin", "layers.*.gate.F=5")
    assert "cannot be cut into 5 parts on 8 GPUs (got layers.*.gate.F=5, need 1, 2, 4 or 8)" in few.err


def test_one_operator_is_explained_in_full_and_another_name_is_refused_with_those_near(run: Run) -> None:
    outcome = run(*MODEL, "--explain", "layers.*.down_proj")
    assert outcome.code == 0
    assert "What moves in a step" in outcome.out
    assert "In total" not in outcome.out
    assert run(*MODEL, "--explain", "layers.7.down_proj").out == run(*MODEL, "--explain", "layers.*.down_proj").out
    wrong = run(*MODEL, "--explain", "down_proj")
    assert wrong.code == 2
    assert "Try: layers.*.down_proj" in wrong.err


def test_everything_that_is_wrong_is_said_at_once(run: Run) -> None:
    outcome = run(
        "partition", "--model", "llama2-7b", "--program", "x.yaml", "--cluster", "h100", "--gpus", "0",
        "--solver", "best", "--objective", "speed", "--recompute", "some", "--memory-limit", "lots",
        "--timeout", "soon",
        "--num-microbatches", "-1",
    )  # fmt: skip
    assert outcome.code == 2
    for option in (
        "--model", "--gpus", "--solver", "--objective", "--recompute", "--memory-limit", "--timeout",
        "--num-microbatches",
    ):  # fmt: skip
        assert f"{option}: " in outcome.err, option
    assert outcome.err.count("error:") == 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "llama2-7b", "--gpus", "8", "--global-batch-size", "8"), "--cluster: this option is missing"),
        (("--model", "llama2-7b", "--cluster", "h100", "--global-batch-size", "8"), "--gpus: this option is missing"),
        (("--model", "llama2-7b", "--cluster", "h100", "--gpus", "8"), "--global-batch-size: this option is missing"),
        (("--cluster", "h100", "--gpus", "8"), "is given once (got none"),
        (("--program", "gpt3-1.3b", "--seq-length", "4", "--cluster", "h100", "--gpus", "8"), "states its own sizes"),
        (("--model", "llama2-7b", "--cluster", "h100", "--gpus", "12", "--global-batch-size", "8"), "whole domains"),
        (
            (*MODEL[1:], "--num-microbatches", "3"),
            "--num-microbatches: does not divide the batch (got 3, need a divisor of the global batch of 8)",
        ),
    ],
)
def test_what_is_missing_or_does_not_agree_is_refused(run: Run, words: tuple[str, ...], said: str) -> None:
    outcome = run("partition", *words)
    assert outcome.code == 2
    assert said in outcome.err


def test_a_mesh_level_of_no_size_is_refused_with_its_place(run: Run, program: Path, tmp_path: Path) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text(MESH.replace("SIZE", "0"))
    outcome = run("partition", "--program", program, "--mesh", mesh, "--cluster", "h100")
    assert outcome.code == 2
    assert "mesh.yaml:4" in outcome.err


def test_where_nothing_fits_it_names_what_binds_and_the_mesh_that_would_do(run: Run) -> None:
    outcome = run(*MODEL, "--memory-limit", "10GiB")
    assert outcome.code == 1
    assert "no partition was found that fits in memory" in outcome.err
    assert "most of it is weight layers.*.mlp.gate_up_proj.weight" in outcome.err
    gpus = int(outcome.err.split("Try: ")[1].split()[0].replace(",", ""))
    assert gpus % 8 == 0
    larger = [str(gpus) if word == "8" and before == "--gpus" else word for before, word in zip(("", *MODEL), MODEL)]  # noqa: B905
    assert run(*larger, "--memory-limit", "10GiB").code == 0


def test_files_are_written_whole_or_not_at_all(run: Run, program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("partition", "--program", program, *SMALL)
    outcome = run(*words, "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads((out / "partition.json").read_text()) == outcome.json()
    ast.parse((out / "placements.py").read_text())
    again = run(*words, "--out", out)
    assert again.code == 2
    assert again.err.count("exists already") == 1
    assert run(*words, "--out", out, "--force").code == 0


def test_a_gpu_without_bf16_is_partitioned_in_fp16(run: Run) -> None:
    args = ("partition", "--model", "llama2-7b", "--cluster", "v100-16gb", "--gpus", "32", "--solver", "adaptive")
    outcome = run(*args, "--global-batch-size", "32")
    assert outcome.code == 0, outcome.err
    assert "4,096 tokens, fp16, unfused attention\n" in outcome.out


def test_less_kept_is_worth_more_moved_where_gamma_is_small() -> None:
    """The source paper's sum of kept / gamma + moved."""
    found = [
        symconfig.partition(
            model="llama2-7b", cluster="h100", gpus=8, global_batch_size=8, num_microbatches=1, solver="adaptive",
            objective="symtensor", gamma=gamma,
        ).found
        for gamma in (1e6, 1e-3)
    ]  # fmt: skip
    assert [one.gamma for one in found] == [1e6, 1e-3]
    assert found[1].memory < found[0].memory


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--precision", "fp8"), "--precision: the tensor solver prices matmuls in 16 bits"),
        (("--precision", "half"), "--precision: wrong value (got \"half\", need 'auto', 'bf16' or 'fp16')"),
        (("--cluster", "v100-16gb", "--precision", "bf16"), "has no bf16 (got bf16, need fp16)"),
        (("--gamma", "2"), "--gamma: only the objective symtensor has a gamma"),
        (
            ("--objective", "symtensor", "--gamma", "0"),
            "--gamma: out of range (got 0.0, need > 0.0)",
        ),
        (
            ("--objective", "symtensor", "--gamma", "inf"),
            "--gamma: wrong value (got inf, need a finite number)",
        ),
    ],
)
def test_a_precision_or_a_gamma_that_cannot_be_is_refused(run: Run, options: tuple[str, ...], said: str) -> None:
    outcome = run(*MODEL, *options)
    assert outcome.code == 2
    assert said in outcome.err


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


def test_stages_are_shown_written_and_add_up_to_the_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run(*MODEL, "--out", tmp_path / "out").code == 0
    outcome = run(*STAGES, "--stages", "4", "--out", tmp_path / "out", "--force")
    assert outcome.code == 0, outcome.err
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
    data = run("partition", "--program", program, *words).json()
    assert 2 <= len(data["stages"]) <= 3
    pytest.importorskip("torch", reason="modules are traced with torch")
    data = run("partition", "--module", "tests.solve.partition.small_modules:rows", *words).json()
    assert 2 <= len(data["stages"]) <= 4


def test_a_pipeline_that_does_not_fit_names_its_fullest_stage_and_what_would_do(run: Run) -> None:
    job = ("partition", "--model", "llama2-7b", "--cluster", "h100", "--gpus", "4", "--global-batch-size", "4")
    outcome = run(*job, "--num-microbatches", "4", "--stages", "4", "--memory-limit", "32GiB")
    assert outcome.code == 1
    assert "no pipeline of 4 stages was found that fits in memory: the fastest holds" in outcome.err
    assert "of 32.00 GiB on stage 1 of 4, at 4 microbatches. Try: " in outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0",), "--stages: wrong value (got 0, need a number of stages or a range as 2..8, from 1 to the 8 GPUs)"),
        (("9",), "--stages: wrong value"),
        (("2..x",), "--stages: wrong value"),
        (("2", "--objective", "symtensor"), "--stages: a pipeline is a matter of seconds"),
        (("2", "--baselines"), "--baselines: cannot be had of a pipeline"),
    ],
)
def test_stages_that_cannot_be_are_refused(run: Run, words: tuple[str, ...], said: str) -> None:
    outcome = run(*STAGES, "--stages", *words)
    assert outcome.code == 2
    assert said in outcome.err
