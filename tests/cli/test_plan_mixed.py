"""`symconfig plan` on two kinds of GPUs: its answer and its files."""

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
from tests.render.bash import shellcheck

NAME = "h100*16 + a100-80gb*16"
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
    predicted = result.best.candidate.predicted
    assert sum(predicted.time.values()) == pytest.approx(predicted.step_s, rel=1e-9)
    assert predicted.tokens_per_s_per_gpu == pytest.approx(64 * 4096 / predicted.step_s / 32, rel=1e-9)


def test_what_either_kind_does_alone_is_its_own_plan(result: MixedResult) -> None:
    for each in result.plan.alone:
        alone = symconfig.plan("llama2-13b", each.share.cluster.name, 16, 64, pins={"recompute": "none"}, top=1)
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
    assert split.chunks == result.best.candidate.chunks
    assert f"--pipeline-model-parallel-layout '{layout}'" in one.replace('"', "'") or layout in one
    for script in (folder / "launch.sh", *(folder / kind / "launch.sh" for kind in kinds)):
        assert shellcheck(script) == ""


def test_a_node_is_told_by_its_rank(folder: Path) -> None:
    def started(**environment: str) -> subprocess.CompletedProcess[str]:
        known = {"PATH": "/usr/bin:/bin", "DRY_RUN": "1", "MASTER_ADDR": "first", **environment}
        command = ["bash", str(folder / "launch.sh"), "--exit-interval", "5"]
        return subprocess.run(command, env=known, capture_output=True, text=True, check=False)

    said = [started(NODE_RANK=str(rank)) for rank in range(4)]
    assert [each.returncode for each in said] == [0] * 4
    words = [each.stdout.splitlines() for each in said]
    assert [each[each.index("--node-rank") + 1] for each in words] == ["0", "1", "2", "3"]
    assert {each[each.index("--nnodes") + 1] for each in words} == {"4"}
    assert len({tuple(each[each.index("--master-port") :]) for each in words}) == 1
    assert words[3][-2:] == ["--exit-interval", "5"]
    unknown = started()
    assert (unknown.returncode, "0 to 1 are" in unknown.stderr) == (2, True)
    assert "the plan is for 4 nodes, got NODE_RANK 4" in started(NODE_RANK="4").stderr
    assert "Ranks follow the pipeline" in (folder / "REPORT.md").read_text()
