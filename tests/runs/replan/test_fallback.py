"""Plans for fewer nodes: what they are, what is said where there is none, and the script that takes one of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

import symconfig
from symconfig.api.replan import FallbackResult
from symconfig.cli.main import main
from symconfig.errors import InputError
from symconfig.plans.history import History, Segment
from symconfig.plans.plan import Plan
from symconfig.render import shared
from symconfig.report.grid import plain
from symconfig.runs.checkpoint.loadable import loadable, savings
from tests.render.bash import bash, shellcheck, words
from tests.sample_plans import sample_plan

# On four nodes of eight GPUs; no split of 24 GPUs by tp 8 divides 32 sequences.
JOB = {"model": "llama2-7b", "cluster": "a100-80gb", "gpus": 32, "global_batch_size": 32,
       "pins": {"tp": 8, "pp": 1, "zero": 1}}  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return symconfig.plan(**JOB, top=1).plan


@pytest.fixture(scope="module")
def result(plan: Plan) -> FallbackResult:
    return symconfig.replan_lost_nodes(plan, (1, 3), top=1)


@pytest.fixture(scope="module")
def folder(result: FallbackResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fallback") / "out"
    result.write(out, launchers=["slurm:partition=big", "trainjob"])
    return out


def test_what_the_run_did_before_stays_with_its_smaller_plans(plan: Plan) -> None:
    taken_over = replace(plan, history=History((Segment(10, 640, 4096),)))
    smaller = symconfig.replan_lost_nodes(taken_over, 3, top=1).fallback.smaller[0].plan
    assert smaller.history == taken_over.history


def test_each_is_the_plan_of_the_same_job_on_fewer_gpus(plan: Plan, result: FallbackResult) -> None:
    found = result.fallback
    assert [(each.lost, each.nodes, each.gpus, each.plan is None) for each in found.smaller] == [
        (1, 3, 24, True),
        (2, 2, 16, False),
        (3, 1, 8, False),
    ]
    for each in found.smaller[1:]:
        asked = symconfig.plan(**{**JOB, "gpus": each.gpus}, top=1).plan
        assert each.plan.to_json() == asked.to_json()
        assert each.plan.best.configuration.global_batch == plan.best.configuration.global_batch
        assert each.loads == loadable(plan, each.plan)
    assert [count for count, _ in found.runs] == [4, 2, 1]


def test_what_is_lost_is_told_against_the_nodes_that_are_left(plan: Plan, result: FallbackResult) -> None:
    two = result.fallback.smaller[1]
    assert two.plan is not None
    speeds = [
        each.best.predicted.tokens_per_s_per_gpu * each.best.configuration.world_size for each in (two.plan, plan)
    ]
    assert result.fallback.share(two) == pytest.approx(speeds[0] / (speeds[1] * 2 / 4))
    said = result.to_dict()["smaller"][1]
    assert (said["share_of_proportional"], said["tokens_per_s"]) == (result.fallback.share(two), speeds[0])


def test_where_nothing_fits_the_reason_is_said(result: FallbackResult) -> None:
    from symconfig.report.checkpoint import blocks

    shown = plain(blocks(result.fallback))
    assert "1 nodes" not in shown
    assert "No plan for 3 nodes (24 GPUs):\n- " in shown
    three = result.to_dict()["smaller"][0]
    assert (three["folder"], three["share_of_proportional"], three["loadable"]) == (None, None, None)
    assert three["problems"][0]["what"] in shown


@pytest.mark.parametrize(("lost", "said"), [((1, 4), "need 1 to 3"), ((0, 1), "need 1 to 3"), ((2, 1), "got none")])
def test_more_nodes_than_there_are_cannot_be_lost(plan: Plan, lost: tuple[int, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        symconfig.replan_lost_nodes(plan, lost)


def test_one_node_has_none_to_lose() -> None:
    with pytest.raises(InputError, match="a plan of one node has none to lose"):
        symconfig.replan_lost_nodes(sample_plan(tp=1, pp=1, dp=8), 1)


def test_every_folder_is_what_its_plan_alone_would_be_given(result: FallbackResult, folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "launch.sh", "sbatch.sh", "fallback.json", "manifest.json", "nodes-4", "nodes-2", "nodes-1",
    }  # fmt: skip
    for count, plan in result.fallback.runs:
        assert (folder / f"nodes-{count}" / "plan.json").read_text() == plan.to_json()
        assert (folder / f"nodes-{count}" / "manifest.json").exists()
        assert (folder / f"nodes-{count}" / "trainjob.yaml").exists()
        assert shared.nodes(plan) == shared.Nodes(count, 8)
    assert json.loads((folder / "fallback.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    for script in ("launch.sh", "sbatch.sh"):
        assert shellcheck(folder / script) == ""


@pytest.mark.parametrize(
    ("env", "nodes"),
    [
        ({}, 4),
        ({"NNODES": "4"}, 4),
        ({"NNODES": "3"}, 2),
        ({"NNODES": "2"}, 2),
        ({"NNODES": "1"}, 1),
        ({"NNODES": "9"}, 4),
        ({"NNODES": "08"}, 4),
        ({"SLURM_JOB_NUM_NODES": "3"}, 2),
        ({"PET_NNODES": "1"}, 1),
        ({"PET_NNODES": "2:2"}, 2),
        ({"NNODES": "1", "SLURM_JOB_NUM_NODES": "4", "PET_NNODES": "4"}, 1),
    ],
)
def test_the_script_takes_the_largest_plan_for_what_it_finds(folder: Path, env: dict[str, str], nodes: int) -> None:
    done = bash(folder / "launch.sh", "--x", "a b", cwd=folder, DRY_RUN="1", **env)
    assert done.returncode == 0, done.stderr
    alone = bash(folder / f"nodes-{nodes}" / "launch.sh", "--x", "a b", cwd=folder, DRY_RUN="1")
    assert done.stdout == alone.stdout
    shown = words(done.stdout)
    assert shown[shown.index("--nnodes") + 1] == str(nodes)
    assert f"starting nodes-{nodes}" in done.stderr.decode()


def test_a_hostfile_says_how_many_nodes_there_are(folder: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "hostfile"
    for text, nodes in (("# mine\na slots=8\n\n  b\nc slots=8\n", 2), ("a slots=8", 1)):
        hosts.write_text(text)
        for env in ({}, {"HOSTFILE": str(hosts)}):
            done = bash(folder / "launch.sh", cwd=tmp_path if not env else folder, DRY_RUN="1", **env)
            assert f"starting nodes-{nodes}\n" in done.stderr.decode()
    hosts.write_text("# nobody\n")
    assert bash(folder / "launch.sh", cwd=tmp_path, DRY_RUN="1").returncode == 2


@pytest.mark.parametrize(
    ("env", "code", "said"),
    [
        ({"NNODES": "3", "NODE_RANK": "2"}, 0, "node 2 has nothing to do: of 3 nodes the plan takes 2"),
        ({"SLURM_JOB_NUM_NODES": "5", "SLURM_NODEID": "4"}, 0, "node 4 has nothing to do: of 5 nodes the plan takes 4"),
        ({"NNODES": "0"}, 2, "there are plans for 4 2 1 nodes, found 0"),
        ({"PET_NNODES": "2:4"}, 2, "'2:4' does not say how many nodes there are"),
        ({"NNODES": "two"}, 2, "must be a whole number, got 'two'"),
        ({"NODE_RANK": "a[$(touch PWNED)]"}, 2, "rank must be a whole number"),
        ({"NNODES": "3", "NODE_RANK": "1"}, 2, "MASTER_ADDR must name the first of the 2 nodes"),
    ],
)
def test_nodes_too_many_end_well_and_too_few_with_a_sentence(
    folder: Path, env: dict[str, str], code: int, said: str
) -> None:
    done = bash(folder / "launch.sh", cwd=folder, **env)
    assert (done.returncode, said in done.stderr.decode()) == (code, True), done.stderr
    assert not (folder / "PWNED").exists()


def test_slurm_is_asked_for_a_range_and_starts_all_that_it_gave(folder: Path, tmp_path: Path) -> None:
    text = (folder / "sbatch.sh").read_text()
    assert "#SBATCH --nodes=1-4\n" in text
    assert "#SBATCH --ntasks" not in text  # Slurm would then give the fewest nodes
    assert "#SBATCH --partition=big\n" in text
    for name, does in {"scontrol": "echo node-a; echo node-b", "srun": 'echo "$MASTER_ADDR" "$NNODES" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    done = bash(
        folder / "sbatch.sh",
        cwd=folder,
        SLURM_JOB_NODELIST="node-[a-c]",
        SLURM_JOB_NUM_NODES="3",
        PATH=f"{tmp_path}:{os.environ['PATH']}",
    )
    assert done.stdout.decode().split() == [
        "node-a", "3", "--nodes=3", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "bash", "./launch.sh",
    ]  # fmt: skip


def test_the_command_says_it_writes_it_and_fails_where_nothing_fits(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())
    out = tmp_path / "out"
    assert main(["replan", str(tmp_path), "--lose-nodes", "2", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], [each["nodes"] for each in said["smaller"]]) == ("symconfig.fallback/1", [2])
    assert json.loads((out / "fallback.json").read_text()) == said
    assert main(["replan", str(tmp_path), "--lose-nodes", "1"]) == 1
    assert "No plan for 3 nodes" in capsys.readouterr().out
    assert main(["replan", str(tmp_path), "--lose-nodes", "4"]) == 2
    assert "--lose-nodes: cannot lose so many of " in capsys.readouterr().err
    wrong = ["replan", str(tmp_path / "none"), "--lose-nodes", "4..1", "--out", str(out), "--launcher", "slurmy"]
    assert main(wrong) == 2
    told = capsys.readouterr().err
    said = ("--lose-nodes: wrong value", "exists already", "no such file", "is not a launcher")
    assert all(sentence in told for sentence in said)


def test_another_target_of_the_files_is_no_other_plan(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())
    words = ["replan", str(tmp_path), "--lose-nodes", "2", "--target", "bridge", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "made again" not in capsys.readouterr().err
    assert (tmp_path / "out/nodes-4/plan.json").read_text() == plan.to_json()
    assert main([*words[:4], "--release", "tp", "--html", "page.html"]) == 2
    told = capsys.readouterr().err
    assert all(f"{option}: is not for --lose-nodes" in told for option in ("--release", "--html"))


def test_a_whole_folder_or_none(result: FallbackResult, folder: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    with pytest.raises(InputError, match="exists already"):
        result.write(folder)
    result.write(folder, force=True, launchers=["slurm:partition=big", "trainjob"])
    assert before == {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def grids() -> FallbackResult:
    """With one node there is a single replica."""
    pins = {"tp": 4, "pp": 2}
    plan = symconfig.plan("qwen2.5-7b", "h100", gpus=16, global_batch_size=64, pins=pins, top=1).plan
    return symconfig.replan_lost_nodes(plan, 1, top=1)


def test_the_large_run_is_told_how_to_save_and_what_that_costs(grids: FallbackResult, tmp_path: Path) -> None:
    from symconfig.report.checkpoint import blocks

    found = grids.fallback
    (one,) = found.smaller
    option, kind = "--dist-ckpt-optim-fully-reshardable", "torch_dist:fully_reshardable"
    assert (found.advised.options, found.advised.kind) == (option, kind)
    assert one.plan is not None
    advisedly = loadable(found.plan, one.plan, kind)
    assert found.advisedly(one) == advisedly
    assert advisedly.verdict.unconverted
    shown = plain(blocks(found))
    assert f"with {option}, from its first save on: then every plan here goes on" in shown
    assert "12 bytes of host memory for each parameter of a rank" in shown
    assert "For 1 node a checkpoint saved without that option is converted by one more run of the old layout" in shown
    grids.write(tmp_path / "out")
    assert f"`bash launch.sh {option}`" in (tmp_path / "out/launch.sh").read_text()
    said = json.loads((tmp_path / "out/fallback.json").read_text())
    assert said["saving"]["options"] == option
    assert said["smaller"][0]["loadable_as_advised"]["verdict"] == "resharded on load"


def test_where_no_option_helps_that_is_said(grids: FallbackResult) -> None:
    from symconfig.report.checkpoint import advice
    from symconfig.runs.replan.replanned import Fallback, Smaller

    plan = sample_plan(backend="deepspeed", tp=1, pp=1, dp=16)
    other = sample_plan(backend="deepspeed", tp=1, pp=1, dp=8, zero_stage=3)
    loads = {way: loadable(plan, other, way.kind) for way in savings(plan)}
    found = Fallback(plan, shared.Nodes(2, 8), (Smaller(1, 1, 8, other, loads),))
    assert found.advised is None
    (said,) = advice(found)
    assert said == (
        "No option for saving lets the smaller clusters go on without a conversion "
        f"(1 node: {loadable(plan, other).verdict.value})."
    )


def test_check_covers_all_that_was_written(result: FallbackResult, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result.write(out, launchers=["slurm:partition=big"])
    assert symconfig.verify_frozen(out).passed
    assert main(["verify", "--frozen", str(out)]) == 0

    def findings() -> list[tuple[str, str]]:
        return [(each.kind, each.path) for each in symconfig.verify_frozen(out).findings]

    for path in ("launch.sh", "sbatch.sh", "fallback.json", "nodes-2/launch.sh", "nodes-4/manifest.json"):
        before = (out / path).read_text()
        (out / path).write_text(before + "\n")
        assert findings() == [("edited", path)]
        (out / path).write_text(before)
    manifest = out / "nodes-2/manifest.json"
    before, digest = manifest.read_text(), json.loads(manifest.read_text())["files"]["REPORT.md"]
    manifest.write_text(before.replace(digest, sha256(b"old\n").hexdigest()))
    kept = (out / "nodes-2/REPORT.md").read_text()
    (out / "nodes-2/REPORT.md").write_text("old\n")
    assert ("stale", "nodes-2/REPORT.md") in findings()
    (out / "nodes-2/REPORT.md").write_text(kept)
    manifest.write_text(before)
    (out / "nodes-2/plan.json").unlink()
    assert findings() == [("missing", "nodes-2/plan.json")]
