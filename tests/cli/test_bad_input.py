"""What a command needs and does not get: wrong files are told where, each problem is a sentence, nothing is written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.descriptor.job import PIN_NAMES
from tests.cli.support import JOB, LLAMA_CONFIG, Asked, Run
from tests.cli.test_partition import MESH, PROGRAM
from tests.sample_plans import sample_plan

GOOD_JOB = "model: llama2-13b\ncluster: a100-80gb\ngpus: 64\nglobal_batch_size: 1024\n"


def model_file(**changes: Any) -> str:
    """Return a descriptor with some fields changed."""
    data = json.loads(sample_plan("llama2-13b").model.model_dump_json(by_alias=True, exclude_unset=True))
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in {**data, **changes}.items())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.yaml", GOOD_JOB + "gpu: 8\n", ":5:1: gpu: unknown field. Try: gpus."),
        ("job.yaml", GOOD_JOB + "gpus: 8\n", ":5:1: gpus: duplicate key, first on line 3."),
        ("job.yaml", GOOD_JOB.replace("64", "sixty-four"), ":3:7: gpus: wrong value (got"),
        ("job.yaml", GOOD_JOB.replace("64", "-64"), ":3:7: gpus: "),
        ("job.yaml", GOOD_JOB.replace("1024", "0"), ":4:20: global_batch_size: out of range (got 0, need > 0)."),
        ("job.yaml", GOOD_JOB.replace("1024", "1024.0"), ":4:20: global_batch_size: "),
        ("job.yaml", GOOD_JOB.replace("a100-80gb", "h1000"), ":2:10: cluster: unknown cluster"),
        ("job.yaml", GOOD_JOB + "pins: {tp: 3x}\n", ":5:12: pins.tp: is not a value"),
        ("job.yaml", GOOD_JOB + "pins: {tpp: 4}\n", "cannot be pinned"),
        ("job.yaml", GOOD_JOB + "limits: {memory_margin: 1.5}\n", "limits.memory_margin: "),
        ("job.yaml", "", "the file is empty"),
        ("job.yaml", "- 1\n", "`name: value`"),
        ("job.yaml", "model: [\n", "this is not YAML"),
        ("job.yaml", "a: &x 1\nb: *x\n", "anchors are not allowed"),
        ("job.yaml", "model: !!python/object/apply:os.system ['true']\n", "tags are not allowed"),
        ("model.yaml", model_file(num_key_value_heads=7), "not divisible by num_key_value_heads 7"),
        ("model.yaml", model_file(hidden_size=0), "hidden_size: out of range (got 0"),
        ("model.yaml", model_file(num_hidden_layers=-4), "num_hidden_layers: out of range (got -4"),
        ("model.yaml", model_file(vocab_size="32k"), "vocab_size: wrong value (got"),
        ("model.yaml", model_file(hiden_size=5120), "hiden_size: unknown field. Try: hidden_size"),
        ("model.yaml", model_file(norm_eps=None), "norm_eps: wrong value (got null"),
        ("config.json", json.dumps(LLAMA_CONFIG)[:100], "cut off"),
        ("config.json", "[" * 10_000 + "]" * 10_000, "nested too deeply"),
        ("config.json", '{"a":' * 10_000 + "1" + "}" * 10_000, "nested too deeply"),
        ("config.json", json.dumps({**LLAMA_CONFIG, "rope_theta": float("nan")}), "not a finite number"),
        ("config.json", json.dumps({**LLAMA_CONFIG, "hidden_size": float("inf")}), "not a finite number"),
        ("config.json", json.dumps({**LLAMA_CONFIG, "num_key_value_heads": 3}), "divisible"),
        ("config.json", json.dumps({**LLAMA_CONFIG, "hidden_size": -64}), "hidden_size"),
        ("config.json", "", "empty"),
        ("config.json", "null", "error: "),
        ("config.json", "\ufeff{}", "error: "),
        ("plan.json", "", "plan.json"),
        ("plan.json", "{}", "plan.json"),
        ("plan.json", "[]", "plan.json"),
        ("plan.json", '{"schema": "symconfig.plan/9"}', "plan.json"),
        ("plan.json", '{"schema": "symconfig.plan/1"}', "plan.json"),
        ("plan.json", '{"schema": "symconfig.plan/1", "inputs": 3}', "plan.json"),
        ("plan.json", "[" * 100_000, "plan.json"),
        ("plan.json", "\x00", "plan.json"),
    ],
)
def test_a_wrong_file_is_told_where(run: Run, asked: Asked, tmp_path: Path, name: str, text: str, said: str) -> None:
    path, out = tmp_path / name, tmp_path / "out"
    path.write_text(text, encoding="utf-8")
    commands: dict[str, list[tuple[str, *tuple[object, ...]]]] = {
        "job.yaml": [("plan", path)],
        "model.yaml": [("plan --model", path, *JOB[2:])],
        "config.json": [("plan --model", path, *JOB[2:]), ("import", path)],
        "plan.json": [("explain", path), ("render", path, "--out", out)],
    }
    for command in commands[name]:
        outcome = run(*command)
        assert (outcome.code, outcome.out, asked.calls) == (2, "", 0)
        assert said in outcome.err
        assert str(path) in outcome.err
        assert len(outcome.err) < 2000
    assert list(tmp_path.iterdir()) == [path]


def test_all_problems_of_a_file_come_at_once(run: Run, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: llama2-13b\ncluster: a100-80gb\ngpus: 0\nglobal_batch_size: x\nfoo: 1\n", encoding="utf-8")
    said = run.refused("plan", job)
    assert [line.split(": ")[2] for line in said.splitlines()] == ["gpus", "global_batch_size", "foo"]
    assert "--cluster: unknown cluster" in run.refused("plan --cluster h10", job)


def test_an_option_of_0_is_named_though_the_file_has_the_field(run: Run, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: llama2-13b\ncluster: a100-80gb\ngpus: 16\nlr: 1e-4\nglobal_batch_size: 64\n")
    assert "error: --gpus: out of range (got 0" in run.refused("plan --gpus 0", job)
    assert "error: --lr: out of range (got 0" in run.refused("plan --lr 0", job)


def test_with_json_standard_output_holds_json_on_errors_too(run: Run) -> None:
    outcome = run("plan --json --model nope")
    assert outcome.code == 2
    assert outcome.json()["schema"] == "symconfig.error/1"
    assert len(outcome.json()["problems"]) == len(outcome.err.splitlines())


def test_a_config_of_100_megabytes_is_refused_unread(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    with config.open("wb") as stream:
        stream.write(b'{"model_type": "llama"')
        stream.truncate(100_000_000)
    assert "too large" in run.refused("import", config)


@pytest.mark.parametrize("kind", ["full", "file", "link", "below a file"])
def test_a_place_that_is_taken_is_left_alone(run: Run, asked: Asked, tmp_path: Path, kind: str) -> None:
    out, precious = tmp_path / "out", tmp_path / "elsewhere"
    precious.mkdir()
    if kind.endswith("file"):
        out.write_text("precious", encoding="utf-8")
    elif kind == "link":
        out.symlink_to(precious)
    else:
        out.mkdir()
        (out / "launch.sh").write_text("precious", encoding="utf-8")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    said = run.refused("plan --out", out / "inner" if kind == "below a file" else out, *JOB)
    assert str(out) in said
    assert ("cannot be made below a file" in said) == (kind == "below a file")
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
    assert asked.calls == 0  # said before the search, not after it


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
    assert (ended.code, ended.out, asked.calls) == (2, "", 0), f"tests/cli/refused.txt: not refused: {command}"
    assert len(ended.err) < 2000
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == max(len(said), 1), ended.err
    for parts in said:
        assert any(holds(line, parts.split(" … ")) for line in errors), f"not said: {parts}\n{ended.err}"
    pins = [match[1] for line in errors if (match := re.match(r"error: --pin (\S+):", line))]
    assert all(pin in PIN_NAMES or f"{pin}=" in command for pin in pins), f"no pin has such a name\n{ended.err}"
    assert sorted(desk.rglob("*")) == before


@pytest.mark.parametrize("words", [("--gpus", "9" * 5000), ("--model", "\0"), ("--model", "$(reboot)\x1b[2J")])
def test_hostile_words_reach_the_terminal_as_text(run: Run, asked: Asked, words: tuple[str, ...]) -> None:
    said = run.refused("plan", *JOB, *words)
    assert said.startswith("error: ")
    assert "\x1b" not in said
    assert len(said) < 2000


def test_a_problem_of_several_pins_stands_at_the_option(run: Run) -> None:
    job = "--model mixtral-8x7b --cluster h100 --gpus 8 --global-batch-size 64 --seq-length 4096"
    ended = run("plan", *job.split(), "--pin", "paged_stash=on", "--pin", "dispatcher=hybridep")
    assert ended.code != 0
    assert "error: --pin: a paged stash needs an expert capacity" in ended.err
