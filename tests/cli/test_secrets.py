"""`symconfig audit` and `adapt`: nothing from outside of the script's folder, and no secret in any output."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig import format as masks
from tests.cli.support import Run

TRAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 $MORE\n"
OUTSIDE, OWN, SHAPED = "correct-horse-42", "battery.staple/77", f"hf_{'Ab3' * 11}"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that sources a file two folders above it, with secrets in both."""
    folder = tmp_path / "team" / "jobs"
    folder.mkdir(parents=True)
    (tmp_path / "keys.sh").write_text(f'export SITE_PASSWORD={OUTSIDE}\nMORE="--seq-length 128 {OUTSIDE}"\n')
    lines = f"source ../../keys.sh\nexport WANDB_API_KEY='{OWN}'\nMORE+=\" --wandb-project {OWN} --load {SHAPED}\"\n"
    (folder / "run.sh").write_text(f"#!/bin/bash\n{lines}wandb login {OWN}\n{TRAIN}")
    return folder / "run.sh"


@pytest.mark.parametrize("below", [False, True])
def test_no_output_of_an_audit_has_a_secret(run: Run, script: Path, tmp_path: Path, below: bool) -> None:
    words = ("audit", script, "--cluster", "h100", *(("--root", tmp_path) if below else ()))
    files = tmp_path / "found.sarif", tmp_path / "page.html"
    told = [run(*words), run(*words, "--json"), run(*words, "--sarif", files[0], "--html", files[1])]
    everything = "".join(one.out + one.err for one in told) + "".join(file.read_text("utf-8") for file in files)
    assert not any(secret in everything for secret in (OUTSIDE, OWN, SHAPED))
    assert masks.SHOWN in everything
    assert ("which --root DIR would let be read" in told[0].out) is not below
    data = told[1].json()
    assert any("keys.sh" in item["what"] for item in data["unread"]) is not below


def test_no_diff_of_an_adaptation_has_one(run: Run, script: Path, tmp_path: Path) -> None:
    job = ("--model", "llama2-7b", "--cluster", "h100", "--gpus", 8, "--global-batch-size", 64)
    run.done("plan", *job, "--out", tmp_path / "out")
    for more in ((), ("--json",)):
        ended = run("adapt", script, "--plan", tmp_path / "out", "--root", tmp_path, *more)
        assert not any(secret in ended.out + ended.err for secret in (OUTSIDE, OWN, SHAPED))


@pytest.mark.parametrize("named", ["../../keys.json", "/etc/hostname", "{root}/keys.json"])
def test_a_file_that_an_option_names_outside_of_the_folder_is_not_read(run: Run, tmp_path: Path, named: str) -> None:
    folder = tmp_path / "team" / "jobs"
    folder.mkdir(parents=True)
    (tmp_path / "keys.json").write_text('{"train_micro_batch_size_per_gpu": 7, "zero_optimization": {"stage": 3}}')
    (folder / "run.sh").write_text(f"deepspeed train.py --deepspeed_config {named.format(root=tmp_path)}\n")
    words = ("audit", folder / "run.sh", "--json")
    assert "lies outside of" in run(*words).out
    inside = run(*words, "--root", tmp_path)
    assert ("lies outside of" in inside.out) is named.startswith("/etc")


@pytest.mark.parametrize(
    "text",
    [
        "export HF_TOKEN=abc-123-def", "wandb: {api_key: 'abc-123-def'}", '"aws_secret_access_key": "abc-123-def"',
        "curl --password abc-123-def https://x", "DB_PASSWD = abc-123-def", f"echo {SHAPED}",
    ],
)  # fmt: skip
def test_what_is_a_secret(text: str) -> None:
    masks.forget()
    masks.learn(text)
    assert masks.SHOWN in masks.masked(text)
    assert not any(secret in masks.masked(text) for secret in ("abc-123-def", SHAPED))


@pytest.mark.parametrize(
    "text",
    [
        "--tokenizer-model meta-llama/Llama-2-7b",
        "--moe-token-dispatcher-type alltoall",
        "tokens/s/GPU 4,524.123",
        '"pad_token": "[PAD_TOKEN]", "eos_token": "end_of_text"',
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "tokens: 1000000000",
    ],
)
def test_what_is_none(text: str) -> None:
    masks.forget()
    masks.learn(text)
    assert masks.masked(text) == text
