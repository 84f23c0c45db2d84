"""`symconfig render --print`: what real bash makes of it is what the plan says, or it is refused by option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.plans.plan import Plan
from symconfig.render import megatron, named
from symconfig.runs.embed.words import unsafe, with_words, words
from tests.cli.support import Run, run
from tests.formats.zoo import LEARNING
from tests.sample_plans import learning_plan, sample_plan

__all__ = ["run"]

REPOSITORY = Path(__file__).parents[2]


def written(folder: Path, plan: Plan) -> Path:
    path = folder / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    return path


def bash(script: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHON": sys.executable, **more}
    head = 'symconfig() { "$PYTHON" -m symconfig "$@"; }\n'
    return subprocess.run(
        ["bash", "-c", head + script], cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_bash_passes_on_the_plans_words(tmp_path: Path) -> None:
    plan = sample_plan()
    written(tmp_path, plan)
    for name in ("4", "40", "--bf16"):  # names of files that a pattern could find
        (tmp_path / name).touch()
    ended = bash("printf '%s\\0' $(symconfig render plan.json --print)", tmp_path)
    assert ended.stdout.split("\0")[:-1] == megatron.arguments(plan)


def test_mapfile_takes_words_that_bash_would_change(tmp_path: Path) -> None:
    plan = sample_plan("deepseek-v3", "h100", training={"save": "of run 7/*"})
    written(tmp_path, plan)
    ended = bash(
        "mapfile -d '' ARGS < <(symconfig render plan.json --print --null); printf '%s\\0' \"${ARGS[@]}\"", tmp_path
    )
    assert ended.stdout.split("\0")[:-1] == megatron.arguments(plan)


def test_words_that_bash_would_change_are_refused_by_option(run: Run, tmp_path: Path) -> None:
    plan = sample_plan("deepseek-v3", "h100", training={"save": "of run 7"})
    ended = run("render", "--print", written(tmp_path, plan))
    assert ended.code == 2
    assert ended.out == ""
    assert "--save: would be split in $(symconfig render ... --print) (got 'of run 7')" in ended.err
    assert "--moe-layer-freq: may be replaced by names of files" in ended.err
    assert "mapfile -d '' ARGS < <(symconfig render PLAN.json --print --null)" in ended.err


LETTERS = st.one_of(
    st.sampled_from("*?[]\\+@!()| \t~$'\"{},-="), st.characters(min_codepoint=1, exclude_categories=["Cs"])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(LETTERS, max_size=6), min_size=1, max_size=6))
def test_whatever_is_not_refused_bash_leaves_alone(found: list[str]) -> None:
    if list(unsafe(found)):
        return
    script = "shopt -s extglob nullglob; printf '%s\\0' $(cat)"
    ended = subprocess.run(["bash", "-c", script], input="\n".join(found).encode(), capture_output=True, check=True)
    assert ended.stdout.decode().split("\0")[:-1] == found


def test_every_target_with_words_says_those_of_its_files(run: Run, tmp_path: Path) -> None:
    plan = sample_plan(backend="deepspeed", training={"lr_decay_style": "constant"})
    path = written(tmp_path, plan)
    data = run("render", "--print", path, "--json").json()
    assert data["schema"] == "symconfig.args/1"
    assert (data["target"], data["world_size"]) == ("deepspeed", 16)
    assert f"--seq-length={plan.best.configuration.seq_length}" in data["words"]
    assert {"megatron", "deepspeed", "transformers"} <= set(with_words())
    for name in ("deepspeed", "transformers"):
        assert run("render", "--print", path, "--target", name).out.splitlines() == words(plan, name)
    refused = run("render", "--print", path, "--target", "cobol")
    assert refused.code == 2
    assert "is no target whose program takes words" in refused.err


@pytest.mark.parametrize("target", with_words())
def test_every_target_that_is_offered_gives_words(run: Run, tmp_path: Path, target: str) -> None:
    backend = named(target).assumes["backend"]
    plan = learning_plan(backend=backend) if target in LEARNING else sample_plan(backend=backend, dp=1)
    ended = run("render", "--print", written(tmp_path, plan), "--target", target, "--null")
    assert ended.code == 0, ended.err
    assert any("=" in word or word.startswith("--") for word in ended.out.split("\0"))


def test_another_number_of_gpus_is_a_check_that_failed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, sample_plan(backend="deepspeed", version="0.19.8"))
    assert run("render", "--print", path, "--world-size", "16").code == 0
    ended = run("render", "--print", path, "--world-size", "24")
    assert ended.code == 1
    assert ended.out == ""
    assert "the plan is for another number of ranks (got 24, need 16)" in ended.err
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert "(got 8, need 16)" in run("render", "--print", path, "--check").err
    assert run("render", "--print", path, "--world-size", "lots").code == 2


def test_words_and_files_have_options_of_their_own(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, sample_plan())
    ended = run("render", path, "--null", "--check")
    assert ended.code == 2
    assert "--null: is for words (need --print)" in ended.err
    assert "--check: is for words (need --print)" in ended.err
    assert "--out: this argument is missing (need --out DIR, or --print)" in ended.err
    ended = run("render", path, "--print", "--out", tmp_path / "out", "--launcher", "slurm")
    assert ended.code == 2
    assert "--out: is for files, and --print writes none" in ended.err
    assert "--launcher: is for files, and --print writes none" in ended.err
