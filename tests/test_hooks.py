"""The hooks of pre-commit and the GitHub Action: what they would run is run here, and says what it should."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import symconfig

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "existing" / "audit" / "corpus"
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Give an environment with `symconfig` on its path, as a program of its own."""
    program = tmp_path / "bin" / "symconfig"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m symconfig "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def run_hook(name: str, files: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: its entry's words, then the names of files."""
    words = [*shlex.split(HOOKS[name]["entry"]), *files]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_audit_hook_names_every_script_that_cannot_run(tmp_path: Path, environment: dict[str, str]) -> None:
    bad = ("query_groups.sh", "layers_not_divided.sh")
    for name in bad:
        shutil.copy(CORPUS / "broken" / name, tmp_path / f"train_{name}")
    shutil.copy(CORPUS / "megatron" / "llama2_7b_arrays.sh", tmp_path / "train_good.sh")
    assert run_hook("symconfig-audit", ["train_good.sh"], tmp_path, environment).returncode == 0
    ended = run_hook("symconfig-audit", ["train_good.sh", *(f"train_{name}" for name in bad)], tmp_path, environment)
    assert ended.returncode == 1, ended.stderr
    assert all(f"train_{name}:" in ended.stdout for name in bad)


def test_the_check_hook_fails_where_a_rendered_file_was_edited(tmp_path: Path, environment: dict[str, str]) -> None:
    symconfig.plan(model="llama2-7b", cluster="h100", gpus=8, global_batch_size=64).write(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert HOOKS["symconfig-verify"]["pass_filenames"] is False
    assert run_hook("symconfig-verify", ["a", "b"], tmp_path, environment).returncode == 0
    with (tmp_path / "b" / "launch.sh").open("a", encoding="utf-8") as file:
        file.write("echo mine\n")
    ended = run_hook("symconfig-verify", ["a", "b"], tmp_path, environment)
    assert ended.returncode == 1
    assert "launch.sh" in ended.stdout


def audit_step() -> dict[str, Any]:
    """Give the step of the action that audits."""
    return next(step for step in ACTION["runs"]["steps"] if step.get("id") == "audit")


def test_the_action_hands_no_input_to_bash_as_code() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    taken = {value.removeprefix("${{ inputs.").removesuffix(" }}") for value in audit_step()["env"].values()}
    assert taken == set(ACTION["inputs"]) - {"python-version"}


def test_the_action_writes_sarif_of_all_scripts_and_fails(tmp_path: Path, environment: dict[str, str]) -> None:
    for name in ("query_groups.sh", "layers_not_divided.sh"):
        shutil.copy(CORPUS / "broken" / name, tmp_path / name)
    inputs = {"FILES": "*.sh *$(touch run)*", "CLUSTER": "", "STRICT": "false", "SARIF": "out.sarif"}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", audit_step()["run"]]
    given = {**environment, **inputs, "GITHUB_OUTPUT": str(tmp_path / "outputs")}
    ended = subprocess.run(bash, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=120, check=False)
    written = json.loads((tmp_path / "out.sarif").read_text(encoding="utf-8"))
    jsonschema = pytest.importorskip("jsonschema")
    schema = ROOT / "tests" / "report" / "sarif-2.1.0.schema.json"
    jsonschema.validate(written, json.loads(schema.read_text(encoding="utf-8")))
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "outputs").read_text(encoding="utf-8") == "sarif=out.sarif\n"
    places = [where["physicalLocation"] for result in written["runs"][0]["results"] for where in result["locations"]]
    assert {"query_groups.sh", "layers_not_divided.sh"} <= {place["artifactLocation"]["uri"] for place in places}
    assert ended.returncode == 1, ended.stderr
