"""Targets for reinforcement learning: what each is told of a step, and what it refuses before anything is written."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.task import TASKS
from symconfig.errors import InfeasibleError, Problem
from symconfig.plans.plan import Plan
from symconfig.render import learning, nemo_rl, render, targets
from tests.sample_plans import learning_plan
from tests.sample_rl import LEARNING
from tools.generate import is_current
from tools.generate.targets import able as is_able


def changed(plan: Plan, *, rl: dict[str, Any] | None = None, **step: Any) -> Plan:
    section = learning.section(plan).model_copy(update=rl or {})
    return replace(
        plan, job=plan.job.model_copy(update={"rl": section}), rl=tuple(replace(each, **step) for each in plan.rl)
    )


def with_options(plan: Plan, **options: Any) -> Plan:
    return replace(plan, best=replace(plan.best, configuration=replace(plan.best.configuration, **options)))


def problems(target: str, plan: Plan) -> dict[str | None, Problem]:
    with pytest.raises(InfeasibleError) as caught:
        targets()[target].files(plan)
    return {problem.field: problem for problem in caught.value.problems}


def plan_for(target: str, **training: Any) -> Plan:
    learns = targets()[target].learns
    return learning_plan(training, targets()[target].assumes["backend"], learns.away[0])


def value(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_every_target_for_a_step_takes_such_plans_and_no_others() -> None:
    assert set(LEARNING) == {
        "verl", "verl-fsdp", "slime", "openrlhf", "trl", "nemo-rl",
    }  # fmt: skip
    for target in LEARNING:
        plan = plan_for(target)
        assert targets()[target].files(plan)
        assert "task" in problems(
            target, replace(plan, job=plan.job.model_copy(update={"rl": None, "task": None}), rl=())
        )


@pytest.mark.parametrize("target", LEARNING)
def test_what_is_moved_to_the_host_is_told_or_refused(target: str) -> None:
    learns = targets()[target].learns
    for away in learning.ANY_WAY:
        plan = changed(plan_for(target), away=away)
        if away in learns.away:
            assert targets()[target].files(plan)
        else:
            assert (
                " or ".join(" and ".join(each) or "nothing" for each in learns.away)
                == problems(target, plan)["rl"].need
            )


@pytest.mark.parametrize("target", LEARNING)
def test_an_algorithm_an_engine_or_a_place_that_it_has_not_is_refused(target: str) -> None:
    learns = targets()[target].learns
    wrong: dict[str, Any] = {}
    if "remax" not in learns.algorithms:
        wrong["algorithm"] = "remax"
    if "split" not in learns.placements:
        wrong["placement"] = "split"
    plan = plan_for(target)
    other = {"vllm", "sglang"} - set(learns.engines)
    if other:
        wrong["rollout"] = learning.section(plan).rollout.model_copy(update={"engine": other.pop()})
    found = problems(target, changed(plan, rl=wrong))
    assert {f"rl.{name}" + ".engine" * (name == "rollout") for name in wrong} == set(found)


@pytest.mark.parametrize("target", LEARNING)
def test_an_advantage_over_responses_to_a_prompt_needs_several(target: str) -> None:
    plan, learns = plan_for(target), targets()[target].learns
    for algorithm in learns.algorithms:
        one = changed(plan, rl={"algorithm": algorithm, "samples": 1, "prompts": 256})
        if algorithm in ("grpo", "dapo", "gspo", "rloo"):
            assert problems(target, one)["rl.samples"].need == "2 or more"
        else:
            assert targets()[target].files(one)


@pytest.mark.parametrize(
    ("target", "file", "low", "high"),
    [
        ("verl", "train.sh", "clip_ratio_low=", "actor_rollout_ref.actor.clip_ratio_high="),
        ("verl-fsdp", "train.sh", "clip_ratio_low=", "actor_rollout_ref.actor.clip_ratio_high="),
        ("slime", "train.sh", "--eps-clip ", "--eps-clip-high "),
        ("openrlhf", "train.sh", "--actor.eps_clip_low_high ", " "),
        ("nemo-rl", "grpo.yaml", "ratio_clip_min: ", "ratio_clip_max: "),
        ("trl", "config.yaml", "epsilon: ", "epsilon_high: "),
    ],
)
@pytest.mark.parametrize(("algorithm", "ends"), [("dapo", (0.2, 0.28)), ("gspo", (3e-4, 4e-4)), ("grpo", None)])
def test_a_ratio_is_clipped_as_the_algorithms_papers_have_it(
    target: str, file: str, low: str, high: str, algorithm: str, ends: tuple[float, float] | None
) -> None:
    files = render(changed(plan_for(target), rl={"algorithm": algorithm}), target)
    found = re.search(rf"{re.escape(low)}(\S+)\s*{re.escape(high)}(\S+)", files[file])
    assert (found and tuple(map(float, found.groups()))) == ends


@pytest.mark.parametrize(
    ("ends", "first", "last"),
    [
        ({"first_stage_layers": 20}, 20, None),
        ({"account_for_embedding": True, "account_for_loss": True}, 16, 16),
        ({"account_for_loss": True}, 16, 15),
    ],
)
def test_nemo_rl_is_told_the_layers_of_the_first_and_last_stage(
    ends: dict[str, Any], first: int | None, last: int | None
) -> None:
    plan = with_options(plan_for("nemo-rl"), **ends)
    layers = 32 - (ends == {"account_for_loss": True})  # two stages share them and the ends out
    plan = replace(plan, model=plan.model.model_copy(update={"num_hidden_layers": layers}))
    plan = replace(plan, best=replace(plan.best, configuration=replace(plan.best.configuration, pp=2)))
    told = nemo_rl.sections(plan)["policy"]["megatron_cfg"]
    assert [told.get(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last")] == [first, last]


@pytest.mark.parametrize("target", ["verl-fsdp", "openrlhf"])
@pytest.mark.parametrize(("model", "field"), [("granite-4.0-h-small", "mixers"), ("gpt-oss-120b", "attention_sinks")])
def test_what_transformers_cannot_pack_is_refused(target: str, model: str, field: str) -> None:
    assert field in problems(target, replace(plan_for(target), model=load_model(model)))


def test_the_pages_tables_say_what_targets_answer() -> None:
    """A target that is for a task can be told one on a usual model, and no other; adapters are the framework's."""
    assert is_current("targets"), "python -m tools generate targets"
    assert is_current("rl"), "python -m tools generate rl"
    for target in targets().values():
        able = {task for task in TASKS if is_able(target, task)}
        assert able <= set(target.tasks)
        assert set(target.tasks) - able <= {"lora"}


@pytest.mark.parametrize("target", ["verl", "verl-fsdp", "openrlhf", "nemo-rl"])
def test_the_weights_that_a_job_names_are_those_that_are_started_from(target: str) -> None:
    files = render(plan_for(target, hf_weights="/weights/own"), target)
    told = {"nemo-rl": ("grpo.yaml", "model_name: /weights/own")}
    name, words = told.get(target, ("train.sh", "MODEL_DEFAULT=/weights/own"))
    assert words in files[name]
