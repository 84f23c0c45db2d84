"""Mistakes that DeepSpeed takes in silence, and those that it tells, each found and named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symconfig.existing.recover.deepspeed import built_json
from symconfig.existing.rules import deepspeed as rules
from symconfig.existing.rules.deepspeed import DeepSpeedFacts
from symconfig.frameworks.deepspeed import keys
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.verify import deepspeed
from symconfig.verify.checks import Check, Options
from tests.sample_plans import sample_plan
from tools.generate import keys as release_keys

CASES: dict[str, dict[str, Any]] = {
    "zero1": {"model": "llama2-13b", "grad_bytes": 4},
    "zero3 with offload": {"model": "llama2-13b", "zero_stage": 3, "optimizer_offload": 0.5, "param_offload": True},
    "zero0": {"model": "llama2-13b", "zero_stage": 0, "grad_bytes": 2},
    "AutoTP": {"model": "llama2-13b", "tp": 4, "dp": 4, "zero_stage": 3, "sequence_parallel": False},
    "Ulysses": {"model": "llama2-13b", "cp": 4, "dp": 4, "zero_stage": 2, "cp_comm": "a2a"},
    "AutoEP": {"model": "qwen3-30b-a3b", "ep": 8, "zero_stage": 2},
    "LoRA": {"model": "llama2-13b-lora", "zero_stage": 3},
    "fp16": {"model": "llama2-13b", "cluster": "v100-16gb", "precision": "fp16", "grad_bytes": 2},
}
Edit = Callable[[dict[str, Any]], None]


def _plan(name: str = "zero1") -> Plan:
    return sample_plan(backend="deepspeed", **CASES[name])


def _checks(folder: Path, plan: Plan) -> dict[str, Check]:
    return {check.name: check for check in deepspeed.checks(folder, plan, Options())}


def _zero(config: dict[str, Any]) -> dict[str, Any]:
    section: dict[str, Any] = config["zero_optimization"]
    return section


def _findings(edit: Edit, case: str = "zero1", auto: bool = False) -> str:
    """What the rules say of a rendered JSON after a mistake was made in it."""
    plan = _plan(case)
    config = json.loads(render(plan, "deepspeed")["ds_config_hf.json" if auto else "ds_config.json"])
    assert not deepspeed.broken(DeepSpeedFacts(tree=built_json(config, "x"), trainer=auto), rules.KEYS)
    edit(config)
    facts = DeepSpeedFacts(tree=built_json(config, "x"), trainer=auto, gpus=plan.best.configuration.world_size)
    return "\n".join(map(str, deepspeed.broken(facts, rules.KEYS if auto else rules.RULES)))


def _requests(name: str) -> list[dict[str, Any]]:
    plan = _plan(name)
    files = render(plan, "deepspeed")
    return [
        {
            "task": "resolve",
            "config": json.loads(files["ds_config.json"]),
            "world_size": plan.best.configuration.world_size,
        },
        deepspeed._trainer_request(json.loads(files["ds_config_hf.json"]), plan),
    ]


def _left_open() -> dict[str, Any]:
    """For Transformers, which fills reduce_bucket_size, but not allgather_bucket_size."""
    plan = _plan()
    config = json.loads(render(plan, "deepspeed")["ds_config_hf.json"])
    _zero(config)["allgather_bucket_size"] = "auto"
    return deepspeed._trainer_request(config, plan)


@pytest.fixture(scope="module")
def answers() -> dict[str, list[dict[str, Any]]]:
    """The real DeepSpeed's answers for all requests, from one process: importing it takes most of the time."""
    pytest.importorskip("deepspeed")
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    asked: dict[str, list[dict[str, Any]]] = {name: _requests(name) for name in CASES} | {
        "own words": [
            {"task": "resolve", "config": made, "world_size": 2}
            for made in ({**config, "train_batch_size": 7}, {**config, "zero_optimization": {"stagee": 1}}, config)
        ],
        "left open": [_left_open()],
    }
    found = iter(deepspeed.run([request for requests in asked.values() for request in requests], 240))
    return {name: [next(found) for _ in requests] for name, requests in asked.items()}


@pytest.mark.parametrize("name", CASES)
def test_rendered_files_pass_every_check(
    name: str, tmp_path: Path, answers: dict[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, asked = _plan(name), []
    monkeypatch.setattr(deepspeed, "run", lambda requests, timeout_s: asked.extend(requests) or answers[name])
    write(render(plan, "deepspeed"), tmp_path / "out")
    found = _checks(tmp_path / "out", plan)
    assert {check.name: check.detail for check in found.values() if check.status != "passed"} == {}
    assert len(found) == 6
    assert asked == _requests(name)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda c: c.update(gradient_cliping=1.0), "gradient_clipping"),
        (lambda c: c["optimizer"]["params"].update(beta=[0.9, 0.95]), "betas"),
        (lambda c: _zero(c).update(reduce_bucket_size=5e8), "need integer"),
        (lambda c: _zero(c).update(reduce_bucket_size=2_000_000_000), "3.7 GiB"),
        (lambda c: c.update(train_batch_size=127), "Try: 128"),
        (lambda c: c.update(tensor_parallel={"autotp_size": 3}), "do not divide by 3"),
    ],
)
def test_a_mistake_is_named(edit: Edit, said: str) -> None:
    assert said in _findings(edit)


def test_autotp_ranks_are_counted_in_the_batch() -> None:
    """The distinct sequences (32) are not what DeepSpeed multiplies out to (128)."""
    said = _findings(lambda c: c.update(train_batch_size=32), "AutoTP")
    assert "counts the 4 AutoTP ranks" in said
    assert "Try: 128" in said


def test_auto_is_a_value_in_the_trainer_s_flavour_only() -> None:
    assert _findings(lambda c: None, auto=True) == ""
    assert "gradient_clipping" in _findings(lambda c: c.update(gradient_clipping="auto"))


def test_a_json_that_is_no_object_is_told(tmp_path: Path) -> None:
    for text in ("[]", "{", '{"a": ' * 2000):
        plan = _plan()
        write(render(plan, "deepspeed"), tmp_path, force=True)
        (tmp_path / "ds_config.json").write_text(text)
        check = next(iter(deepspeed.checks(tmp_path, plan, Options())))
        assert check.status == "failed"
        assert "ds_config.json" in check.detail


@pytest.mark.parametrize(("field", "value"), [("rope_theta", 5e5), ("num_hidden_layers", 39)])
def test_a_file_of_another_plan_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    monkeypatch.setattr(deepspeed, "run", lambda requests, timeout_s: [{"ok": False, "error": "not asked"}] * 2)
    plan = _plan()
    write(render(plan, "deepspeed"), tmp_path / "out")
    path = tmp_path / "out" / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    found = _checks(tmp_path / "out", plan)["model/config.json"]
    assert (found.status, field in found.detail) == ("failed", True)


@pytest.mark.parametrize(
    ("name", "value"), [("zero_stage", 3), ("lr", 1e-4), ("precision", "fp16"), ("autotp_size", 2)]
)
def test_another_resolved_value_is_told(name: str, value: object, answers: dict[str, list[dict[str, Any]]]) -> None:
    case = next(iter(CASES))
    answer = answers[case][0]
    found = deepspeed._accepted(
        {**answer, "resolved": {**answer["resolved"], name: value}}, _plan(case), deepspeed.Stopwatch()
    )
    assert found.status == "failed"
    assert f"{name}: DeepSpeed resolved another value (got {value!r}" in found.detail


def test_deepspeed_s_own_words_come_through(answers: dict[str, list[dict[str, Any]]]) -> None:
    rejected, unknown, accepted = answers["own words"]
    assert not rejected["ok"]
    assert "train_batch_size is not equal" in rejected["error"]
    assert "stagee" in unknown["error"]
    assert accepted["resolved"]["train_batch_size"] == 8


def test_a_hang_and_a_crash_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"task": "resolve", "config": {}, "world_size": 1}
    assert "within 0.01 s" in deepspeed.run([request], 0.01)[0]["error"]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "status 1" in deepspeed.run([request], 60)[0]["error"]


def test_what_trainer_would_leave_open_is_told(answers: dict[str, list[dict[str, Any]]]) -> None:
    assert "zero_optimization.allgather_bucket_size" in answers["left open"][0]["error"]


def test_the_checked_in_keys_are_those_of_the_installed_release(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    made = release_keys.generate()
    written = json.loads(keys.FILE.read_text(encoding="utf-8"))
    if made["title"] != written["title"]:
        pytest.skip(f"the keys are of {written['title']}, installed is {made['title']}")
    assert json.loads(json.dumps(made)) == written
