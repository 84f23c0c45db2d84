"""What is kept through a change, against plans that are pinned by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig import plan, whatif_changes
from symconfig.errors import InputError
from symconfig.runs.whatif.change import parsed
from tests.cli.support import Run, run

__all__ = ["run"]

JOB: dict[str, Any] = {"model": "llama2-7b", "cluster": "h100", "gpus": 16, "global_batch_size": 64, "seq_length": 4096}


def test_what_is_kept_is_the_pinned_plan_and_what_is_new_is_the_plan() -> None:
    (case,) = whatif_changes(plan(**JOB, top=1), [{"seq_length": 8192}])
    changed = {**JOB, "seq_length": 8192}
    anew = plan(**changed, top=1)
    assert case.replanned.plan.fastest == anew.plan.fastest
    assert {"tp", "pp", "vpp", "cp", "mbs", "zero", "sp"} <= set(case.pins)
    pinned = plan(**changed, pins=dict(case.pins), top=1)
    assert case.kept.plan.fastest == pinned.plan.fastest
    # Pinned, it is let run with more risk of running out of memory: no gain is told against that.
    assert bool(case.kept.relaxed) == bool(pinned.search.opened)
    assert case.gain is None


def test_a_gain_is_of_tokens_a_second() -> None:
    (case,) = whatif_changes(plan(**{**JOB, "attention": "unfused"}, top=1), [{"attention": "flash"}])
    assert case.kept.tokens_per_s is not None
    assert case.replanned.tokens_per_s is not None
    assert not case.kept.relaxed
    assert case.gain == pytest.approx(case.replanned.tokens_per_s / case.kept.tokens_per_s)
    assert case.gain >= 1 - 1e-9


def test_a_strategy_that_does_not_run_says_why() -> None:
    (case,) = whatif_changes(plan(**{**JOB, "gpus": 8}, top=1), [{"seq_length": 131072, "global_batch_size": 8}])
    if case.kept.plan is None:
        assert case.kept.why
    assert case.gain is None or case.gain >= 1


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        whatif_changes(plan(**JOB, top=1), [{"nonsense": 1}, {"seq_lengt": 1}, {"gpus": "x"}, {"model": "none-such"}])
    told = " ".join(map(str, caught.value.problems))
    for words in ("change.nonsense", "Try: seq_length", "gpus", "none-such"):
        assert words in told
    with pytest.raises(InputError):
        parsed(["a", "b="])
    with pytest.raises(InputError, match="this argument is empty"):
        whatif_changes(plan(**JOB, top=1), [])


def test_the_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan(**JOB, top=1).to_json(), encoding="utf-8")
    told = run("whatif", path, "--change", "global_batch_size=128", "--json")
    assert told.code == 0
    data = json.loads(told.out)
    assert data["schema"] == "symconfig.adaptability/1"
    assert data["changes"][0]["change"] == {"global_batch_size": "128"}
    assert run("whatif", path, "--change", "x").code == 2
    assert run("whatif", path).code == 2
    both = run("whatif", path, "--change", "gpus=8", "--vary", "network=1..2x")
    assert both.code == 2
    assert "--vary and --change: cannot be given together" in both.err
