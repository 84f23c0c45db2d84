"""`--html` of every command that has it: one page with the answer, its pictures, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Run, run
from tests.measured.support import file_of, run_text

__all__ = ["run"]

SMALL = ("--model", "llama2-7b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "16")
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train_13b.sh"
SWEEP = "job: {cluster: h100, global_batch_size: 16, seq_length: 2048}\nsweep:\n  model: [llama2-7b]\n  gpus: [8, 16]\n"
SIZE = ("llama3.1-8b", "--deadline", "30d", "--tokens", "20B", "--clusters", "h100", "--gpus-max", "2", "--jobs", "1")


def _data(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    assert "default-src &#39;none&#39;" in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return dict(json.loads(data))


@pytest.mark.parametrize(
    ("words", "pictures"),
    [
        (("partition", *SMALL, "--solver", "adaptive"), ["held", "bars", "bars"]),
        (("size", *SIZE), ["scatter"]),
        (("sweep", "SWEEP.yaml", "--out", "table.csv", "--jobs", "1"), ["scatter"]),
        (("validate", "runs"), ["scatter"]),
        (("audit", str(SCRIPT), "--cluster", "h200", "--no-plan"), []),
    ],
)
def test_the_answer_is_a_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], pictures: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("SWEEP.yaml").write_text(SWEEP, encoding="utf-8")
    Path("runs").mkdir()
    file_of(Path("runs"), run_text("kor-a", "{step_s: 8.8, peak_allocated_gib: 60.0, memory_rank: max}"))
    done = run(*words, "--html", "page.html")
    assert "page.html" in done.err
    data = _data(Path("page.html"))
    assert data["title"]
    assert data["blocks"]
    assert [one["kind"] for one in data.get("pictures", [])] == pictures


def test_a_plan_and_what_it_becomes_are_pages(run: Run, tmp_path: Path) -> None:
    assert run("plan", *SMALL, "--out", tmp_path / "old", "--html", tmp_path / "plan.html").code == 0
    assert {"plans", "lattice", "schedule", "roofline", "commands"} <= set(_data(tmp_path / "plan.html"))
    assert run("replan", tmp_path / "old", "--global-batch-size", "32", "--html", tmp_path / "new.html").code == 0
    assert _data(tmp_path / "new.html")["global_batch"] == 32
    for words, kind in ((("--change", "seq_length=2048"), "bars"), (("--vary", "network=0.95..1.05x"), "scatter")):
        assert run("whatif", tmp_path / "old", *words, "--html", tmp_path / f"{kind}.html").code == 0
        assert [one["kind"] for one in _data(tmp_path / f"{kind}.html")["pictures"]] == [kind]
    done = run("plan", *SMALL, "--html", tmp_path / "plan.html")
    assert done.code == 2
    assert "exists already" in done.err
