"""The page about measured runs: its examples are read as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

from symconfig.measured.assumptions import assuming
from symconfig.measured.score import score

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "measurements.md"


def test_the_examples_are_read_as_they_stand(tmp_path: Path) -> None:
    rows, mine = (
        dedent(text) for text in re.findall(r"(?:^ {4}.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    (tmp_path / "runs.yaml").write_text(rows, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(mine, encoding="utf-8")
    with assuming(tmp_path / "mine.yaml"):
        (source,) = score([tmp_path / "runs.yaml"])
    (run,) = source.rows
    assert run.case.ignored == ()
    assert ("gradient_bytes", "2.0") in run.case.documented
    assert run.case.reason == "our launch scripts"
    assert run.case.configuration.framework.hide.tp_pieces > 1
