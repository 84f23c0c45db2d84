"""`symconfig partition` where something is least or does not divide: one GPU, odd batches, two batch dims."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.api.graph_source import divisors, thinned
from tests.cli.support import Run
from tests.cli.test_partition import MESH

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


def program(folder: Path, batch: str, uneven: str) -> Path:
    """batch: the dims that count examples."""
    path = folder / "two.yaml"
    path.write_text(TWO.replace("UNEVEN", uneven).replace("batch: [b, c]", f"batch: [{batch}]"))
    return path


@pytest.mark.parametrize("solver", ["adaptive", "exact"])
def test_one_gpu_holds_everything_whole(run: Run, tmp_path: Path, solver: str) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text(MESH.replace("SIZE", "1"))
    where = ("--mesh", mesh, "--cluster", "h100", "--solver", solver, "--timeout", "2")
    words = ("partition", "--program", program(tmp_path, "b", "4"), *where, "--baselines", "--out", tmp_path / "out")
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
    path = program(tmp_path, "b", "12 * b / 32")  # 3 where b is 8, 1.5 where it is 4
    run.done("partition --program", path, *CLUSTER)
    said = run.refused("partition --num-microbatches 2 --program", path, *CLUSTER)
    assert "--num-microbatches: leaves a dim of the program that is not whole (got 2, need 1)" in said


@pytest.mark.parametrize("turns", ["3", "16"])
def test_every_dim_that_counts_examples_is_cut(run: Run, tmp_path: Path, turns: str) -> None:
    path = program(tmp_path, "b, c", "4")
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
    two = program(tmp_path / "g", "b", "4")
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
