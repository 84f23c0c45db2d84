"""Target model-args: what the file says arrives as the very arguments, in its own launch.sh and in Megatron's tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symconfig.errors import InfeasibleError
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Recompute
from symconfig.render import megatron, render
from symconfig.render.files import Files
from symconfig.render.model_args import NAME
from tests.existing.launch.summary import options, read_yaml
from tests.render.bash import after_script, dry_run, really_run, shellcheck
from tests.render.test_megatron_launch import TEXT
from tests.sample_plans import sample_model, sample_plan

RUNNER = Path(__file__).parent.parent / "formats" / NAME / "runner.sh"
PYTHON = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the one that has PyYAML


def in_the_tests_of_megatron(files: Files, version: str) -> list[str]:
    """The arguments that the functional tests of a version would start pretrain_gpt.py with."""
    table = flags.flags(version)
    rules = "layouts" if table.at_least("core_v0.17.1") else "quotes" if table.at_least("core_v0.13.0") else "split"
    said = yaml.load(files["model_config.yaml"], Loader=yaml.BaseLoader)["MODEL_ARGS"]
    lines = "".join(
        f"{name}: {value if isinstance(value, str) else '[' + ' '.join(value) + ']'}\n" for name, value in said.items()
    )
    done = subprocess.run(
        ["bash", str(RUNNER), rules], input=lines.encode(), capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode().split("\0")[:-1]


def read_back(files: Files) -> list[str]:
    """The arguments as symconfig audit reads them out of the file."""
    return [word for line in options(read_yaml(files["model_config.yaml"])) for word in line.split(" ")]


LAYOUT: dict[str, Any] = {"pipeline_layout": "Et*10|(t*10|)*2t*10L", "schedule": "1f1b"}
MODULES: dict[str, Any] = {"recompute": Recompute("selective", ("core_attn", "layernorm"))}
MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama2-13b", LAYOUT),
    ("llama2-13b", MODULES),
    ("mixtral-8x7b", {}),
    ("deepseek-v3", {}),
    ("gpt3-175b", {}),
)


@pytest.mark.parametrize("version", flags.versions()[1:])
def test_all_who_read_it_get_the_very_arguments(version: str, tmp_path: Path) -> None:
    told = 0
    for model, more in MODELS:
        plan = sample_plan(model, version=version, **more)
        try:
            expected = megatron.arguments(plan)
        except InfeasibleError:  # this version cannot say it in any spelling
            continue
        files = render(plan, NAME)
        assert in_the_tests_of_megatron(files, version) == expected
        assert read_back(files) == expected
        if told < 2:  # a layout where the version has them, and several words
            arrived = after_script(dry_run(files, tmp_path, "launch.sh", "--more", "a b", PATH=PYTHON))
            assert arrived == [*expected, "--more", "a b"]
        told += 1
    assert told >= 3


def test_the_environment_is_exported(tmp_path: Path) -> None:
    arrived, environment = really_run(render(sample_plan("llama2-13b"), NAME), tmp_path)
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "--micro-batch-size" in arrived


def test_the_callers_environment_wins_but_over_what_the_run_needs(tmp_path: Path) -> None:
    own = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}
    _, environment = really_run(render(sample_plan("llama2-13b"), NAME), tmp_path, **own)
    assert {name: environment[name] for name in own} == {**own, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@settings(max_examples=25, deadline=None)
@given(TEXT | st.text("ab .,|()[]*'\"\\$#", min_size=1, max_size=8), st.sampled_from(flags.versions()[1:]))
@example("a b", "core_v0.13.0")
@example("true", "core_v0.19.0")
@example("x|y", "core_v0.16.1")
@example("1e-5", "core_v0.19.0")
@example("12:30", "core_v0.19.0")
@example("[a", "core_v0.19.0")
def test_a_text_arrives_as_it_is_or_is_refused(text: str, version: str) -> None:
    model = sample_model("llama2-13b", huggingface_id=None)
    plan = sample_plan(
        model, version=version, training={"save": text, "data_path": (text, text), "tokenizer_model": text}
    )
    try:
        files = render(plan, NAME)
    except InfeasibleError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        # A path that begins with a dash is no value on any command line: Megatron-LM's options refuse it, too.
        dashed = {f"./{text}"} if text.startswith("-") else set()
        assert {problem.hint for problem in refused.problems} <= {"--target megatron", *dashed}
        return
    with tempfile.TemporaryDirectory() as scratch:
        assert in_the_tests_of_megatron(files, version) == megatron.arguments(plan)
        assert after_script(dry_run(files, Path(scratch), "launch.sh", PATH=PYTHON)) == megatron.arguments(plan)
        assert not list(Path(scratch).rglob("PWNED"))


def test_its_scripts_are_clean(tmp_path: Path) -> None:
    dry_run(render(sample_plan("llama2-13b"), NAME), tmp_path, "launch.sh", PATH=PYTHON)
    assert shellcheck(tmp_path / "launch.sh") == ""
    assert shellcheck(RUNNER) == ""
