"""The page about checkpoints is what its script writes, of cases that are all as said."""

from __future__ import annotations

import json
from pathlib import Path

from tests.runs.checkpoint import cases, cases_deepspeed
from tools.generate import is_current


def test_the_page_is_what_its_script_writes() -> None:
    assert is_current("checkpoints"), "python -m tools generate checkpoints"


def test_every_case_was_done_and_was_as_said() -> None:
    seen = json.loads((Path(__file__).with_name("seen.json")).read_text(encoding="utf-8"))
    every = {**cases.CASES, **cases_deepspeed.CASES}
    assert set(seen) == set(every)
    assert {name: case["verdict"] for name, case in seen.items()} == {
        name: case.verdict for name, case in every.items()
    }
    assert not [name for name, case in seen.items() if case["wrong"]]
