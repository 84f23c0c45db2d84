"""Target trl: the YAML of TRL's scripts for GRPO, DPO, KTO and models of rewards, with the DeepSpeed JSON or
Accelerate's file of FSDP 2; of trainers that no script of TRL's starts, a script, too.

Names are those of TRL 1.16 (`trainer/{grpo,dpo,kto,reward}_config.py`, `experimental/`, `scripts/`), beside those of
Transformers' Trainer. All pad each sequence to the longest of their batch, and only the experimental ones make whole
logits. GRPO keeps the actor on the GPU while vLLM generates there; DPO and models of rewards read chosen and rejected
answers in one forward, and a reference stays on the GPU, sharded where the policy is (`models/utils.py`,
prepare_deepspeed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.descriptor.tuning import LossName
from symconfig.errors import Problem
from symconfig.formats.keys import write
from symconfig.formats.tuners import TRL, TRL_MODEL, TRL_STEP
from symconfig.plans.plan import Plan
from symconfig.render import accelerate, deepspeed, learning, shared, trainer, tuners
from symconfig.render.learning import Compares, Learns, Rewarding
from symconfig.render.shared import STEPS_COUNTING, of_fsdp, training_problem
from symconfig.render.target import Target, ignored

LEARNS = Learns(
    algorithms=("grpo", "dapo", "gspo"),
    engines=("vllm",),
    away=((),),
    sequences="padded",
    reference="resident",
    rewards={"colocated": Rewarding(by="workers", together=True)},  # trainer/grpo_trainer.py, _calculate_rewards
)
# Losses of trainers that no script of TRL's starts (trl/experimental/), by trainer. They have no reference.
_EXPERIMENTAL: Mapping[LossName, str] = {"orpo": "orpo", "simpo": "cpo", "cpo": "cpo"}
# What its trainer of CPO is told of each of its losses.
_OF_CPO: Mapping[LossName, Mapping[str, Any]] = {
    "simpo": {"loss_type": "simpo", "cpo_alpha": 0.0},
    "cpo": {"loss_type": "sigmoid"},
}
# KTO's own forward for the KL term is before that which is learnt from (trainer/kto_trainer.py, _compute_loss).
COMPARES = Compares(
    losses=("sigmoid", "hinge", "ipo", *_EXPERIMENTAL, "kto", "apo_zero_unpaired", "reward"), first=("model",)
)

# What a person brings, by the answers of an example.
_DATA = (
    ("prompts", "prompts, in TRL's conversational form"),
    ("labelled answers", "labelled answers: prompt, completion, label"),
    ("pairs", "pairs: prompt, chosen, rejected"),
)
_BEFORE = "--precompute_ref_log_probs true reads all pairs with it before the first step, and lets it go"


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables; `script` is grpo for RL, else the task's name. Raises as `load_model` for the
    critic or reward model.
    """
    rl, notes = plan.job.rl, tuple(trainer.padded(plan, "max_length"))
    if rl is not None:
        cut = f"take those of more than {rl.prompt_length.max} tokens out of the data"
        notes = (f"TRL cuts no prompts: {cut}, for vLLM has room for {rl.longest} in all",)
    return {
        **accelerate.trainer_variables(plan, "TRL", TRL.release),
        "script": plan.task if plan.job.rl is None else "grpo",
        "experimental": _experimental(plan),
        "data": _DATA[learning.per_example(plan) if plan.job.rl is None else 0],
        "sections": sections(plan),
        "notes": (*shared.step_notes(plan, _BEFORE), *deepspeed.notes(plan), *notes),
        "reward_model": learning.reward_model(plan),
    }


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML's fields by section: model, data, the RL sections or preference, train. The data section has the
    first data set, and is empty if the job names none.
    """
    run, data = tuners.run_of(plan), plan.training.data_path
    return {
        "model": write(TRL_MODEL, run),
        "data": {"dataset_name": data[0]} if data else {},
        **({"preference": _pairs(plan)} if run.rl is None else {name: write(of, run) for name, of in TRL_STEP.items()}),
        "train": accelerate.trainer_arguments(plan),
    }


def _pairs(plan: Plan) -> dict[str, Any]:
    """Return the fields of preference training: loss and beta where the loss has them, and max_length. disable_dropout
    is False if the adapter has dropout, and else left to TRL.
    """
    preference, adapter = learning.preference(plan), plan.model.adapter
    loss = [preference.loss] if preference.means.task == "dpo" else preference.loss
    scaled: dict[str, Any] = {"loss_type": loss, "beta": preference.beta, "precompute_ref_log_probs": False}
    if _experimental(plan):
        scaled = {"beta": preference.beta, **_OF_CPO.get(preference.loss, {})}
    return {
        **(scaled if preference.means.scaled else {}),
        "max_length": plan.best.configuration.seq_length,
        **({"disable_dropout": False} if adapter is not None and adapter.lora_dropout else {}),
    }


def _experimental(plan: Plan) -> str | None:
    """Return the experimental trainer for the loss; None for losses (and RL) that TRL's own scripts cover."""
    return None if plan.job.preference is None else _EXPERIMENTAL.get(plan.job.preference.loss)


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what TRL does not support: what `trainer_problems` names, a full reference model with FSDP 2, and
    several data sets.
    """
    yield from accelerate.trainer_problems(plan, "TRL")
    rl, pairs = plan.job.rl, plan.job.preference
    reference = rl.reference if rl is not None else pairs is not None and pairs.has_reference
    if of_fsdp(plan) and reference and plan.model.adapter is None:
        what = "TRL has the whole reference as one group of FSDP 2, all of whose weights are gathered at once"
        yield Problem(what, field="reference", hint="--backend deepspeed, or adapters")
    if len(plan.training.data_path) > 1:
        yield training_problem(plan, "data_path", "TRL's script takes one data set")


TARGETS = (
    Target(
        name=TRL.name,
        does="TRL's YAML for GRPO with vLLM beside it, DPO, KTO and rewards, "
        "DeepSpeed's JSON or Accelerate's file, launch.sh",
        variables=variables,
        problems=_problems,
        texts=lambda plan: (accelerate.sharding_file(plan),),
        assumes={"backend": "deepspeed"},
        learns=LEARNS,
        compares=COMPARES,
        counts=STEPS_COUNTING,
        ignored_fields=ignored("TRL", split="TRL takes splits of a data set by their names"),
    ),
)
