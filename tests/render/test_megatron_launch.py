"""What really arrives: rendered scripts look for what they need and are run, with strings that would be commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symconfig.frameworks.megatron import environment
from symconfig.frameworks.megatron.maturity import OPTIONS
from symconfig.plans.plan import Plan
from symconfig.render import megatron, render
from symconfig.render.files import Files
from symconfig.render.shared import modules_wanted as wants
from tests.render.bash import after_script, bash, dry_run, really_run, shellcheck
from tests.sample_plans import sample_model, sample_plan

HOSTILE = (
    "$(touch PWNED)", '"; touch PWNED; echo "', "`touch PWNED`", "a'b", "-rf", "--help", "a\nb", "\ntouch PWNED\n",
    "$HOME", "~", "*", "a b", "ü€\U0001f600", "\\", "!!", "#x", "{a,b}", "x,y", "\t", "'$(touch PWNED)'", "%s",
    "\x1b[31m", "{{ 7*7 }}", "[0]=x", "a=b", "&", "\r\n", "\u2028touch PWNED",
)  # fmt: skip
# Anything but NUL and lone surrogates, which no argument can hold, and often one of the above.
TEXT = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
)


def _hostile_plan(name: str, save: str, data: str, tokenizer: str, **overrides: Any) -> Plan:
    model = sample_model("llama2-13b", name=name, huggingface_id=None)
    training = {"save": save, "load": save, "data_path": (data,), "tokenizer_model": tokenizer}
    return sample_plan(model, training=training, **overrides)


def in_bash(line: str) -> list[str]:
    """The words of a line, as bash reads them."""
    command = ["bash", "-c", f"printf '%s\\0' {line}"]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")[:-1]


@settings(max_examples=12, deadline=None)
@given(TEXT, TEXT, TEXT, TEXT)
@example("$(touch PWNED)", '"; touch PWNED; echo "', "-x\n", "`touch PWNED`")
@example("a\ntouch PWNED\n", "'", "''", "\\'")
def test_hostile_strings_arrive_as_the_very_arguments(name: str, save: str, data: str, tokenizer: str) -> None:
    plan = _hostile_plan(name, save, data, tokenizer)
    expected = megatron.arguments(plan)
    assert any(word in (data, f"--data-path={data}") for word in expected)
    files = render(plan, "megatron")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shown = dry_run(files, folder / "dry", "launch.sh", "--extra", save)
        arrived, _ = really_run(files, folder, "--extra", save)
        assert after_script(shown) == [*expected, "--extra", save]
        assert after_script(arrived) == [*expected, "--extra", save]
        assert dry_run(files, folder / "dry", "sbatch.sh", data)[-1] == data
        assert in_bash(files["megatron_args.txt"]) == expected
        assert not list(folder.rglob("PWNED"))


@settings(max_examples=12, deadline=None)
@given(TEXT, TEXT)
def test_real_data_and_tokenizer_come_from_the_environment(data: str, tokenizer: str) -> None:
    files = render(sample_plan("llama2-13b"), "megatron")
    with tempfile.TemporaryDirectory() as scratch:
        arrived, _ = really_run(files, Path(scratch), DATA_PATH=data, TOKENIZER_MODEL=tokenizer)
        assert f"--data-path={data}" in arrived
        assert f"--tokenizer-model={tokenizer}" in arrived
        assert "--mock-data" not in arrived
        assert not list(Path(scratch).rglob("PWNED"))


@settings(max_examples=30, deadline=None)
@given(TEXT)
def test_a_hostile_name_adds_no_line_to_comments_or_report(name: str) -> None:
    benign, hostile = (render(sample_plan(sample_model("llama2-13b", name=text)), "megatron") for text in ("x", name))
    for file in ("launch.sh", "sbatch.sh", "REPORT.md"):
        assert len(hostile[file].splitlines()) == len(benign[file].splitlines())


@pytest.mark.parametrize("model", ["llama2-13b", "deepseek-v3"])
@pytest.mark.parametrize("overrides", [{}, {"training": {"data_path": ("a,b", "c d"), "tokenizer_model": "t'"}}])
def test_scripts_are_clean_for_shellcheck_and_show_what_the_text_file_says(
    model: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    plan = sample_plan(model, "h100", **overrides)
    files = render(plan, "megatron")
    shown = dry_run(files, tmp_path, "launch.sh")
    assert after_script(shown) == shlex.split(files["megatron_args.txt"]) == megatron.arguments(plan)
    assert files["megatron_args.txt"].count("\n") == 1
    for script in ("launch.sh", "sbatch.sh"):
        assert shellcheck(tmp_path / script) == ""


def test_torchrun_gets_the_nodes_and_the_environment(tmp_path: Path) -> None:
    files = render(sample_plan("llama2-13b"), "megatron")
    arrived, env = really_run(
        files, tmp_path, SLURM_NODEID="3", CUDA_DEVICE_MAX_CONNECTIONS="7", PYTORCH_CUDA_ALLOC_CONF="mine"
    )
    assert arrived[:10] == [
        "--nnodes", "8", "--nproc-per-node", "8", "--node-rank", "3", "--master-addr", "node0", "--master-port",
        "29500",
    ]  # fmt: skip
    assert env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"  # the run would fail with another value
    assert env["PYTORCH_CUDA_ALLOC_CONF"] == "mine"


@pytest.mark.parametrize(
    ("target", "env", "said"),
    [
        ("megatron", {"MASTER_ADDR": "n0"}, "MEGATRON_PATH"),
        ("megatron", {"NNODES": "2"}, "this plan is for 64 GPUs"),
        *((target, env, said) for target in ("megatron", "deepspeed") for env, said in (
            ({}, "MASTER_ADDR"),
            ({"NNODES": "a[$(touch PWNED)]"}, "whole numbers"),
            ({"GPUS_PER_NODE": "08"}, "whole numbers"),
        )),
    ],
)  # fmt: skip
def test_a_start_that_cannot_work_says_so(tmp_path: Path, target: str, env: dict[str, str], said: str) -> None:
    dry_run(render(sample_plan("llama2-13b", backend=target), target), tmp_path, "launch.sh")
    done = bash(tmp_path / "launch.sh", cwd=tmp_path, **env)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert not list(tmp_path.rglob("PWNED"))


def test_slurm_asks_for_the_plan_s_nodes_and_names_the_first_as_master(tmp_path: Path) -> None:
    files = render(sample_plan("llama2-13b"), "megatron")
    assert "#SBATCH --nodes=8\n" in files["sbatch.sh"]
    assert "#SBATCH --gpus-per-node=8\n" in files["sbatch.sh"]
    dry_run(files, tmp_path, "launch.sh")
    stand_ins = {"scontrol": 'printf "node-a\\nnode-b\\n"', "srun": 'printf "%s\\n" "$MASTER_ADDR" "$NNODES" "$@"'}
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = bash(
        tmp_path / "sbatch.sh",
        "--x",
        cwd=tmp_path,
        SLURM_JOB_NODELIST="node-[a-b]",
        PATH=f"{tmp_path}:{os.environ['PATH']}",
    )
    assert done.stdout.decode().split() == [
        "node-a", "8", "--nodes=8", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "bash", "./launch.sh", "--x",
    ]  # fmt: skip
    outside = bash(tmp_path / "sbatch.sh", cwd=tmp_path)
    assert outside.returncode == 2
    assert "Slurm" in outside.stderr.decode()


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
        assert f"{want['option']} " in text
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
