"""`--html` of every command that has it: one page with the answer, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.cli.support import Run, run

__all__ = ["run"]

SMALL = ("--model", "llama2-7b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "16")
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh"


def _data(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    assert "default-src &#39;none&#39;" in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return dict(json.loads(data))


def test_an_audit_is_a_page(run: Run, tmp_path: Path) -> None:
    done = run("audit", str(SCRIPT), "--cluster", "h200", "--no-plan", "--html", tmp_path / "page.html")
    assert "page.html" in done.err
    data = _data(tmp_path / "page.html")
    assert data["title"]
    assert data["blocks"]


def test_a_plan_and_what_it_becomes_are_pages(run: Run, tmp_path: Path) -> None:
    assert run("plan", *SMALL, "--out", tmp_path / "old", "--html", tmp_path / "plan.html").code == 0
    assert {"plans", "lattice", "schedule", "commands"} <= set(_data(tmp_path / "plan.html"))
    assert run("replan", tmp_path / "old", "--global-batch-size", "32", "--html", tmp_path / "new.html").code == 0
    assert _data(tmp_path / "new.html")["global_batch"] == 32
    done = run("plan", *SMALL, "--html", tmp_path / "plan.html")
    assert done.code == 2
    assert "exists already" in done.err
