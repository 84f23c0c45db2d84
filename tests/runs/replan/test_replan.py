"""Solving again from what a plan recorded: inputs, what is kept and what that costs, what of a file is another one."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api.planning import PlanResult
from symconfig.api.planning import plan as solved
from symconfig.api.replan import ReplanResult, replan
from symconfig.descriptor.job import PIN_NAMES
from symconfig.errors import InputError
from symconfig.plans.file import load_plan, parse_plan
from symconfig.report.replan import replan_blocks
from symconfig.runs.checkpoint.table import Verdict
from symconfig.runs.replan.diff import revised
from tests.pins import VALUES
from tests.runs.checkpoint.folders import torch_dist
from tests.runs.replan.support import plan


def test_nothing_asked_for_is_the_same_plan_and_no_file_changes() -> None:
    found = replan(plan(), top=2).found
    assert found.same
    assert (found.inputs, found.files, found.near_plan) == ((), (), None)
    assert found.new.to_json() == plan().to_json()
    assert found.checkpoint.verdict is Verdict.AS_IS
    assert found.schedule.training == plan().job.training


def test_a_new_batch_is_the_plan_that_it_would_have_been() -> None:
    found = replan(plan(pp=1), global_batch_size=64, top=2).found
    fresh = solved("llama2-7b", "a100-80gb", 8, 64, pins={"pp": 1}, top=2).plan
    assert found.new.best == fresh.best
    assert [(each.field, each.before, each.after) for each in found.inputs] == [("global_batch_size", 32, 64)]
    assert "launch.sh" in found.files
    assert found.new.job.training.train_iters == 500


def test_a_plan_needs_no_zoo_and_is_taken_from_a_file_or_a_folder(tmp_path: Path) -> None:
    PlanResult(plan()).write(tmp_path / "out")
    for source in (tmp_path / "out", str(tmp_path / "out" / "plan.json"), PlanResult(plan()), plan()):
        assert symconfig.replan(source, gpus=4, pins={"pp": 1}, top=1).new.best.configuration.world_size == 4


def test_what_was_resolved_from_the_old_model_is_resolved_again() -> None:
    fields = revised(plan(), {"model": "qwen2.5-7b-lora", "cluster": "v100-16gb"})
    assert not {"task", "backend", "precision"} & set(fields)
    assert fields["seq_length"] == 4096
    asked = revised(plan(), {"model": "qwen2.5-7b", "task": "sft"})
    assert (asked["task"], asked["precision"]) == ("sft", "bf16")
    found = replan(plan(), model="qwen2.5-7b-lora", gpus=8, global_batch_size=8, top=1).found
    assert found.new.job.task == "lora"
    assert found.new.best.target.backend == "deepspeed"
    assert found.files is None
    assert found.checkpoint.verdict is not Verdict.AS_IS


def test_recorded_pins_stay_unless_released_or_pinned_anew() -> None:
    old = plan(tp=2, pp=2)
    assert revised(old, {"pins": {"pp": "4"}})["pins"] == {"tp": "2", "pp": "4"}
    assert revised(old, {}, ("tp",))["pins"] == {"pp": "2"}
    assert replan(old, release=["tp", "pp"], top=1).found.new.best == plan().best


def test_a_number_of_gpus_that_was_found_is_found_again() -> None:
    old = parse_plan(solved("llama2-7b", "h100", "auto", 64, top=1).plan.to_json())
    assert old.job.gpus == 2
    assert replan(old, model="llama2-13b", top=1).new.plan.best.configuration.world_size > 2
    assert revised(old, {"gpus": 8})["gpus"] == 8


def test_every_choice_of_a_plan_is_a_pin_that_gives_it_again() -> None:
    names = [name for name in PIN_NAMES if name not in ("layout", "cp_comm")]  # which these plans have not
    for old in (plan(), plan(tp=2, pp=1), plan(recompute="selective:core_attn", pp=1)):
        kept = {name: VALUES[name](old.best) for name in names}
        job = old.job.model_dump(exclude={"pins", "schema_"}, exclude_none=True)
        again = solved(**{**job, "model": old.model, "cluster": old.cluster, "gpus": old.job.gpus}, pins=kept, top=1)
        assert again.best.configuration == old.best.configuration
        assert again.best.configuration == old.best.configuration
        assert again.best.predicted.step_s == pytest.approx(old.best.predicted.step_s, rel=1e-6)


@pytest.mark.parametrize(("near", "offered"), [(0.002, False), (0.01, True)])
def test_a_plan_near_the_old_one_is_offered_where_its_checkpoint_then_loads_more_easily(
        near: float, offered: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("symconfig.runs.replan.changes.WORTH", near)
    found = replan(plan(batch=128, pp=2, vpp=8), release=["pp", "vpp"], top=1).found
    assert found.checkpoint.verdict is Verdict.CONVERTED
    assert (found.near_plan is not None) is offered
    if found.near_plan is not None:
        assert found.near_plan.pins == {"pp": "2", "vpp": "8", "mbs": "2"}
        assert found.near_plan.verdict is Verdict.AS_IS
        assert 0.002 < found.near_plan.slower < 0.01


def test_an_optimizers_state_that_costs_nothing_to_keep_is_offered_before_all_else() -> None:
    """On one replica sharding its state changes nothing, and without it the state has other names."""
    found = replan(plan("qwen2.5-7b", "h100", 16, 64, tp=4, pp=2), gpus=8, top=1).found
    assert found.new.best.configuration.zero_stage == 0
    assert found.checkpoint.verdict is Verdict.WEIGHTS
    assert (found.near_plan.pins, found.near_plan.free, found.near_plan.verdict) == (
        {"zero": "1"},
        True,
        Verdict.CONVERTED,
    )
    assert "--pin zero=1 costs nothing" in str(replan_blocks(found)[1])


def test_nothing_near_takes_back_what_is_pinned() -> None:
    found = replan(plan("qwen2.5-7b", "h100", 16, 64, tp=4, pp=2), gpus=8, pins={"zero": 0}, top=1).found
    assert found.near_plan is None or "zero" not in found.near_plan.pins


@pytest.mark.parametrize(("arguments", "said"), [
    ({"release": ("x",)}, "release: is not pinned in the old plan (got x"),
    ({"at_step": -1}, "at_step: out of range"),
    ({"at_step": 1001, "global_batch_size": 64}, "at_step: is behind the end of the run (got 1001, need at most 1000"),
    ({"schedule": "stretch"}, "need keep or as-is"),
    ({"global_batch_size": 0}, "global_batch_size"),
    ({"model": "no-such-model"}, "no-such-model"),
    ({"checkpoint": "/no/such"}, "/no/such"),
    ({"top": 0}, "top: out of range"),
    ({"gpus": 12}, "does not fill whole nodes"),
])  # fmt: skip
def test_bad_input_is_a_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        replan(plan(), **arguments)
    assert said in str(error.value)


def test_a_plan_made_again_twice_counts_what_was_seen(tmp_path: Path) -> None:
    first = plan(pp=1, batch=64, zero=1)
    PlanResult(replan(first, global_batch_size=96, at_step=333, top=1).found.new).write(tmp_path / "r1")
    found = replan(tmp_path / "r1", global_batch_size=192, at_step=500, top=1).found
    seen = 333 * 64 + 167 * 96
    assert (found.schedule.consumed, found.schedule.run.tokens) == (seen, seen * 4096)
    assert "the run has had 333 steps of 64 sequences and 167 steps of 96 sequences: 37,344 sequences" in str(
        found.schedule.notes
    )
    assert found.new.job.training.train_iters == 500 + ceil((64_000 - seen) / 192)
    assert found.new.job.training.lr_decay_iters == ceil(64_000 / 192)
    # and where nothing is said, where the plan took over
    assert replan(tmp_path / "r1", global_batch_size=192, top=1).found.schedule.step == 333
    with pytest.raises(InputError, match=r"before the plan took over its run \(got 300, need at least 333"):
        replan(tmp_path / "r1", at_step=300)


def test_what_a_checkpoint_has_seen_is_held_against_the_history(tmp_path: Path) -> None:
    old = replan(plan(pp=1, batch=64, zero=1), global_batch_size=96, at_step=333, top=1).found.new
    for seen, named in ((37_344, False), (40_000, True)):
        saved = torch_dist(tmp_path / str(seen), iteration=500, consumed_train_samples=seen, **LLAMA2_7B)
        found = replan(old, global_batch_size=192, checkpoint=saved, top=1).found
        assert found.schedule.consumed == seen
        said = (
            f"the checkpoint has seen {seen:,} sequences, and 333 steps of 64 sequences and 167 steps of 96 "
            "sequences are 37,344: its own number counts"
        )
        assert (said in found.schedule.notes) is named


LLAMA2_7B = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 11008, "num_attention_heads": 32}


@pytest.mark.parametrize("says", [{}, {"consumed_train_samples": 3000}])
def test_a_checkpoints_folder_says_where_the_run_is(says: dict[str, int], tmp_path: Path) -> None:
    saved = torch_dist(tmp_path / "saved", iteration=200, global_batch_size=32, **LLAMA2_7B, **says)
    found = replan(plan(pp=1), global_batch_size=64, checkpoint=saved, top=1).found
    assert found.schedule.step == 200
    assert found.schedule.consumed == says.get("consumed_train_samples", 200 * 32)
    assert found.new.job.training.train_iters == 200 + 800 // 2
    assert found.checkpoint.kind == "torch_dist:dp_reshardable"
    named = replan(plan(pp=1), global_batch_size=64, checkpoint=saved, at_step=200, top=1).found
    assert named.schedule == found.schedule


def test_what_needs_a_degree_goes_back_with_it() -> None:
    """User buffers need sequence parallelism, which tp 1 has not."""
    old = symconfig.plan("llama3.1-8b", "h100", 16, 128, seq_length=4096, pins={"pp": 2, "vpp": 8}, top=1)
    found = replan(old, release=["pp", "vpp"], top=1).found
    assert found.new.best.configuration.overlap_tp_comm
    (tp,) = (each.kept for each in found.changes.decisions if each.decision == "tp")
    assert not tp.refused
    assert found.near_plan.pins == {"tp": "1", "pp": "2", "vpp": "8", "mbs": "1"}
    assert found.near_plan.verdict is Verdict.AS_IS


def test_a_step_that_is_not_the_checkpoints_is_refused(tmp_path: Path) -> None:
    saved = torch_dist(tmp_path / "saved", iteration=200, global_batch_size=32, **LLAMA2_7B)
    with pytest.raises(InputError, match=r"at_step: is not where the checkpoint is.*\(got 100, need 200, as .*iter_"):
        replan(plan(pp=1), global_batch_size=64, checkpoint=saved, at_step=100, top=1)


def test_the_step_of_a_checkpoint_is_no_option(tmp_path: Path) -> None:
    saved = torch_dist(tmp_path / "saved")
    with pytest.raises(InputError) as error:
        replan(plan(pp=1), checkpoint=saved, training={"train_iters": 150}, top=1)
    assert str(error.value).startswith(f"{saved}: its step is behind the end of the run (got 200, need at most 150")
    assert error.value.problems[0].field is None


def test_a_schedule_goes_on_as_far_as_its_checkpoint_loads() -> None:
    """Megatron-LM without the optimizer's state takes the iteration and a new scheduler; another model nothing."""
    old = plan("qwen2.5-7b", "h100", 16, 64, tp=4, pp=2)
    found = replan(old, gpus=8, global_batch_size=128, at_step=400, top=1).found
    assert found.checkpoint.verdict is Verdict.WEIGHTS
    assert (found.schedule.step, found.schedule.lost) == (400, 0)
    training = found.new.job.training
    assert (training.train_iters, training.lr_decay_iters, training.lr_warmup_iters) == (700, 300, 50)
    assert "--override-opt_param-scheduler" not in found.schedule.options
    other = replan(old, gpus=8, model="llama3.1-8b", global_batch_size=128, at_step=400, top=1).found
    assert (other.schedule.step, other.schedule.lost) == (0, 400)
    assert (other.new.job.training.train_iters, other.new.job.training.lr_decay_iters) == (500, None)
    assert "Step 400 is lost" in " ".join(str(block) for block in replan_blocks(other))


def test_a_plan_for_another_target_goes_on_as_that_counts() -> None:
    """Trainer's steps go on from the checkpoint's: 100 of 8 sequences, then 225 of 32."""
    old = plan("qwen2.5-7b-lora", batch=8, gpus=1)
    found = replan(old, global_batch_size=32, target="transformers", at_step=100, top=1).found
    assert found.new.job.training.train_iters == 100 + 225
    assert found.going_on is None
    said = " ".join(str(block) for block in replan_blocks(found))
    assert "launch.sh --load" not in said
    assert "The old plan's checkpoint (deepspeed), as DeepSpeed's train.py takes it" in said
    assert "How transformers goes on at step 100 is not known here" in said
    assert "All files change: the target is transformers, and was deepspeed." in said


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        replan(tmp_path, top=0, at_step=-3)
    assert len(error.value.problems) == 3


def test_a_new_plan_is_written_as_every_plan_is(tmp_path: Path) -> None:
    found = replan(plan(pp=1), global_batch_size=64, top=1)
    assert isinstance(found, ReplanResult)
    found.new.write(tmp_path / "new")
    assert load_plan(tmp_path / "new").to_json() == found.found.new.to_json()


def test_rates_of_a_run_that_goes_on_stay_and_those_of_another_task_are_derived_again() -> None:
    old = plan()
    assert old.job.training.derived == ("lr", "min_lr", "lr_warmup_iters", "weight_decay")
    assert revised(old, {"gpus": 4})["training"]["lr"] == old.training.lr
    tuned = revised(old, {"task": "sft"})["training"]
    assert not {"lr", "min_lr", "lr_warmup_iters", "weight_decay", "derived"} & set(tuned)
    assert tuned["train_iters"] == old.training.train_iters
    asked = revised(old, {"training": {"lr": 1e-5}})["training"]
    assert (asked["lr"], asked["min_lr"]) == (1e-5, old.training.min_lr)
    assert asked["derived"] == ["min_lr", "lr_warmup_iters", "weight_decay"]
