"""The old checkpoint's fate is said: by what the script saves, or by what lies in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from symconfig.plans.plan import Plan
from symconfig.report.adapt import blocks, fated
from symconfig.runs.adaptation import Adaptation, adaptation
from symconfig.runs.checkpoint import Verdict
from tests.existing.adapt.scripts import array, options, written
from tests.sample_plans import sample_plan

SAVING = "--save-interval 100"


def plan(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", "h100", **{"tp": 4, "pp": 2, "dp": 2, "global_batch": 32, **fields})


MINE, GOAL = plan(), plan(tp=2, pp=1, dp=8)


def adapt(folder: Path, *more: str, goal: Plan = GOAL) -> Adaptation:
    return adaptation(written(folder, array(MINE, [*options(MINE), *more])), goal, {})


def test_files_by_rank_are_converted_by_the_old_run(tmp_path: Path) -> None:
    outcome = adapt(tmp_path, "--load /ckpt/a", "--save /ckpt/a", SAVING, "--ckpt-format torch")
    (fate,) = outcome.fates
    assert fate.answer is not None
    assert (fate.option, fate.folder, fate.loads, fate.seen) == ("--load", "/ckpt/a", True, False)
    assert (fate.answer.kind, fate.answer.verdict) == ("torch", Verdict.CONVERTED)
    said = fated(fate, "best.json")
    assert "It loads after a conversion." in said
    assert "--load /ckpt/a --ckpt-convert-format torch_dist" in said
    assert "CHECKPOINT" not in said


def test_whole_tensors_are_resharded_on_load(tmp_path: Path) -> None:
    more = ("--load /ckpt/a", "--save /ckpt/a", SAVING, "--dist-ckpt-optim-fully-reshardable")
    (fate,) = adapt(tmp_path, *more).fates
    assert fate.answer is not None
    assert fate.answer.kind == "torch_dist:fully_reshardable"
    assert fate.answer.verdict is Verdict.RESHARDED


def test_optimizer_buffers_of_another_grid_are_saved_once_more(tmp_path: Path) -> None:
    (fate,) = adapt(tmp_path, "--load /ckpt/a", "--save /ckpt/a", SAVING).fates
    assert fate.answer is not None
    assert fate.answer.verdict is Verdict.CONVERTED
    assert "--dist-ckpt-optim-fully-reshardable" in fated(fate, "best.json")


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    sharded = plan(tp=1, pp=1, dp=16, zero_stage=3)
    source = array(sharded, [*options(sharded), "--load /ckpt/a"])
    (fate,) = adaptation(written(tmp_path, source), GOAL, {}).fates
    assert fate.answer is not None
    assert fate.answer.verdict is Verdict.NO
    assert "start anew with an empty folder, or keep the old layout" in fated(fate, "best.json")


def test_a_run_that_loads_nothing_is_told_that_it_starts_anew(tmp_path: Path) -> None:
    (fate,) = adapt(tmp_path, "--save /ckpt/a", SAVING).fates
    assert not fate.loads
    assert "starts anew and saves beside it" in fated(fate, "best.json")


def test_a_folder_that_is_here_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    (fate,) = adapt(tmp_path, "--load ckpt").fates
    assert "is no checkpoint" in fate.why
    assert "Try: symconfig checkpoint ckpt --plan best.json." in fated(fate, "best.json")
    (tmp_path / "ckpt" / "latest_checkpointed_iteration.txt").write_text("100")
    iteration = tmp_path / "ckpt" / "iter_0000100" / "mp_rank_00"
    iteration.mkdir(parents=True)
    (fate,) = adapt(tmp_path, "--load ckpt").fates
    assert "ckpt" in fated(fate, "best.json")


def test_a_folder_whose_name_is_not_known_is_said(tmp_path: Path) -> None:
    (fate,) = adapt(tmp_path, '--load "$(latest)"').fates
    assert fate.answer is None
    assert "is not known, because its value" in fated(fate, "best.json")


def test_nothing_is_said_without_checkpoints_or_changes(tmp_path: Path) -> None:
    assert adapt(tmp_path).fates == ()
    assert adapt(tmp_path, "--load /ckpt/a", goal=MINE).fates == ()


def test_json_has_the_fates_and_the_plan(tmp_path: Path) -> None:
    told = adapt(tmp_path, "--load /ckpt/a").to_dict(False)
    assert told["checkpoints"][0]["loadable"]["verdict"] == Verdict.CONVERTED
    assert told["plan"]["best"]["parallel"]["tp"] == 2
    assert {"errors", "diff", "changes"} <= told.keys()


def test_everything_is_told_in_sections(tmp_path: Path) -> None:
    said = "\n\n".join(map(str, blocks(adapt(tmp_path, "--load /ckpt/tp4"), "best.json")))
    assert [line for line in said.splitlines() if line and not line.startswith(" ")] == [
        "Changed",
        "The old checkpoint",
    ]
