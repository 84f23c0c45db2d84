"""Steps that cannot be run or planned, and the sentences that say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api.planning import PlanResult, read_job
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.tuning import Rl
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.errors import InfeasibleError, InputError
from symconfig.render import verl
from symconfig.resources import data_dir
from symconfig.runs.rl.choose import answer
from symconfig.runs.rl.layouts import Question
from tests.runs.rl.support import planned, section, usual
from tests.sample_plans import learning_plan


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"updates": 3}, r"updates: do not divide prompts x samples"),
        ({"critic": "llama3.1-8b"}, r"grpo has no critic"),
        ({"rollout_gpus": 4}, r"rl.rollout_gpus: is for placement: split"),
        ({"prompt_length": {"mean": 300.0, "max": 256}}, r"rl.prompt_length.mean: is above max"),
        (
            {"prompt_length": {"mean": 100.0, "p95": 50.0, "max": 256}},
            r"rl.prompt_length.p95: is not between mean and max",
        ),
        ({"response_length": {"mean": 300.0, "max": 200_000}}, r"longest sequence is longer than the model's"),
    ],
)
def test_what_contradicts_is_said(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(**changed)


def test_nothing_fits_names_the_phase_or_the_update() -> None:
    with pytest.raises(InfeasibleError, match="no engine has room"):
        planned(rollout={"tp": 1, "memory_share": 0.2})


@pytest.mark.parametrize(
    ("gpus", "changed", "said"),
    [
        (8, {"tokens_per_gpu": 50}, r"rl.tokens_per_gpu: a micro-batch has no room .*got 50, need 160 tokens or more"),
        (8, {"rollout": {"tp": 3}}, r"rl.rollout.tp: an engine divides attention heads .*got 3, need a divisor of 32"),
        (8, {"rollout": {"tp": 16}}, r"rl.rollout.tp: does not divide the GPUs .*got tp 16, need a divisor of 8"),
        (8, {"rollout": {"tp": 8, "dp": 2}}, r"rl.rollout.dp: does not divide .*got tp 8 x dp 2, need a divisor of 8"),
        (8, {"placement": "split", "rollout_gpus": 8}, r"rl.rollout_gpus: leaves no GPU to train on"),
        (1, {"placement": "split"}, r"rl.rollout_gpus: leaves no GPU to train on"),
    ],
)
def test_what_leaves_nothing_to_plan_is_said(gpus: int, changed: dict[str, Any], said: str) -> None:
    job = {"model": "llama3.1-8b", "cluster": "h100", "gpus": gpus, "task": "rl", "global_batch_size": 128}
    asked = Job.model_validate(job | {"rl": Rl.model_validate(section(**changed))})
    model, cluster = load_model(asked.model), load_cluster(asked.cluster)
    assert asked.rl is not None
    with pytest.raises(InputError, match=said):
        answer(Question(model, cluster, asked, asked.rl, None, lambda of, job, most: usual()), 1)


def test_pins_bound_the_ranks_that_share_a_micro_batch_of_stated_tokens() -> None:
    assert planned(pins={"cp": "2"}, tokens_per_gpu=1280).best.configuration.cp == 2
    with pytest.raises(InputError, match="got 640, need 1280 tokens or more, with cp 1"):
        planned(pins={"cp": "1"}, tokens_per_gpu=640)


def test_a_job_that_names_no_target_goes_to_one_that_can_be_told_it() -> None:
    assert planned(gpus=16, placement="split").job.target == "slime"


def test_verl_divides_prompts_over_updates() -> None:
    with pytest.raises(InfeasibleError, match=r"rl.updates: verl divides a step's prompts .*got 128"):
        planned(target="verl", updates=128)


def test_a_job_of_another_task_has_no_section() -> None:
    with pytest.raises(InputError) as caught:
        symconfig.plan("llama3.1-8b", "h100", 8, 48, 4096, task="sft", rl=section())
    assert {problem.field for problem in caught.value.problems} == {"task", "global_batch_size", "seq_length"}
    with pytest.raises(InputError, match=r"^preference: is of another task than the section rl"):
        symconfig.plan("llama3.1-8b", "h100", 8, preference={"pairs": 64}, rl=section())
    with pytest.raises(InputError, match="task: rl needs a section rl"):
        symconfig.plan("llama3.1-8b", "h100", 8, 64, task="rl")


def test_a_plan_is_not_made_again_for_another_batch_than_its_section_says() -> None:
    with pytest.raises(InputError, match=r"global_batch_size: follows from the section rl.*got 64, need 256"):
        symconfig.replan(PlanResult(learning_plan()), global_batch_size=64)


def test_a_critic_is_looked_for_beside_the_job(tmp_path: Path) -> None:
    """Not in the folder that the program is started in, and the plan has its whole path."""
    own = data_dir("model_zoo") / "models" / "llama3.1-8b.yaml"
    (tmp_path / "small.yaml").write_text(own.read_text())
    job = tmp_path / "job.yaml"
    told = {"model": "llama3.1-8b", "cluster": "h100", "gpus": 16, "rl": section(algorithm="ppo", critic="small.yaml")}
    job.write_text(json.dumps(told))
    read = read_job(load_yaml_strict(job), model_base=tmp_path).job
    assert read.rl.critic == str(tmp_path / "small.yaml")
    job.write_text(json.dumps(told | {"rl": section(algorithm="ppo", critic="none.yaml")}))
    with pytest.raises(InputError, match=r"rl.critic: there is no such model file"):
        read_job(load_yaml_strict(job), model_base=tmp_path)
    words = verl.words(planned(gpus=16, algorithm="ppo", critic="llama3.1-8b"))
    assert "critic.model.path=meta-llama/Llama-3.1-8B" in words
