"""What really arrives: rendered scripts are run, with strings that would like to be commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symconfig.plans.plan import Plan
from symconfig.render import megatron, render
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
