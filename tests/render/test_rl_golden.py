"""What programs of reinforcement learning are told, word by word, and what is read of it: written down apart from their
tables of keys. Words were checked by the programs' own parsers (tools/verify/formats)."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.api import existing
from symconfig.descriptor.sections import Adapter
from symconfig.format import picked
from symconfig.plans.configuration import DEGREES
from symconfig.plans.plan import Plan
from symconfig.render import targets
from tests.render.test_learning import changed, with_options
from tests.sample_models import sample_model
from tests.sample_plans import learning_plan

GOLDEN = Path(__file__).parent / "golden" / "rl"
TRAINING = {"lr": 2e-6, "min_lr": 1e-7, "adam_beta2": 0.97, "weight_decay": 0.03, "save": "/s", "train_iters": 40}


def plan_for(target: str, model: str = "llama2-13b", **rl: Any) -> Plan:
    learns = targets()[target].learns
    plan = learning_plan(TRAINING, targets()[target].assumes["backend"], learns.away[-1])
    return changed(replace(plan, model=sample_model(model)), rl={"epochs": 2 if learns.epochs else 1, **rl})


def with_experts(target: str) -> Plan:
    plan = with_options(plan_for(target, "qwen3-30b-a3b"), moe_dispatcher="flex", moe_flex_backend="deepep")
    plan = replace(plan, best=replace(plan.best, configuration=replace(plan.best.configuration, ep=4)))
    return changed(plan, rollout_dp=2)


def with_critic(target: str) -> Plan:
    plan = plan_for(target, algorithm="ppo", samples=1, prompts=256, reference=True, entropy=True)
    full: dict[str, Any] = {"recompute": "full", "recompute_modules": (), "recompute_method": "uniform"}
    if target != "verl":
        return with_options(plan, **full)
    first = with_options(plan, recompute="selective", recompute_modules=("core_attn", "mlp"))
    return changed(first, critic=replace(plan.best.configuration, tp=4, dp=2, **full))


def with_adapter(target: str) -> Plan:
    plan = plan_for(target, algorithm="dapo")
    adapter = Adapter(method="lora", r=24, target_modules=("q_proj", "o_proj"), lora_alpha=48.0)
    return replace(plan, model=plan.model.model_copy(update={"adapter": adapter}))


def gspo(target: str) -> Plan:
    return plan_for(target, algorithm="gspo", reference=True, updates=2)


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
