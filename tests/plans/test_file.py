"""A plan.json that somebody changed: read or refused with a sentence, never a crash."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symconfig import __version__
from symconfig.errors import InputError
from symconfig.plans import file as plan_file
from symconfig.plans.file import load_plan, parse_plan
from symconfig.plans.history import History, Segment
from symconfig.render import render
from symconfig.render.files import write
from tests.cli.support import Run
from tests.sample_plans import sample_plan, signed


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value that holds no other, and of every section."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> str:
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(data)


VALUES = (None, "x", [], {}, float("nan"), True, -1.5)


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
@pytest.mark.parametrize("place", range(len(VALUES)), ids=map(repr, VALUES))
def test_any_one_value_of_another_type_is_read_or_refused(backend: str, place: int) -> None:
    """Every third field with each value: together, all of them several times."""
    data = sample_plan("llama2-13b", backend=backend).to_dict()
    paths = [
        path
        for path in leaves(data)
        if path and path[0] != "digests" and not (path[0] == "alternatives" and len(path) > 3)
    ]  # each is as the best is
    refused = 0
    for path in paths[place % 3 :: 3]:
        try:
            parse_plan(changed(data, path, VALUES[place]), accept_edits=True).to_json()
        except InputError:
            refused += 1
    assert refused > len(paths) / 10


def test_what_is_read_back_is_the_same(run: Run, tmp_path: Path) -> None:
    plan = sample_plan("deepseek-v3", "h100")
    text = plan.to_json()
    assert parse_plan(text).to_json() == text


# What a person may do to a plan with an editor, and what must be said of it.
EDITS: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "the model": (("inputs", "model", "hidden_size"), 4096, "inputs.model: was edited"),
    "the cluster": (("inputs", "cluster", "gpus_per_node"), 4, "inputs.cluster: was edited"),
    "the job": (("inputs", "job", "global_batch_size"), 8, "inputs.job: was edited"),
    "the answer": (("best", "parallel", "tp"), 8, "best: was edited"),
    "a runner-up": (("alternatives", 0, "predicted", "step_s"), 0.5, "alternatives: was edited"),
    "the search": (("search", "simulated"), 99, "search: was edited"),
    "what binds": (("binding",), "nothing", "binding: was edited"),
    "a digest": (("digests", "best"), "0" * 64, "best: was edited"),
}


TAKEN_OVER = replace(sample_plan(), history=History((Segment(333, 333 * 64, 4096),)))


def test_a_history_is_read_back_and_no_fresh_plan_has_one() -> None:
    text = TAKEN_OVER.to_json()
    assert parse_plan(text).history == TAKEN_OVER.history
    assert parse_plan(text).to_json() == text
    assert "history" not in sample_plan().to_dict()
    assert "history" not in sample_plan().to_dict()["digests"]


@pytest.mark.parametrize(("path", "value", "said"), [
    (("history", "segments", 0, "steps"), 400, "history: was edited: it does not match its digest, and its run"),
    (("history", "segments", 0, "steps"), 0, "history.segments[0].steps: Input should be greater than 0 (got 0)"),
    (("history", "segments", 0, "batch"), 64, "history.segments[0].batch: "),
    (("history",), 7, "history: "),
])  # fmt: skip
def test_an_edited_history_is_refused(path: tuple[Any, ...], value: Any, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_plan(changed(TAKEN_OVER.to_dict(), path, value))
    assert said in str(error.value)


def test_a_history_that_is_gone_or_was_written_in_is_refused(tmp_path: Path) -> None:
    data, fresh = TAKEN_OVER.to_dict(), sample_plan().to_dict()
    with pytest.raises(InputError, match="history: was edited"):
        parse_plan(json.dumps({**fresh, "history": data["history"]}))
    gone = json.dumps({name: part for name, part in data.items() if name != "history"})
    (path := tmp_path / "plan.json").write_text(gone)
    assert plan_file.edited(path) == ("history",)
    with pytest.raises(InputError, match="history: was edited"):
        parse_plan(gone)


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_part_is_named_with_its_place_and_the_way_on(name: str, run: Run, tmp_path: Path) -> None:
    path, value, said = EDITS[name]
    file = tmp_path / "plan.json"
    text = changed(sample_plan().to_dict(), path, value)
    file.write_text(json.dumps(json.loads(text), indent=2), encoding="utf-8")
    ended = run("explain", file)
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("was edited") == 1
    assert "symconfig replan" in ended.err
    line = int(ended.err.split(f"{file}:")[1].split(":")[0])
    assert f'"{path[1] if path[0] == "inputs" else said.split(":")[0]}"' in file.read_text().splitlines()[line - 1]
    load_plan(file, accept_edits=True)


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return {**value, "more": 1} if isinstance(value, dict) else [*value, 1] if isinstance(value, list) else f"{value}x"


DATA = json.loads(sample_plan("deepseek-v3", "h100").to_json())
SIGNED = [path for path in leaves(DATA) if path and path[0] not in ("schema", "digests", "search")]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIGNED))
@example(("symconfig",))
@example(("inputs",))
def test_nothing_can_be_changed_unnoticed(path: tuple[Any, ...]) -> None:
    value = DATA
    for key in path:
        value = value[key]
    with pytest.raises(InputError):
        parse_plan(changed(DATA, path, other(value)))


@pytest.mark.parametrize("depth", [90, 300, 600, 980, 5000])
@pytest.mark.parametrize("accept_edits", [False, True])
def test_a_plan_that_nests_deeper_than_any_is_refused(depth: int, accept_edits: bool) -> None:
    text = sample_plan().to_json().replace('"binding": "', f'"binding": {"[" * depth}{"]" * depth}, "x": "', 1)
    with pytest.raises(InputError):
        parse_plan(text, accept_edits=accept_edits)


def test_all_edits_and_all_wrong_fields_are_said_at_once(tmp_path: Path) -> None:
    data = sample_plan().to_dict()
    data["inputs"]["model"]["hidden_size"] = "wide"
    data["inputs"]["job"]["gpus"] = 8
    data["best"]["batch"]["global"] = 1.5
    data["best"]["configuration"] = {}
    data["extra"] = 1
    del data["binding"]
    with pytest.raises(InputError) as caught:
        parse_plan(json.dumps(data))
    said = [(problem.field, problem.what.split(":")[0]) for problem in caught.value.problems]
    assert said == [
        ("inputs.model.hidden_size", "wrong value"),
        ("best.batch.global", "Input should be a valid integer"),
        ("best.configuration", "unknown field"),
        ("binding", "this field is missing"),
        ("extra", "unknown field"),
        ("inputs.model", "was edited"),
        ("inputs.job", "was edited"),
        ("best", "was edited"),
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("symconfig.plan/2", f"is a plan of a newer symconfig than this one ({__version__})"),
        ("symconfig.plan/0", f"is a plan of an older symconfig than this one ({__version__})"),
        ("symconfig.files/1", "is not a plan of symconfig"),
    ],
)
def test_another_schema_is_told_apart(schema: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        parse_plan(json.dumps({**sample_plan().to_dict(), "schema": schema}))


def test_a_plan_without_digests_is_not_trusted() -> None:
    data = sample_plan().to_dict()
    del data["digests"]["best"]
    with pytest.raises(InputError, match="best: was edited"):
        parse_plan(json.dumps(data))
    del data["digests"]
    with pytest.raises(InputError, match="digests: this field is missing"):
        parse_plan(json.dumps(data))


def test_a_truncated_plan_says_where_it_ends() -> None:
    lines = sample_plan().to_json().splitlines()[:40]
    with pytest.raises(InputError, match=r"plan.json:4\d:\d+: the file ends in the middle, it is cut off"):
        parse_plan("\n".join(lines))


def test_a_key_that_stands_twice_is_refused() -> None:
    text = sample_plan().to_json().replace('"micro": 1,', '"micro": 1, "micro": 2,', 1)
    with pytest.raises(InputError, match="duplicate key"):
        parse_plan(text)


def test_json_that_is_laid_out_anew_keeps_its_digests() -> None:
    """As jq does: other spaces, keys in another order, 1.0 written as 1."""

    def anew(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: anew(value[key]) for key in sorted(value)}
        if isinstance(value, list):
            return [anew(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    plan = sample_plan()
    again = parse_plan(json.dumps(anew(plan.to_dict()))).to_dict()
    assert json.loads(json.dumps(again)) == json.loads(plan.to_json())


# What somebody wrote into a plan and signed anew, and what is said of it.
NUMBERS: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a sequence": (("best", "batch", "seq_length"), -4096, "best.batch.seq_length: Input should be greater than 0"),
    "no time": (("best", "predicted", "step_s"), 0, "best.predicted.step_s: Input should be greater than 0 (got 0)"),
    "no end": (("best", "predicted", "step_s"), 1e999, "best.predicted.step_s: "),
    "nothing held": (("best", "predicted", "device_bytes"), 0, "best.predicted.device_bytes: Input should be greater"),
    "more than all": (("best", "options", "optimizer_offload"), 7.0, "best.options.optimizer_offload: Input should be"),
    "no memory": (
        ("inputs", "cluster", "gpu", "memory_bytes", "value"),
        0,
        "gpu.memory_bytes.value: is out of range, got 0",
    ),
    "no peak": (("inputs", "cluster", "gpu", "peak_flops", "bf16", "value"), 1e300, "is out of range, got 1e+300"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_no_plan_has_are_refused_by_every_command(name: str, run: Run, tmp_path: Path) -> None:
    path, value, said = NUMBERS[name]
    out = tmp_path / "out"
    write(render(sample_plan(), "megatron"), out)
    whole, file = tmp_path / "whole.json", out / "plan.json"
    whole.write_bytes(file.read_bytes())
    file.write_text(signed(json.loads(changed(json.loads(file.read_text("utf-8")), path, value))), encoding="utf-8")
    for words in (
        ("explain", file),
        ("render", file, "--out", tmp_path / "new"),
        ("diff", file, whole),
        ("diff", whole, file),
        ("replan", file),
        ("replan", file, "--lose-nodes", 1),
        ("whatif", file, "--vary", "network=1..2x"),
        ("explain", file, "--timeline"),
        ("explain", out),
        ("checkpoint", tmp_path, "--plan", file),
        ("adapt", out / "launch.sh", "--plan", file),
    ):
        ended = run(*words)
        assert (ended.code, said in ended.err) == (2, True), (words[0], ended.err)


def test_a_plan_whose_rates_are_open_is_refused() -> None:
    data = sample_plan().to_dict()
    data["inputs"]["job"]["training"]["lr"] = None
    with pytest.raises(InputError, match=r"inputs\.job\.training\.lr: this field is missing"):
        parse_plan(signed(data))
