"""A plan.json that somebody changed: read or refused with a sentence, never a crash."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.verify import megatron_source
from tests.cli_support import Run, run
from tests.sample_plans import sample_plan

__all__ = ["run"]


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


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), True, -1.5], ids=repr)
def test_any_one_value_of_another_type_is_read_or_refused(backend: str, value: Any) -> None:
    data = sample_plan("llama2-13b", backend=backend).to_dict()
    refused = 0
    for path in leaves(data):
        if not path or path[0] == "digests":
            continue
        try:
            Plan.from_json(changed(data, path, value)).to_json()
        except InputError:
            refused += 1
    assert refused > 50


def test_what_is_read_back_is_the_same(run: Run, tmp_path: Path) -> None:
    plan = sample_plan("deepseek-v3", "h100")
    text = plan.to_json()
    assert Plan.from_json(text).to_json() == text


def test_a_whole_number_of_a_thousand_digits_is_refused(tmp_path: Path) -> None:
    text = sample_plan("llama2-13b").to_json().replace('"micro": 1,', '"micro": ' + "1" * 9999 + ",", 1)
    with pytest.raises(InputError):
        Plan.from_json(text)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "a/" * 5000])
def test_a_name_that_no_file_can_have_is_bad_input(run: Run, tmp_path: Path, name: str) -> None:
    assert run("explain", name).code == 2
    assert run("import", name + ".json").code == 2
    assert run("verify", name).code == 2
    plan = tmp_path / "plan.json"
    plan.write_text(sample_plan("llama2-13b").to_json(), encoding="utf-8")
    assert run("render", plan, "--out", name).code == 2


# What a person may do to the stages of a plan, and the sentence that it must give.
SHAPES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a stage removed": (("stages",), lambda stages: stages[:1],
                        "has other stages than its degrees say (got 1 stages of 1 chunks, need 2 of 1)"),
    "a stage without layers": (("stages", 1, "chunks"), lambda chunks: [[]],
                               "(got 1 embedding + 20 dense, need 1 embedding + 40 dense + 1 head)"),
    "another kind": (("stages", 0, "chunks", 0, 1), lambda kind: "moe",
                     "(got 1 embedding + 1 moe + 39 dense + 1 head, need"),
    "another order": (("stages",), lambda stages: stages[::-1], "(got another order, need"),
    "a layout string": (("options", "pipeline_layout"), lambda _: "Et*19|t*21L",
                        "has other stages than its options say (got Et*20|t*20L, need Et*19|t*21L)"),
    "a count": (("options", "first_stage_layers"), lambda _: 18,
                "has other stages than its options say (got Et*20|t*20L, need Et*18|t*22L)"),
    "a count that cannot be": (("options", "last_stage_layers"), lambda _: 40, "need 40 layers on the last stage)"),
    "a switch": (("options", "account_for_loss"), lambda _: True, "need the loss takes a layer's place)"),
    "no degree": (("parallel", "pp"), lambda pp: 0, "best.parallel.pp: is no degree (got 0, need 1 or more)"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_that_does_not_hold_its_model_is_refused_and_verify_fails(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, change, said = SHAPES[name]
    out = tmp_path / "out"
    write(render(sample_plan(), "megatron"), out)
    data = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    inner: Any = data["best"]
    for key in path:
        inner = inner[key]
    (out / "plan.json").write_text(changed(data, ("best", *path), change(inner)), encoding="utf-8")
    monkeypatch.setattr(megatron_source, "find", lambda named=None: None)
    for words in (("measure", out), ("explain", out)):
        ended = run(*words)
        assert ended.code == 2
        assert said in ended.err
    verified = run("verify", out, "--json")
    assert verified.code == 1
    details = {check["name"]: check["detail"] for check in verified.json()["checks"]}
    assert said in details["stages of plan.json"]
    assert not any("itself broke" in detail for detail in details.values())
