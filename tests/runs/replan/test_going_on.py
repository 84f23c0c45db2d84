"""How a run goes on, in the words of the target that the plan leaves in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from symconfig.frameworks import counting
from symconfig.plans.history import History
from symconfig.plans.plan import Plan
from symconfig.render import target_of
from symconfig.runs.replan.schedule import Batch, scheduled
from tests.runs.replan.test_schedule import OLD, ran, training
from tests.sample_plans import sample_model, sample_plan

WORDS = ("--load", "CHECKPOINT", counting.MEGATRON.override)


def going_on(plan: Plan, words: Sequence[str]) -> str | None:
    command = target_of(plan.model, plan.job).resume_command
    return command(plan, words) if command is not None else None


def leaving_in(target: str | None, **fields: Any) -> Plan:
    plan = sample_plan("llama2-13b", "h100", **fields)
    return replace(plan, job=plan.job.model_copy(update={"target": target}))


@pytest.mark.parametrize(("target", "said"), [
    (None, "bash launch.sh --load CHECKPOINT --override-opt_param-scheduler"),
    ("bridge", "bash launch.sh checkpoint.load=CHECKPOINT scheduler.override_opt_param_scheduler=true"),
    ("ms-swift", "bash launch.sh --mcore_model CHECKPOINT --finetune false"),
    ("transformers", None), ("accelerate", None), ("llamafactory", None),
])  # fmt: skip
def test_each_target_has_words_of_its_own(target: str | None, said: str | None) -> None:
    assert going_on(leaving_in(target), WORDS) == said


def test_ms_swift_loads_a_checkpoint_of_adapters_as_one() -> None:
    plan = leaving_in("ms-swift")
    adapters = replace(plan, model=sample_model("llama2-13b-lora"))
    assert going_on(adapters, WORDS) == "bash launch.sh --mcore_adapter CHECKPOINT --finetune false"


def test_an_option_that_a_target_has_not_is_not_said_otherwise() -> None:
    assert going_on(leaving_in("bridge"), ("--load", "CHECKPOINT", "--moe-use-upcycling", "--save", "OUT")) is None


def test_who_counts_what() -> None:
    asked = ("transformers", "ms-swift", "bridge", None)
    said = {name: target_of(plan.model, plan.job).counts for name in asked for plan in (leaving_in(name),)}
    assert said == {
        "transformers": counting.STEPS,
        "ms-swift": counting.CHECKPOINTS_OWN,
        "bridge": counting.MEGATRON,
        None: counting.MEGATRON,
    }


def test_steps_that_count_on_lose_none() -> None:
    """Trainer goes on at the checkpoint's own step; its decay ends with the run."""
    found = scheduled(training(), OLD, 32, 4096, counting.STEPS, ran(400))
    assert (found.training.train_iters, found.training.lr_decay_iters) == (400 + 600 * 8 // 32, None)
    assert found.training.lr_warmup_iters == 100  # it is done
    assert found.options == ()
    assert found.history == ran(400)
    assert any("turns from" in note for note in found.notes)
    again = scheduled(found.training, Batch(32, 4096), 8, 4096, counting.STEPS, found.history.until(450, 32, 4096))
    assert again.training.train_iters == 450 + 400
    anew = scheduled(found.training, Batch(32, 4096), 8, 4096, counting.STEPS, History(), past=found.history)
    assert (anew.training.train_iters, anew.training.lr_warmup_iters) == (1000, 100)
