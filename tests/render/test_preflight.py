"""launch.sh looks for the modules that options of its plan want, on each node and before it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from symconfig.frameworks.megatron import environment
from symconfig.frameworks.megatron.maturity import OPTIONS
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import Files
from symconfig.render.summary import modules_wanted as wants
from tests.render.bash import bash, dry_run, shellcheck
from tests.sample_plans import sample_plan

SAVED = {"training": {"save": "checkpoints"}}  # a run that saves none says so when it starts
HYBRIDEP: dict[str, Any] = {"moe_dispatcher": "flex", "moe_flex_backend": "hybridep"}
ENGINE, EXPERTS = "transformer_engine", "deep_ep"


def planned(**overrides: Any) -> Plan:
    """Of two nodes, with an option that wants deep_ep and one that wants Transformer Engine."""
    shape = {"tp": 2, "pp": 1, "ep": 8, "dp": 8}
    return sample_plan("qwen3-30b-a3b", "h100", **{**shape, **HYBRIDEP, "cuda_graphs": "router", **SAVED, **overrides})


def started(files: Files, folder: Path, modules: dict[str, str], **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run launch.sh with a torchrun that says so, and with these modules, each with the text of its __init__.py."""
    dry_run(files, folder, "launch.sh")
    own = f'exec {sys.executable} -S "$@"'  # without what is installed here
    for name, text in (("torchrun", "echo started"), ("python3", own), ("pretrain_gpt.py", "")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    for name, text in modules.items():
        (folder / "modules" / name).mkdir(parents=True)
        (folder / "modules" / name / "__init__.py").write_text(text)
    path = f"{folder}:{os.environ['PATH']}"
    there = {"PATH": path, "PYTHONPATH": str(folder / "modules"), "MASTER_ADDR": "node0", "MEGATRON_PATH": str(folder)}
    return bash(folder / "launch.sh", cwd=folder, **{**there, **env})


@pytest.mark.parametrize(
    ("modules", "lacks"),
    [
        ({ENGINE: ""}, ["the Python module deep_ep is not installed here"]),
        ({ENGINE: "", EXPERTS: "from .buffer import Buffer"}, ["deep_ep is here without HybridEPBuffer"]),
        ({}, ["deep_ep is not installed here", "transformer_engine is not installed here"]),
    ],
)
def test_it_stops_with_a_sentence_for_each_lack(tmp_path: Path, modules: dict[str, str], lacks: list[str]) -> None:
    done = started(render(planned(), "megatron"), tmp_path, modules)
    said = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(said) == len(lacks)
    for sentence, lack in zip(said, lacks, strict=True):
        assert sentence.startswith("launch.sh: the plan uses ")
        assert lack in sentence
    assert "branch hybrid-ep of github.com/deepseek-ai/DeepEP" in said[0]
    assert "`symconfig plan ... --without hybridep` plans without it" in said[0]


@pytest.mark.parametrize("env", [{"SKIP_PREFLIGHT": "1"}, {"DRY_RUN": "1"}])
def test_it_looks_for_nothing_where_it_is_told_to_or_starts_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    done = started(render(planned(), "megatron"), tmp_path, {}, **env)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("target", ["megatron", "bridge", "ms-swift"])
def test_every_format_of_megatron_looks(target: str, tmp_path: Path) -> None:
    plan = planned(version="core_v0.16.1", cuda_graphs="none", overlap_tp_comm=target not in ("ms-swift",))
    files = render(plan, target)
    text = files["launch.sh"]
    assert "SKIP_PREFLIGHT=1" in text.split("set -euo pipefail")[0]
    assert text.index("DRY_RUN:-0") < text.index("WANTED=(") < text.index("exec ")
    for want in wants(plan):
        assert f"{want.option} " in text
    dry_run(files, tmp_path, "launch.sh")
    assert shellcheck(tmp_path / "launch.sh") == ""


# Plans that use an option which wants a variable.
EXPORTED: dict[str, Plan] = {
    "moe_overlap": sample_plan("mixtral-8x7b", "h100", pp=4, vpp=2, overlap_moe_a2a=True),
    "cuda_graphs": sample_plan("mixtral-8x7b", "h100", cuda_graphs="router"),
    "user_buffers_without_multicast": sample_plan("llama2-13b", "a100-80gb", overlap_tp_comm=True),
}


@pytest.mark.parametrize("name", [one.name for one in OPTIONS if any(need.environment for need in one.needs)])
def test_what_an_option_wants_of_the_environment_is_exported(name: str) -> None:
    (option,) = (one for one in OPTIONS if one.name == name)
    plan = EXPORTED[name]
    assert option in environment.used(plan)
    text = render(plan, "megatron")["launch.sh"]
    for need in option.needs:
        for variable, value in need.environment.items():
            assert f"export {variable}={value}\n" in text
    assert option not in environment.used(sample_plan("llama2-13b", "h100"))
