"""`--html` of every command that has it: one page with the answer, and nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from tests.cli.support import Run, run

__all__ = ["run"]

SMALL = ("--model", "llama2-7b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "16")
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh"


def test_an_audit_is_a_page(run: Run, tmp_path: Path) -> None:
    done = run("audit", str(SCRIPT), "--cluster", "h200", "--no-plan", "--html", tmp_path / "page.html")
    assert "page.html" in done.err
    assert "What is wrong" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_plan_and_what_it_becomes_are_pages(run: Run, tmp_path: Path) -> None:
    assert run("plan", *SMALL, "--out", tmp_path / "old", "--html", tmp_path / "plan.html").code == 0
    assert "global batch 16 sequences" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert run("replan", tmp_path / "old", "--global-batch-size", "32", "--html", tmp_path / "new.html").code == 0
    assert "The old plan&#39;s checkpoint" in (tmp_path / "new.html").read_text(encoding="utf-8")
    done = run("plan", *SMALL, "--html", tmp_path / "plan.html")
    assert done.code == 2
    assert "exists already" in done.err
