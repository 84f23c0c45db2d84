"""What the real frameworks did of all cases is as said, and on its page; Megatron-LM does a few of them here."""

from __future__ import annotations

import json
from pathlib import Path

from tests.runs.checkpoint import cases, cases_deepspeed
from tests.runs.checkpoint.cases import CASES
from tests.verify.megatron_support import source
from tools.generate import is_current
from tools.verify.checkpoints.megatron import do


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


# Refused, then converted and loaded whole; refused, then weights only.
SHOWN = ("tp 2 to pp 2", "ep 2 to 1")


def test_megatron_does_what_is_said_of_it() -> None:
    found = list(do({name: CASES[name] for name in SHOWN}, {"core_v0.19.0": source().root}))
    assert [case.name for case in found] == list(SHOWN)
    assert {case.name: case.wrong for case in found if case.wrong} == {}
