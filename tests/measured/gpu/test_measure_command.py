"""`symconfig measure DIR`: what a person reads without a GPU, with wrong options, and when the process dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symconfig.measured.gpu import measure as room
from symconfig.measured.gpu import session
from symconfig.measured.gpu.rank import choose
from symconfig.measured.gpu.session import Taken
from symconfig.verify.megatron_session import Job
from symconfig.verify.megatron_source import MegatronSource
from tests.cli.support import Run, run
from tests.measured.gpu.support import answered, small_folder

__all__ = ["run"]
NO_GPU = Taken(no_gpu="PyTorch 2.13.0, built for CUDA 13.0, finds no GPU")
HERE = MegatronSource(Path("/opt/megatron"), "0.19.2", "a checkout", chosen=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small plan, with Megatron said to be there and no GPU."""
    small_folder(tmp_path / "out", tp=1, pp=2, dp=2)
    monkeypatch.setattr(room, "ready", lambda plan, named: HERE)
    monkeypatch.setattr(room, "take", lambda *args: NO_GPU)
    return tmp_path / "out"


def test_without_a_gpu_it_says_what_would_run(run: Run, folder: Path) -> None:
    ended = run("measure", folder, "--rank", "3")
    assert ended.code == 1
    assert "Rank 3 of 4 (pp 2, dp 2, micro-batch 1): pipeline stage 1 of 2 (from 0), 2 layers, the head" in ended.out
    assert "GiB of a GPU" in ended.out
    assert ended.err.startswith("error: nothing is measured: PyTorch 2.13.0, built for CUDA 13.0, finds no GPU.")


def test_without_a_gpu_the_json_has_the_prediction(run: Run, folder: Path) -> None:
    ended = run("measure", folder, "--json")
    assert ended.code == 1
    answer = ended.json()
    assert answer["schema"] == "symconfig.measure/1"
    assert answer["measured"]["peak_bytes"] is None
    assert answer["predicted"]["peak_bytes"] > 0
    assert answer["remarks"] == ["Nothing is measured: PyTorch 2.13.0, built for CUDA 13.0, finds no GPU."]


def test_a_gpus_answer_is_shown_beside_the_prediction_and_written(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from symconfig.plans.file import load_plan

    args: dict[str, Any] = {"num_layers": 4, "hidden_size": 64, "bf16": True, "transformer_impl": "local"}
    taken = answered(load_plan(folder), args).taken
    monkeypatch.setattr(room, "take", lambda *rest: taken)
    ended = run("measure", folder, "--out", tmp_path / "mine.yaml")
    assert ended.code == 0
    assert "NVIDIA A100, PyTorch 2.13.0" in ended.out
    assert "0.909" in ended.out  # predicted over measured
    assert (tmp_path / "mine.yaml").read_text().startswith("schema: symconfig.measurements/1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rank", "4"], "--rank: the plan has no such rank (got 4, need 0 to 3, or heaviest)."),
        (["--steps", "0"], "--steps: out of range (got 0"),
        (["--device", "cpu", "--out", "mine.yaml"], "--out: the seconds of a CPU are no measurement of a plan's GPU."),
        (["--out", "mine.txt"], "--out: this file is YAML"),
        (["--timeout", "soon"], "--timeout: wrong value (got soon, need seconds from 1 to 86400)."),
        (["--budget", "nonsense"], "--budget: says something of kernels, and of a rank it says nothing."),
        (["--times", "x.yaml"], "--times: says something of kernels"),
        (["--transformer-impl", "te"], "--transformer-impl: wrong value (got te"),
    ],
)
def test_wrong_options_end_with_2(run: Run, folder: Path, words: list[str], said: str) -> None:
    ended = run("measure", folder, *words)
    assert ended.code == 2
    assert said in ended.err


def test_no_folder_and_no_plan(run: Run, tmp_path: Path) -> None:
    assert run("measure").err.startswith("error: DIR: needs the folder of a plan.")
    assert "there is no plan.json in this folder" in run("measure", tmp_path).err


def test_a_process_that_dies_is_told_with_its_last_lines(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys\nprint('{\"doing\": \"building the rank\"}')\nprint('no room', file=sys.stderr)\n"
        "sys.stdin.read()\nsys.exit(3)\n"
    )
    monkeypatch.setattr(session, "WORKER", worker)
    monkeypatch.setattr(room, "take", session.take)
    ended = run("measure", folder)
    assert ended.code == 1
    assert "ended with status 3 while building the rank; its last lines: no room" in ended.err


def test_a_misspelt_flag_is_told_with_the_file_and_megatrons_own_words(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, sys\nprint('error: unrecognized arguments: --seq-lenght', file=sys.stderr)\n"
        "sys.stdin.read()\nphase = {'name': 'parse_args', 'ok': False, 'seconds': 0.0,\n"
        "         'error': 'exits with status 2'}\nprint(json.dumps({'result': {'phases': [phase]}}))\n"
    )
    monkeypatch.setattr(session, "WORKER", worker)
    monkeypatch.setattr(room, "take", session.take)
    path = folder / "megatron_args.txt"
    path.write_text(path.read_text().replace("--seq-length 64", "--seq-lenght 64"))
    ended = run("measure", folder)
    assert ended.code == 1
    assert (
        "megatron_args.txt: Megatron 0.19.2 refuses: parse_args: exits with status 2; error: unrecognized "
        "arguments: --seq-lenght. megatron_args.txt is not what the plan renders: --seq-lenght 64 (rendered: no "
        "--seq-lenght), no --seq-length (rendered: --seq-length 64)."
    ) in ended.err


def test_without_its_launcher_nothing_is_run(run: Run, folder: Path) -> None:
    (folder / "launch.sh").write_text("exit 3\n")
    ended = run("measure", folder)
    assert ended.code == 2
    assert "launch.sh: ends with status 3 under DRY_RUN=1" in ended.err


def test_a_process_that_hangs_is_ended(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from symconfig.plans.file import load_plan

    worker = tmp_path / "worker.py"
    worker.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(session, "WORKER", worker)
    plan = load_plan(folder)
    taken = session.take(HERE, Job("x", (), 4), choose(plan, "0", "3", None, "cpu"), lambda text: None, silence_s=1.0)
    assert taken.crash == "said nothing for 1 s while starting"


def test_a_rank_that_this_machine_cannot_hold_is_not_tried(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_host_bytes", lambda: 1e6)
    ended = run("measure", folder, "--device", "cpu")
    assert ended.code == 2
    assert "--device: the rank needs 0.0 GiB, and this machine has 0.0 GiB" in ended.err


def test_a_plan_for_another_gpu_is_predicted_for_the_one_that_is_named(run: Run, folder: Path) -> None:
    assert run("measure", folder, "--json", "--cluster", "h100").json()["cluster"] == "h100"
    assert "--cluster" in run("measure", folder, "--cluster", "h1000").err
