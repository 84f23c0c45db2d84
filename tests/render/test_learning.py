"""Targets for reinforcement learning: what each is told, word by word, and what it refuses beforehand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.api import existing
from symconfig.descriptor.load import load_model
from symconfig.descriptor.sections import Adapter
from symconfig.descriptor.task import TASKS
from symconfig.errors import InfeasibleError, Problem
from symconfig.format import picked
from symconfig.plans.configuration import DEGREES
from symconfig.plans.plan import Plan
from symconfig.render import learning, render, targets
from symconfig.render.rl import nemo_rl
from tests.sample_models import sample_model
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


GOLDEN = Path(__file__).parent / "golden" / "rl"
TRAINING = {"lr": 2e-6, "min_lr": 1e-7, "adam_beta2": 0.97, "weight_decay": 0.03, "save": "/s", "train_iters": 40}


def written_plan(target: str, model: str = "llama2-13b", **rl: Any) -> Plan:
    learns = targets()[target].learns
    plan = learning_plan(TRAINING, targets()[target].assumes["backend"], learns.away[-1])
    return changed(replace(plan, model=sample_model(model)), rl={"epochs": 2 if learns.epochs else 1, **rl})


def with_experts(target: str) -> Plan:
    plan = with_options(written_plan(target, "qwen3-30b-a3b"), moe_dispatcher="flex", moe_flex_backend="deepep")
    plan = replace(plan, best=replace(plan.best, configuration=replace(plan.best.configuration, ep=4)))
    return changed(plan, rollout_dp=2)


def with_critic(target: str) -> Plan:
    plan = written_plan(target, algorithm="ppo", samples=1, prompts=256, reference=True, entropy=True)
    full: dict[str, Any] = {"recompute": "full", "recompute_modules": (), "recompute_method": "uniform"}
    if target != "verl":
        return with_options(plan, **full)
    first = with_options(plan, recompute="selective", recompute_modules=("core_attn", "mlp"))
    return changed(first, critic=replace(plan.best.configuration, tp=4, dp=2, **full))


def with_adapter(target: str) -> Plan:
    plan = written_plan(target, algorithm="dapo")
    adapter = Adapter(method="lora", r=24, target_modules=("q_proj", "o_proj"), lora_alpha=48.0)
    return replace(plan, model=plan.model.model_copy(update={"adapter": adapter}))


def gspo(target: str) -> Plan:
    return written_plan(target, algorithm="gspo", reference=True, updates=2)


CASES: tuple[tuple[str, Callable[[str], Plan]], ...] = (
    *(("verl", case) for case in (with_experts, with_critic, gspo)),
    *(("verl-fsdp", case) for case in (with_adapter, with_critic)),
    *(("openrlhf", case) for case in (with_critic, gspo)),
    *(("slime", case) for case in (with_experts, gspo)),
    *(("nemo-rl", case) for case in (with_experts, gspo)),
)


def told(target: str, plan: Plan) -> str:
    """What a program is told: a line for each option, or its YAML."""
    seen: dict[str, Any] = dict(targets()[target].variables(plan))
    if "sections" in seen:
        return yaml.safe_dump({name: keys for name, keys in seen["sections"].items() if keys})
    lines = (shlex.join(line) for lines in seen["arrays"].values() for line in lines)
    return "\n".join(lines) + "\n"


_VERL = "python3 -m verl.trainer.main_ppo --config-name {} actor_rollout_ref.model.path=Qwen/Qwen3-8B "
_RAY = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --reward.remote_url r.py "
_SLIME = "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint Qwen/Qwen3-8B "
COMMANDS = {
    "verl": _VERL.format("ppo_megatron_trainer"),
    "verl-fsdp": _VERL.format("ppo_trainer"),
    "openrlhf": _RAY,
    "slime": _SLIME,
}
# What has to be said: all else is the program's default.
LEAST = {
    "verl": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 critic.ppo_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    "verl-fsdp": "actor_rollout_ref.actor.use_dynamic_bsz=True critic.use_dynamic_bsz=False "
    "critic.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.model.lora_rank=8",
    "openrlhf": "--vllm.num_engines 8 --train.dynamic_batch_enable --ds.lora.rank 8",
    "slime": "--rollout-batch-size 64 --rollout-max-response-len 1024 --colocate",
    "nemo-rl": "policy: {model_name: Qwen/Qwen3-8B, megatron_cfg: {enabled: true, peft: {enabled: true}}}",
}


def read(target: str, said: str, folder: Path) -> dict[str, Any]:
    """What is read of it, in a job's terms and a plan's."""
    source = COMMANDS.get(target, "") + " ".join(said.split("\n"))
    if target == "nemo-rl":
        source = str(folder / "grpo.yaml")
        Path(source).write_text("defaults: grpo_math_1B.yaml\n" + said)
    found = existing.audit(source, "h100", 8, prompt_length=100.0, response_length=200.0, plan=False)
    assert found.judged is not None, [str(problem) for problem in found.unpredicted]
    run, critic = found.judged.run, found.judged.run.critic
    step, adapter = run.step, run.described.model.adapter
    answer = {
        "rl": step.rl.model_dump(exclude_none=True),
        "actor": _layout(run),
        "critic": None if critic is None else _layout(critic),
        "adapter": None if adapter is None else adapter.model_dump(),
        "read": {name: asdict(getattr(step, name)) for name in ("read", "reference_read")},
        "step": {name: getattr(step, name) for name in ("reference", "waits", "fused_logits", "chunked_logits")},
        "away": [*step.away],
    }
    whole: dict[str, Any] = yaml.safe_load(yaml.safe_dump(_plain(answer)))
    return whole


def _layout(run: Any) -> dict[str, Any]:
    names = ("sequence_parallel", "precision", "zero_stage", "moe_dispatcher", "moe_flex_backend", "optimizer_offload")
    c = run.configuration
    return {
        **picked(c, *DEGREES, *names),
        "batch": [c.micro, c.global_batch, c.seq_length],
        "recompute": c.recompute_text,
        "overlap": c.overlap_grad_reduce,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value


@pytest.mark.parametrize(("target", "case"), CASES)
def test_a_program_is_told_what_was_written_down(target: str, case: Callable[[str], Plan]) -> None:
    golden = GOLDEN / f"{target}-{case.__name__}.txt"
    assert told(target, case(target)) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [f"{target}-{case.__name__}" for target, case in CASES] + [*LEAST])
def test_what_is_read_is_what_was_written_down(name: str, tmp_path: Path) -> None:
    target, said = name.rpartition("-")[0] if name not in LEAST else name, LEAST.get(name)
    text = said or (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert read(target, text, tmp_path) == yaml.safe_load((GOLDEN / f"{name}.yaml").read_text(encoding="utf-8"))
