"""Every command's answer fits a page of 80 columns where that is what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import JOB, Run, run
from tests.sample_plans import sample_plan

__all__ = ["run"]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh"
EXPERTS = ("--model", "mixtral-8x7b", "--cluster", "h100", "--gpus", "64", "--global-batch-size", "256")
COMMANDS = {
    "plan": ("plan", *JOB),
    "plan of experts": ("plan", *EXPERTS),
    "recipes": ("recipes", "--model", "deepseek-v3"),
    "recipe": ("recipes", "mb-0.4.0-perf-llama3-70b-pretrain-h100-64gpu-bf16-v1"),
    "audit": ("audit", str(EXAMPLE), "--cluster", "h200"),
    "size": ("size", "llama2-13b", "--clusters", "a100-80gb", "--tokens", "1e10", "--deadline", "9d"),
    "explain": ("explain", "PLAN"),
    "formats": ("formats", "PLAN"),
    "timeline": ("timeline", "PLAN"),
    "replan": ("replan", "PLAN", "--gpus", "32"),
    "fallback": ("fallback", "PLAN", "--lose-nodes", "1"),
    "doctor": ("doctor",),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_longer_than_the_page(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    (path := tmp_path / "plan.json").write_text(sample_plan("llama2-13b", pp=4).to_json(), encoding="utf-8")
    ended = run(*(str(path) if word == "PLAN" else word for word in COMMANDS[name]))
    assert ended.code == 0, ended.err
    commands = ("--", "symconfig ")  # to be copied
    lines = [line for line in ended.out.splitlines() if " " in line.strip() and not line.lstrip().startswith(commands)]
    long = [line for line in lines if len(line) > 80]
    assert long == []
