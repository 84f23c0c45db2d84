"""`symconfig plan` on two kinds of GPUs: its answer, its files, and what it says no to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import symconfig
from symconfig.api.mixed import MixedResult
from symconfig.descriptor.load import load_model
from symconfig.graph.model import sequence
from symconfig.report.grid import plain
from symconfig.report.mixed import blocks
from symconfig.solve.split import laid_out
from tests.cli.support import Run
from tests.cli.support import run as run
from tests.render.bash import shellcheck

NAME = "h100*16 + a100-80gb*16"
JOB = ("--model", "llama2-13b", "--global-batch-size", "64", "--cluster", NAME, "--gpus", "32")
PINS = {"tp": "1", "pp": "4", "mbs": "1", "recompute": "none"}


@pytest.fixture(scope="module")
def result() -> MixedResult:
    return symconfig.plan_mixed("llama2-13b", NAME, 64, pins=PINS, top=3)


@pytest.fixture(scope="module")
def folder(result: MixedResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "out"
    result.write(out)
    return out


def test_each_kind_hosts_a_run_of_stages_and_the_slower_one_has_fewer_layers(result: MixedResult) -> None:
    one, other = result.best.hosts
    assert (one.stages.first, one.stages.last, other.stages.first, other.stages.last) == (0, 1, 2, 3)
    assert (one.nodes.text, other.nodes.text) == ("0 to 1", "2 to 3")
    by_name = {host.share.cluster.name: host for host in result.best.hosts}
    assert sum(by_name["h100"].layers) > 2 * sum(by_name["a100-80gb"].layers)
    assert sum(one.layers) + sum(other.layers) == 40
    for host in result.best.hosts:
        assert host.predicted.device_bytes <= host.usable_bytes
    candidate = result.best.candidate
    assert sum(candidate.predicted.time.values()) == pytest.approx(candidate.predicted.step_s, rel=1e-9)
    tokens = 64 * 4096 / candidate.predicted.step_s
    assert candidate.predicted.tokens_per_s_per_gpu == pytest.approx(tokens / 32, rel=1e-9)


def test_what_either_kind_does_alone_is_its_own_plan(result: MixedResult) -> None:
    for each in result.plan.alone:
        alone = symconfig.plan("llama2-13b", each.share.cluster.name, 16, 64, pins={"recompute": "none"}, top=1)
        assert each.best is not None
        assert each.best.predicted.step_s == alone.plan.fastest.predicted.step_s
    h100, a100 = (each.best.predicted.step_s for each in result.plan.alone if each.best is not None)
    assert result.plan.gain == pytest.approx(min(h100, a100) / result.best.candidate.predicted.step_s)
    assert result.plan.pays == (h100 > result.best.candidate.predicted.step_s)


def test_that_it_does_not_pay_is_said() -> None:
    slow = symconfig.plan_mixed("llama2-13b", f"{NAME} over 100Mb/s", 64, pins=PINS, top=1)
    assert not slow.plan.pays
    assert "It does not pay: h100 alone is" in plain(blocks(slow.plan))


def test_the_files_start_every_node_with_its_own_kind(result: MixedResult, folder: Path) -> None:
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kinds = ("stages-0-1", "stages-2-3")
    own = {f"{kind}/{name}" for kind in kinds for name in ("launch.sh", "megatron_args.txt")}
    assert paths == {"launch.sh", "REPORT.md", "mixed.json", "manifest.json", *own}
    assert json.loads((folder / "mixed.json").read_text()) == json.loads(result.to_json())
    one, other = ((folder / kind / "megatron_args.txt").read_text() for kind in kinds)
    assert one == other
    layout = result.best.candidate.configuration.pipeline_layout
    assert layout is not None
    split = laid_out(sequence(load_model("llama2-13b")), 4, layout)
    assert split is not None
    assert split.chunks == result.best.candidate.chunks
    assert f"--pipeline-model-parallel-layout '{layout}'" in one.replace('"', "'") or layout in one
    for script in (folder / "launch.sh", *(folder / kind / "launch.sh" for kind in kinds)):
        assert shellcheck(script) == ""


def started(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {"PATH": "/usr/bin:/bin", "DRY_RUN": "1", "MASTER_ADDR": "first", **environment}
    return subprocess.run(
        ["bash", str(folder / "launch.sh"), "--exit-interval", "5"],
        env=known,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_node_is_told_by_its_rank(folder: Path) -> None:
    said = [started(folder, NODE_RANK=str(rank)) for rank in range(4)]
    assert [each.returncode for each in said] == [0] * 4
    words = [each.stdout.splitlines() for each in said]
    assert [each[each.index("--node-rank") + 1] for each in words] == ["0", "1", "2", "3"]
    assert {each[each.index("--nnodes") + 1] for each in words} == {"4"}
    assert {tuple(each[each.index("--master-port") :]) for each in words} == {
        tuple(words[0][words[0].index("--master-port") :])
    }
    assert words[3][-2:] == ["--exit-interval", "5"]
    unknown = started(folder)
    assert (unknown.returncode, "0 to 1 are" in unknown.stderr) == (2, True)
    assert "the plan is for 4 nodes, got NODE_RANK 4" in started(folder, NODE_RANK="4").stderr
    report = (folder / "REPORT.md").read_text()
    assert "Ranks follow the pipeline" in report


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "16"), "--gpus: must be the GPUs of both kinds together (got 16, need 32)"),
        (("--backend", "deepspeed"), "--backend: only Megatron-LM's pipelines go over two kinds of GPUs"),
        (("--target", "transformers"), "--target: only Megatron-LM's pipelines go over two kinds of GPUs"),
        (("--model", "qwen2.5-7b-lora"), "--target: only Megatron-LM's pipelines go over two kinds of GPUs"),
        (("--launcher", "slurm"), "--launcher: is not written for two kinds of GPUs"),
        (("--set", "network=4x200Gb/s"), "--cluster: cannot stand behind two kinds"),
        (("--cluster", "h100*12 + a100-80gb*16"), "--cluster: h100 does not fill whole nodes"),
    ],
)
def test_what_two_kinds_do_not_have_is_a_sentence(run: Run, words: tuple[str, ...], said: str) -> None:
    ended = run("plan", *JOB, *words)
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("error:") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("partition", *JOB),
        ("audit", "args.txt", "--cluster", NAME, "--gpus", "32"),
        ("size", "llama2-13b", "--clusters", NAME, "--tokens", "2T", "--deadline", "30d"),
        ("list", "clusters", NAME),
    ],
)
def test_other_commands_say_that_they_take_one_kind(run: Run, words: tuple[str, ...], tmp_path: Path) -> None:
    arguments = tmp_path / "args.txt"
    arguments.write_text("--num-layers 4 --hidden-size 64")
    ended = run(*(str(arguments) if word == "args.txt" else word for word in words))
    assert ended.code == 2
    assert "has two kinds of GPUs, and only symconfig plan takes such a cluster" in ended.err


@pytest.mark.parametrize("command", ["explain", "replan", "whatif"])
def test_what_reads_plans_says_that_it_is_none(run: Run, command: str, folder: Path) -> None:
    more = ("--vary", "global_batch_size=64..128") if command == "whatif" else ()
    ended = run(command, folder / "mixed.json", *more)
    assert ended.code == 2
    assert "is not a plan of symconfig (got symconfig.mixed/1" in ended.err
