"""What other programs read is the same in every locale, time zone and terminal, with and without a home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sample_plans import sample_plan

# An encoding that has none of the plan's letters, and one that has some of them: a locale need not be installed for it.
MACHINES = {
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
    "nothing of a home": {"HOME": "/nonexistent", "XDG_CACHE_HOME": "", "TZ": "Pacific/Kiritimati", "COLUMNS": "40"},
}
SAVED = "/daten/köln/模型"


COMMANDS = (
    ("render", "plan.json", "--print", "--null"),
    ("render", "plan.json", "--print", "--json"),
    ("render", "plan.json", "--target", "megatron", "--out", "out"),
)
CODE = f"from symconfig.cli.main import main\nfor words in {COMMANDS}: assert main(list(words)) == 0"


def answers(folder: Path, machine: dict[str, str]) -> dict[str, bytes]:
    """Return the words of a plan and their JSON, and every rendered file."""
    plan = sample_plan(dp=1, tp=1, training={"save": SAVED})
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    env = {**os.environ, "PYTHONUTF8": "1", **machine}  # UTF-8, whatever the tests run in
    ended = subprocess.run([sys.executable, "-c", CODE], cwd=folder, env=env, capture_output=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    words = ended.stdout.rpartition(b"}\n")[0]  # what the last command says is as wide as the machine's page
    files = (path for path in (folder / "out").rglob("*") if path.is_file())
    return {"words": words, **{str(path.relative_to(folder)): path.read_bytes() for path in files}}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return answers(tmp_path_factory.mktemp("usual"), {})


@pytest.mark.parametrize("machine", MACHINES)
def test_data_and_files_are_the_same_on_every_machine(machine: str, usual: dict[str, bytes], tmp_path: Path) -> None:
    assert answers(tmp_path, MACHINES[machine]) == usual
    assert all(SAVED.encode() in usual[name] for name in ("words", "out/megatron_args.txt"))
