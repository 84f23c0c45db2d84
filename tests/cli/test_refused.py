"""What a command refuses is a sentence for each problem, all at once, with exit code 2, and nothing is written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import symconfig
from tests.cli.support import JOB, Asked, Run
from tests.cli.test_partition import MESH, PROGRAM
from tests.sample_plans import sample_plan

SMALL = "--model llama2-7b --cluster h100 --gpus 8 --global-batch-size"
LARGE = "--model llama2-13b --global-batch-size 64 --gpus 32 --cluster"
SHORT = {
    "JOB": JOB,
    "MIXED": (*LARGE.split(), "h100*16 + a100-80gb*16"),
    "ADAPTED": (*SMALL.split(), "64"),
    "PARTITION": (*SMALL.split(), "8", "--num-microbatches", "1", "--solver", "adaptive"),
    "STAGES": (*SMALL.split(), "64", "--num-microbatches", "32"),
}


def rows() -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the table with the lines below it."""
    lines = Path(__file__).with_name("refused.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    starts = [place for place, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start], [line.strip() for line in lines[start + 1 : end]]


def holds(line: str, parts: list[str]) -> bool:
    """Return whether a line has all parts, one after the other."""
    return re.search(".*".join(map(re.escape, parts)), line) is not None


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what commands are asked to read."""
    desk = tmp_path_factory.mktemp("desk")
    plan = sample_plan("llama2-13b", tp=2, pp=4, dp=2, global_batch=32).to_json()
    texts = {
        "plan.json": plan,
        "mixed.json": json.dumps({**json.loads(plan), "schema": "symconfig.mixed/1"}),
        "job.yaml": "model: llama2-7b\n",
        "two.yaml": PROGRAM,
        "nothing.yaml": MESH.replace("SIZE", "0"),
    }
    for name, text in texts.items():
        (desk / name).write_text(text, encoding="utf-8")
    (desk / "empty").mkdir()
    shutil.copy(Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh", desk)
    symconfig.plan("llama2-7b", "a100-80gb", 8, 32, pins={"pp": 1}, top=2).write(desk / "old")
    return desk


@pytest.mark.parametrize(("command", "said"), list(rows()), ids=lambda value: value if isinstance(value, str) else "")
def test_each_problem_is_a_sentence(
    run: Run, asked: Asked, desk: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: list[str]
) -> None:
    monkeypatch.chdir(desk)
    before = sorted(desk.rglob("*"))
    name, *words = shlex.split(command)
    ended = run(name, *(one for word in words for one in SHORT.get(word, (word,))))
    assert (ended.code, ended.out, asked.calls) == (2, "", 0)
    assert len(ended.err) < 2000
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == max(len(said), 1), ended.err
    for parts in said:
        assert any(holds(line, parts.split(" … ")) for line in errors), f"not said: {parts}\n{ended.err}"
    assert sorted(desk.rglob("*")) == before


@pytest.mark.parametrize("words", [("--gpus", "9" * 5000), ("--model", "\0"), ("--model", "$(reboot)\x1b[2J")])
def test_hostile_words_reach_the_terminal_as_text(run: Run, asked: Asked, words: tuple[str, ...]) -> None:
    said = run.refused("plan", *JOB, *words)
    assert said.startswith("error: ")
    assert "\x1b" not in said
    assert len(said) < 2000
