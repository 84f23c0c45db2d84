"""Ranks that DeepSpeed's own engine builds without memory, at world sizes that nobody has here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.plans.file import load_plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.verify import deepspeed
from symconfig.verify.checks import Check, Options, verify
from symconfig.verify.shell import dry_run
from tests.render.deepspeed_support import tiny
from tests.sample_plans import sample_model, sample_plan

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

CASES: dict[str, dict[str, Any]] = {
    "AutoTP, ZeRO 3, half of the optimizer offloaded": {
        "model": sample_model("llama3.1-70b", num_hidden_layers=4), "tp": 2, "dp": 64, "zero_stage": 3,
        "optimizer_offload": 0.5},
    "AutoEP, ZeRO 2": {"model": sample_model("mixtral-8x7b", num_hidden_layers=4), "ep": 8, "dp": 32, "zero_stage": 2},
    "fp16, ZeRO 0": {"model": sample_model("llama2-13b", num_hidden_layers=4), "dp": 8, "precision": "fp16",
                     "grad_bytes": 2, "zero_stage": 0},
    "fp16, ZeRO 2": {"model": sample_model("llama2-13b", num_hidden_layers=4), "dp": 8, "precision": "fp16",
                     "zero_stage": 2},
    "LoRA, ZeRO 3": {"model": sample_model("llama2-13b-lora", num_hidden_layers=6), "dp": 8, "zero_stage": 3},
}  # fmt: skip


def _folder(folder: Path, **fields: Any) -> Path:
    plan = sample_plan(fields.pop("model"), backend="deepspeed", sequence_parallel=False, **fields)
    write(render(plan, "deepspeed"), folder)
    return folder


def _ranks(folder: Path) -> list[Check]:
    words = dry_run(folder, "launch.sh", 60.0).words
    start = next(index for index, word in enumerate(words) if word.endswith("train.py")) + 1
    return list(deepspeed.ranks(folder, load_plan(folder), words[start:], Options()))


@pytest.mark.usefixtures("warm_deepspeed")
@pytest.mark.parametrize("case", CASES)
def test_first_and_last_rank_hold_what_the_plan_says(case: str, tmp_path: Path) -> None:
    found = _ranks(_folder(tmp_path, **CASES[case]))
    assert [(check.status, check.detail) for check in found if check.status != "passed"] == []
    assert len(found) == 2
    assert all(abs(item.difference) < 1e-3 for check in found for item in check.compared)
    assert found[0].compared[0].ours > 1e9


@pytest.mark.usefixtures("warm_deepspeed")
def test_a_lost_layer_is_named_with_its_numbers(tmp_path: Path) -> None:
    folder = _folder(tmp_path, model=tiny("qwen lora"), dp=1, zero_stage=1)
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1}))
    (found,) = _ranks(folder)
    assert found.status == "failed"
    assert found.detail.startswith("model/config.json: parameters before ZeRO")
    assert "ds_config.json: zero_optimization: optimizer state" in found.detail
    whole, *_ = found.compared
    assert whole.ours > whole.real > 0


def test_ranks_of_a_model_with_adapters_need_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path, model=tiny("qwen lora"), dp=1, zero_stage=1)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else found(name))
    with pytest.raises(InputError, match="needs peft"):
        verify(folder, build=True)


@pytest.mark.usefixtures("warm_deepspeed")
def test_what_the_frameworks_refuse_comes_through_in_their_words(tmp_path: Path) -> None:
    folder = _folder(tmp_path, model=tiny("llama"), dp=1, zero_stage=1)
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": 5}))
    (found,) = (check for check in verify(folder, build=True) if "rank" in check.name)
    assert found.status == "failed"
    assert "not a multiple of the number of attention heads" in found.detail


@pytest.mark.usefixtures("warm_deepspeed")
def test_a_rank_that_hangs_or_crashes_is_said(tmp_path: Path) -> None:
    folder = _folder(tmp_path, model=tiny("llama"), dp=1, zero_stage=1)
    (folder / "train.py").write_text("import time\ntime.sleep(600)\n")
    (hangs,) = deepspeed.build(folder, [], 1, (0,), 0.2)
    assert hangs["error"].startswith("DeepSpeed did not end within 0.2 s")
    (folder / "train.py").write_text("import os\nos.abort()\n")
    (crashed,) = deepspeed.build(folder, [], 1, (0,), Options().timeout_s)
    assert "ended with status -6" in crashed["error"]
