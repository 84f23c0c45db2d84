"""Target verl-fsdp: verl's overrides for a step of reinforcement learning with workers of PyTorch's FSDP 2.

Names are those of verl 0.9.1, beside those of the target verl. The workers keep fp32 shards on all GPUs, gather a
layer in 16 bits, and split sequences by Ulysses; a reference is always on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.errors import Problem
from symconfig.frameworks.deepspeed import adapters
from symconfig.frameworks.fsdp.backend import TORCH_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import learning, step_words, verl
from symconfig.render.refusals import refused
from symconfig.render.target import Target

NAME = "verl-fsdp"
LEARNS = replace(verl.LEARNS, reference="streamed", critic="alike")
_SCHEDULES = ("constant", "cosine")


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables, for FSDP workers. Raises InfeasibleError for what verl does not support."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return {**verl.shown(plan, "fsdp", "ppo_trainer"), "variables": (), "notes": tuple(step_words.notes(plan))}


def words(plan: Plan) -> list[str]:
    """Return all overrides as words, for FSDP workers. Raises InfeasibleError for what verl does not support."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return [word for words in verl.sections(plan, "fsdp").values() for word in words]


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what verl's FSDP workers do not support."""
    training = plan.training
    yield from (each.problem() for each in refused(plan, "fsdp", TORCH_RELEASE))
    yield from learning.of_fsdp(plan, "verl")
    yield from verl.of_updates(learning.section(plan))
    yield from (Problem(reason, field="adapter") for reason in adapters.refusals(plan.model))
    if (adapter := plan.model.adapter) is not None and adapter.lora_dropout:
        what = "verl's FSDP workers drop nothing before adapters"
        yield Problem(what, field="adapter.lora_dropout", got=f"{adapter.lora_dropout:g}", need="0")
    if adapter is not None and adapter.method != "lora":
        yield Problem("verl's FSDP workers train plain LoRA", field="adapter.method", got=adapter.method, need="lora")
    if training.lr_decay_style not in _SCHEDULES:
        what, need = "verl's FSDP workers are told one of these alone", " or ".join(_SCHEDULES)
        yield Problem(what, field="training.lr_decay_style", got=training.lr_decay_style, need=need)


TARGET = Target(
    name=NAME,
    does="verl's overrides for reinforcement learning with FSDP workers and an engine beside them, and train.sh",
    variables=variables,
    assumes={"backend": "fsdp"},
    learns=LEARNS,
    counts=verl.COUNTS,
    saving=verl.SAVING,
    ignored_fields=verl.IGNORED_FIELDS,
)
