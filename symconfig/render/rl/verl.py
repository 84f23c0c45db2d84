"""Targets verl and verl-fsdp: Hydra overrides for a step of reinforcement learning, and train.sh.

The workers are Megatron-LM's, or PyTorch's FSDP 2: these keep fp32 shards on all GPUs, gather a layer in 16 bits, and
split sequences by Ulysses; a reference is always on the host.

Names are those of verl 0.9.1, trainer/config. What the job does not say of the algorithm is left as verl has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from symconfig.descriptor.tuning import Rl
from symconfig.errors import Problem
from symconfig.formats import verl as formats
from symconfig.formats.keys import write
from symconfig.frameworks.deepspeed import adapters as peft
from symconfig.frameworks.known import TORCH_RELEASE
from symconfig.frameworks.megatron import adapters, environment
from symconfig.plans.plan import Plan
from symconfig.render import learning, shared
from symconfig.render.learning import Learns, Rewarding
from symconfig.render.shared import STEPS_COUNTING, refused
from symconfig.render.target import Saving, Target, ignored

_KINDS = {"LoRA": "lora", "CanonicalLoRA": "canonical_lora"}  # of adapters, by Megatron-Bridge's names
# main_ppo has the engine on the actor's GPUs. Rewards come from engines of their own, beside it asleep in turn, or on
# GPUs of a pool of their own, which answer while others generate (experimental/reward_loop).
LEARNS = Learns(
    algorithms=tuple(formats.ADVANTAGES),
    engines=formats.ENGINES,
    adapters=True,
    rewards={"colocated": Rewarding(by="engine"), "apart": Rewarding(by="engine", overlaps="generation")},
    ranks_of_data=("vllm",),
    reads_apart=True,
)


def variables(plan: Plan, workers: str) -> dict[str, object]:
    """Return the templates' variables: overrides by bash array (`arrays`), config_name, release, notes, reward model,
    critic, and of the plan's environment only CUDA_DEVICE_MAX_CONNECTIONS, for Megatron. workers: "megatron" or "fsdp".
    Raises as `load_model` for the critic or reward model.
    """
    exported = environment.variables(plan, plan.best.target.version) if workers == "megatron" else ()
    return {
        "variables": tuple(each for each in exported if each.name == "CUDA_DEVICE_MAX_CONNECTIONS"),
        "notes": tuple(shared.step_notes(plan)),
        "framework": f"verl {formats.VERL.release}",
        "release": formats.VERL.release,
        "config_name": "ppo_megatron_trainer" if workers == "megatron" else "ppo_trainer",
        "arrays": {name: [[word] for word in words] for name, words in sections(plan, workers).items()},
        "reward_model": learning.reward_model(plan),
        "critic": learning.critic(plan),
    }


def words(plan: Plan, workers: str = "megatron") -> list[str]:
    """Return all overrides as words. workers: "megatron" or "fsdp"."""
    return [word for words in sections(plan, workers).values() for word in words]


def sections(plan: Plan, workers: str) -> dict[str, list[str]]:
    """Return the overrides, as key=value words, by section for "megatron" or "fsdp" workers. CRITIC and REWARD are
    there only if the job has such a model.
    """
    rl, targets = learning.section(plan), adapters.targets(plan.model) if workers == "megatron" else None
    modules = targets.modules if targets is not None else peft.modules(plan.model)
    run = learning.run_of(plan, modules, _KINDS[targets.kind] if targets is not None else "")
    return {
        name: [f"{key}={_value(value)}" for key, value in write(table, run).items()]
        for name, table in formats.WRITTEN[workers].items()
        if (name != "CRITIC" or rl.has_critic) and (name != "REWARD" or rl.reward_model is not None)
    }


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_value, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what verl's Megatron workers do not support: stages as `of_stages`, updates that do not divide the
    prompts, adapters that Megatron-Bridge lacks, and other optimizers than Adam.
    """
    yield from learning.of_stages(plan, formats.VERL.name)
    yield from _of_updates(learning.section(plan))
    yield from (Problem(reason, field="adapter") for reason in adapters.refusals(plan.model))
    yield from learning.of_adam(plan, formats.VERL.name)


def _of_updates(rl: Rl) -> Iterator[Problem]:
    """Yield a problem if the prompts of a step do not divide over its updates."""
    if rl.prompts % rl.updates:
        what, need = "verl divides a step's prompts over its updates", f"a divisor of {rl.prompts}"
        yield Problem(what, field="rl.updates", got=str(rl.updates), need=need)


def _of_fsdp(plan: Plan) -> Iterator[Problem]:
    """Yield what verl's FSDP workers do not support: failed FSDP constraints, what packing forbids, updates that do not
    divide the prompts, adapters that PEFT lacks, with dropout or not LoRA, and schedules but constant and cosine.
    """
    yield from refused(plan, "fsdp", TORCH_RELEASE).values()
    yield from learning.of_transformers(plan, formats.VERL.name)
    yield from _of_updates(learning.section(plan))
    yield from (Problem(reason, field="adapter") for reason in peft.refusals(plan.model))
    if (adapter := plan.model.adapter) is not None and adapter.lora_dropout:
        what = "verl's FSDP workers drop nothing before adapters"
        yield Problem(what, field="adapter.lora_dropout", got=f"{adapter.lora_dropout:g}", need="0")
    if adapter is not None and adapter.method != "lora":
        yield Problem("verl's FSDP workers train plain LoRA", field="adapter.method", got=adapter.method, need="lora")
    yield from learning.of_schedule(plan, "verl's FSDP workers", ("constant", "cosine"))


_COMMON = Target(
    name=formats.VERL.name,
    does="verl's overrides for reinforcement learning with Megatron workers and an engine beside them, and train.sh",
    variables=partial(variables, workers="megatron"),
    words=words,
    problems=_problems,
    assumes={"backend": "megatron"},
    learns=LEARNS,
    counts=STEPS_COUNTING,
    saving=Saving("trainer.save_freq", "bash train.sh trainer.save_freq=20 trainer.default_local_dir=DIR"),
    ignored_fields=ignored(
        formats.VERL.name,
        split="verl takes files for training and for validation",
        eval_iters="verl validates on the whole of its validation file",
        train_iters="a step is one batch of prompts; verl counts epochs of its data, or trainer.total_training_steps",
    ),
)
TARGETS = (
    _COMMON,
    replace(
        _COMMON,
        name="verl-fsdp",
        does="verl's overrides for reinforcement learning with FSDP workers and an engine beside them, and train.sh",
        variables=partial(variables, workers="fsdp"),
        words=partial(words, workers="fsdp"),
        problems=_of_fsdp,
        assumes={"backend": "fsdp"},
        learns=replace(LEARNS, reference="streamed", critic="alike"),
    ),
)
