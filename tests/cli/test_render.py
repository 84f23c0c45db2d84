"""`symconfig render --print`, held against real bash; `list targets`, and the options that say what is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.cli.render import unsafe, with_words, words
from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.megatron.mindspeed import MEGATRON
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, megatron, named, targets
from symconfig.render.files import File, Files, write
from tests.cli.support import Run
from tests.sample_plans import learning_plan, sample_plan
from tests.sample_rl import LEARNING

REPOSITORY = Path(__file__).parents[2]


def written(folder: Path, plan: Plan) -> Path:
    path = folder / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    return path


def bash(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHON": sys.executable}
    words = ["bash", "-c", 'symconfig() { "$PYTHON" -m symconfig "$@"; }\n' + script]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_bash_passes_on_the_plans_words(tmp_path: Path) -> None:
    """Words that it would change come through mapfile."""
    for name in ("4", "40", "--bf16"):  # names of files that a pattern could find
        (tmp_path / name).touch()
    plain, odd = sample_plan(), sample_plan("deepseek-v3", "h100", training={"save": "of run 7/*"})
    mapped = "mapfile -d '' ARGS < <(symconfig render plan.json --print --null); printf '%s\\0' \"${ARGS[@]}\""
    for plan, script in ((plain, "printf '%s\\0' $(symconfig render plan.json --print)"), (odd, mapped)):
        written(tmp_path, plan)
        ended = bash(script, tmp_path)
        assert ended.stdout.split("\0")[:-1] == megatron.arguments(plan)


def test_words_that_bash_would_change_are_refused_by_option(run: Run, tmp_path: Path) -> None:
    plan = sample_plan("deepseek-v3", "h100", training={"save": "of run 7"})
    said = run.refused("render --print", written(tmp_path, plan))
    assert "--save: would be split in $(symconfig render ... --print) (got 'of run 7')" in said
    assert "--moe-layer-freq: may be replaced by names of files" in said
    assert "mapfile -d '' ARGS < <(symconfig render PLAN.json --print --null)" in said


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
    data = run("render --print", path, "--json").json()
    assert data["schema"] == "symconfig.args/1"
    assert (data["target"], data["world_size"]) == ("deepspeed", 16)
    assert f"--seq-length={plan.best.configuration.seq_length}" in data["words"]
    assert {"megatron", "deepspeed", "transformers"} <= set(with_words())
    for name in ("deepspeed", "transformers"):
        assert run("render --print", path, "--target", name).out.splitlines() == words(plan, name)


@pytest.mark.parametrize("target", with_words())
def test_every_target_that_is_offered_gives_words(run: Run, tmp_path: Path, target: str) -> None:
    backend = named(target).assumes["backend"]
    if target in LEARNING:
        plan = learning_plan(backend=backend)
    elif target == "mindspeed":
        plan = sample_plan(cluster=load_cluster("ascend-910b"), version=MEGATRON, dp=1)
    else:
        plan = sample_plan(backend=backend, dp=1)
    ended = run.done("render --print --null", written(tmp_path, plan), "--target", target)
    assert any("=" in word or word.startswith("--") for word in ended.out.split("\0"))


def test_another_number_of_gpus_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, sample_plan(backend="deepspeed", version="0.19.8"))
    run.done("render --print", path, "--world-size", "16")
    ended = run("render --print", path, "--world-size", "24")
    assert ended.code == 1
    assert ended.out == ""
    assert "the plan is for another number of ranks (got 24, need 16)" in ended.err
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert "(got 8, need 16)" in run("render --print", path, "--check").err


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan with a pipeline, which DeepSpeed cannot run with Transformers' models."""
    write(Files((File("plan.json", sample_plan(pp=2).to_json()),)), tmp_path / "plan")
    return tmp_path / "plan"


def test_every_target_and_launcher_says_what_it_does(run: Run) -> None:
    found = run.done("list targets --json").json()
    assert [item["name"] for item in found["targets"]] == list(targets())
    assert [item["name"] for item in found["launchers"]] == list(every_launcher())
    assert all(len(item["does"]) > 10 for kind in ("targets", "launchers") for item in found[kind])
    assert "carries" not in found["targets"][0]


def test_a_plan_is_carried_or_every_reason_is_said(run: Run, plan: Path) -> None:
    found = {item["name"]: item for item in run.done("list targets", plan, "--json").json()["targets"]}
    assert found["megatron"]["carries"]
    assert not found["deepspeed"]["carries"]
    assert found["deepspeed"]["another"]
    assert not found["slime"]["another"]
    assert any("PipelineModule" in reason for reason in found["deepspeed"]["reasons"])
    said = run.done("list targets", plan).out
    assert "PipelineModule" in said
    assert "another: symconfig replan PLAN.json --target T finds" in " ".join(said.split())
    assert "slurm" in said


def test_a_plan_is_made_for_a_target_and_again_for_one_more(run: Run, tmp_path: Path) -> None:
    job = "plan --model llama2-7b --cluster h100 --gpus 8 --global-batch-size 16"
    first, second = tmp_path / "first", tmp_path / "second"
    assert "for DeepSpeed 0.19.8 through llamafactory" in run(f"{job} --target llamafactory --out", first).out
    assert (first / "train.yaml").exists()
    said = run.done("replan --target megatron", first, "--out", second).out
    assert "target" in said
    assert "backend" in said
    assert (second / "megatron_args.txt").exists()
    run.done("verify --frozen", second)
