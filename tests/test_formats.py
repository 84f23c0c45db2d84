"""The driver of the real parsers: it hears all that they say, and nothing passes unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.errors import InfeasibleError, Problem
from symconfig.render import every_launcher, targets
from tests.sample_plans import sample_plan
from tools.verify import formats as verify_formats
from tools.verify.formats import Format, names, read_format, result_of, results
from tools.verify.formats.page import page
from tools.verify.formats.results import Outcome, Result
from tools.verify.formats.spread import SPREAD
from tools.verify.formats.words import differences, words

# Verified by `symconfig verify` with the frameworks themselves.
OWN = {"megatron", "deepspeed"}
NOT_TO_BE_HAD = {"mindspeed"}  # its packages are on no index
PLAN = sample_plan("llama2-13b")
NO_PLAN = InfeasibleError(Problem("there is none", field="model", got="a", hint="b"))
ACCEPT = """
import sys
from pathlib import Path
from accepting import answer

def accept(folder):
    {body}

answer(accept)
"""


def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Result:
    """Of a format whose accept.py has this body: a spread of one plan, and a zoo of one model, which has no plan."""
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / "accept.py").write_text(ACCEPT.format(body=body))
    here = verify_formats.FORMATS / "accepting.py"
    (tmp_path / "accepting.py").write_text(here.read_text())
    monkeypatch.setattr(verify_formats, "FORMATS", tmp_path)
    form = Format("tried", "megatron", ())
    python = verify_formats.python_of(form, "")
    return result_of(form, python, {"a": PLAN}, {"a": NO_PLAN}, tmp_path / "out")


def test_no_format_ships_without_its_real_parser() -> None:
    tried = {form.target for form in map(read_format, names())}
    assert set(targets()) - OWN - NOT_TO_BE_HAD <= tried
    launched = {launcher for form in map(read_format, names()) for launcher in form.launchers}
    assert launched <= set(every_launcher())


def test_the_spread_holds_every_kind_of_plan() -> None:
    assert len({item.name for item in SPREAD}) == len(SPREAD)
    backends = {item.job.get("backend", "") for item in SPREAD}
    assert {"megatron", "deepspeed"} <= backends


def test_what_the_parser_understood_is_compared_with_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"tp": words(PLAN)["tp"], "seq_length": 4096}
    result = judged(tmp_path, monkeypatch, f"print('noise'); return {values}")
    assert result.outcomes == (Outcome("a", compared=2),)
    assert result.zoo == (Outcome("a", refused=("model: there is none. Try: b.",)),)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return {'tp': 7}", "tp is 7, the plan has 4"),
        ("return {'tpp': 2}", "tpp is no word of a plan"),
        ("return {}", "nothing was said"),
        ("raise KeyError('no')", "KeyError: 'no'"),
        ("sys.exit('bad option')", "SystemExit: bad option"),
        ("import os; os._exit(3)", "accept.py ended with 3"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    result = judged(tmp_path, monkeypatch, body)
    assert said in " ".join(result.outcomes[0].said)
    assert not result.passed


def test_a_flag_is_no_number_and_a_number_no_flag() -> None:
    assert differences(PLAN, {"sequence_parallel": 1}) == ["sequence_parallel is 1, the plan has True"]
    assert not differences(PLAN, {"lr": 0.0003, "recompute_modules": []})


def test_a_format_that_takes_no_plan_has_not_passed() -> None:
    refused = Outcome("a", refused=("pp: no.",))
    assert not Result((), (refused,)).passed
    assert Result((), (refused, Outcome("b", compared=1))).passed


def test_a_run_of_some_formats_keeps_what_is_known_of_the_others(tmp_path: Path) -> None:
    first = Result(("x==1",), (Outcome("a", compared=3),))
    results.keep({"old": first, "gone": first}, ("old", "gone"), tmp_path)
    results.keep({"new": Result((), (Outcome("a", refused=("no.",)),))}, ("old", "new"), tmp_path)
    assert set(results.kept(tmp_path)) == {"old", "new"}
    assert results.kept(tmp_path)["old"] == first


def test_what_is_refused_for_one_reason_is_told_together() -> None:
    refused = (Outcome("a", refused=("no|no.", "never.")), Outcome("b", refused=("no|no.",)))
    first = Result(("x==1",), (*refused, Outcome("c", compared=3)), refused)
    shown = page({"first": first, "second": Result((), refused, refused[1:])})
    assert "| first | 3 | 1 | 3 | 2 | 0 |" in shown
    assert r"| no\|no. | first, second | a, b |" in shown
    assert r"| no\|no. | second | b |" in shown
    assert shown.count("never.") == 2
    shown = page({"new": Result((), (), (Outcome("a", said=("KeyError: 'x'",)),))})
    assert "| new | a | KeyError: 'x' |" in shown


def test_the_page_is_that_of_the_recorded_results() -> None:
    recorded = results.kept()
    if not recorded:
        pytest.skip("nothing is recorded")
    assert (results.EVIDENCE / "formats.md").read_text(encoding="utf-8") == page(recorded)
    assert set(recorded) <= set(names())
