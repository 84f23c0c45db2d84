"""Every launcher with every target, on its page, and under DeepSpeed's own launcher."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, render, targets
from symconfig.render.files import Files
from tests.render.bash import bash, dry_run
from tests.sample_plans import sample_plan
from tools.generate import is_current, reference

BY_RANK = ("torchrun", "deepspeed")


def _plans() -> tuple[Plan, ...]:
    return (
        sample_plan("llama2-13b", tp=2, pp=1, dp=8),
        sample_plan("llama2-13b", backend="deepspeed"),
        sample_plan("llama2-13b", load_cluster("ascend-910b"), version="core_v0.12.1"),
        sample_plan("llama2-13b-lora", backend="deepspeed"),
    )


def _rendered(target: str) -> tuple[Plan, Files]:
    """The target with the first plan that it can say."""
    for plan in _plans():
        try:
            return plan, render(plan, target, ())
        except InfeasibleError:
            continue
    pytest.skip("none of these plans can be said so")


def _is_within(text: str, longer: str) -> bool:
    """Whether every line of the text is in the longer one, in order."""
    lines = iter(longer.splitlines())
    return all(line in lines for line in text.splitlines())


@pytest.mark.parametrize("target", sorted(targets()))
def test_every_launcher_starts_every_target(target: str, tmp_path: Path) -> None:
    """All that start nodes do, and only add to the target's files; those that start processes do, or say why not."""
    plan, alone = _rendered(target)
    both = {name for name in every_launcher() if name not in BY_RANK}
    named = {
        "skypilot:accelerator=Ascend910B" if name == "skypilot" and target == "mindspeed" else name for name in both
    }
    files = render(plan, target, sorted(named))
    assert set(alone.paths()) < set(files.paths())
    for path in set(alone.paths()) - {"REPORT.md"}:
        assert files[path] == alone[path]
    assert _is_within(alone["REPORT.md"], files["REPORT.md"])
    for name in BY_RANK:
        if "PER_RANK" in alone["launch.sh"]:
            assert dry_run(render(plan, target, [name]), tmp_path / name, "launch.sh")
        else:
            with pytest.raises(InfeasibleError, match="this target starts its processes itself"):
                render(plan, target, [name])


def test_the_page_says_every_launcher_and_setting() -> None:
    assert set(reference.launchers()) == set(every_launcher())
    assert is_current("launchers"), "python -m tools generate launchers"


def test_deepspeeds_own_launcher_takes_the_hostfile_and_the_words(tmp_path: Path) -> None:
    """What pdsh would be told: both hosts, every slot, launch.sh with its words, and what the hosts have to know."""
    multinode = pytest.importorskip("deepspeed.launcher.multinode_runner")
    from deepspeed.launcher import runner

    files = render(sample_plan("llama2-13b-lora", backend="deepspeed"), "deepspeed", ["deepspeed"])
    words = dry_run(files, tmp_path, "deepspeed.sh", "--x", "a b")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "deepspeed").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "deepspeed").chmod(0o755)
    assert (
        bash(
            tmp_path / "deepspeed.sh",
            cwd=tmp_path,
            SAVE="/to here",
            DATA="x.jsonl",
            PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        ).returncode
        == 0
    )
    arguments = runner.parse_args(words[1:])
    pool = runner.parse_inclusion_exclusion(runner.fetch_hostfile(arguments.hostfile), "", "")
    active = runner.apply_num_nodes_and_gpus(pool, arguments.num_nodes, arguments.num_gpus)
    assert dict(active) == {"node-0": list(range(8)), "node-1": list(range(8))}
    started = multinode.PDSHRunner(arguments, runner.encode_world_info(active))
    for line in (tmp_path / ".deepspeed_env").read_text().splitlines():
        started.add_export(*line.split("=", 1))
    with mock.patch.dict(os.environ):
        command, _, _ = started.get_cmd(dict(os.environ), active)
    told = " ".join(command)
    assert 'export PER_RANK=1; export DATA=x.jsonl; export SAVE="/to here"; ' in told
    assert " --no_python --no_local_rank " in told
    assert told.endswith(f' {tmp_path}/launch.sh --x "a b"')
    assert "--master_addr=node-0 --master_port=29500" in told
