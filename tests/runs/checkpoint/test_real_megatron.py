"""A few of the cases with Megatron-LM's own code; `python -m tests.runs.checkpoint.real` does all of them."""

from __future__ import annotations

from tests.runs.checkpoint.cases import CASES
from tests.runs.checkpoint.real_megatron import do
from tests.verify.megatron_support import source

# Refused, then converted and loaded whole; refused, then weights only.
SHOWN = ("tp 2 to pp 2", "ep 2 to 1")


def test_megatron_does_what_is_said_of_it() -> None:
    found = list(do({name: CASES[name] for name in SHOWN}, {"core_v0.19.0": source().root}))
    assert [case.name for case in found] == list(SHOWN)
    assert {case.name: case.wrong for case in found if case.wrong} == {}
