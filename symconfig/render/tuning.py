"""What targets that fine-tune with Transformers' Trainer on a published model have alike."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace as Run
from typing import Any

from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import accelerate, deepspeed, learning, monitors, refusals, trainer
from symconfig.render.files import File
from symconfig.render.fill import as_yaml
from symconfig.render.refusals import of_fsdp
from symconfig.render.summary import predicted_for
from symconfig.render.weights import fine_tuned

DEEPSPEED = "ds_config_hf.json"


def variables(
    plan: Plan, name: str, release: str, *others: Problem, launcher: str = accelerate.NAMED
) -> dict[str, object]:
    """Return the templates' variables that all fine-tuning programs share.

    name, release: the program's. launcher: the name of Accelerate for FSDP. Raises InfeasibleError with all that the
    program does not support, and with `others`.
    """
    sharded = of_fsdp(plan)
    faults = (
        *(accelerate.of_shards(plan) if sharded else refusals.problems(plan)),
        *trainer.problems(plan),
        *trainer.schedule_problems(plan, unwrapped=sharded),
        *trainer.load_problems(plan),
        *trainer.program_problems(plan, name),
        *others,
    )
    if faults:
        raise InfeasibleError(faults)
    return {
        "framework": f"{name} {release} and " + (launcher if sharded else f"DeepSpeed {DEEPSPEED_RELEASE}"),
        "release": release,
        "sharded": sharded,
        "variables": (*deepspeed.environment_variables(plan), *monitors.trainer_variables(plan)),
        "predicted_for": "" if sharded else predicted_for(plan, "deepspeed"),
    }


def texts(plan: Plan, *, recomputes: bool = True) -> Iterator[File]:
    """Yield the DeepSpeed JSON, or Accelerate's file for FSDP 2. recomputes: that file switches on recompute."""
    if of_fsdp(plan):
        yield File(accelerate.CONFIG, as_yaml(accelerate.shards(plan, recomputes)) + "\n")
    else:
        yield trainer.json_file(DEEPSPEED, deepspeed.config_auto(plan))


def arguments(plan: Plan) -> dict[str, Any]:
    """Return TrainingArguments as JSON data, with the DeepSpeed JSON's name unless the plan is for FSDP."""
    return trainer.arguments(plan, None if of_fsdp(plan) else DEEPSPEED)


def run_of(plan: Plan, **more: object) -> Run:
    """Return the plan as namespaces for the tables of keys (`formats.tuners`).

    more: further fields, which replace others.
    """
    lora = plan.model.adapter
    run = learning.run_of(plan, target_modules(plan.model) if lora else ())
    if lora is not None:
        run.adapter.lora_alpha, run.adapter.scores = int(lora.lora_alpha), plan.task == "reward"
        run.adapter.targets = list(run.adapter.targets)
    run.named, run.tuned = trainer.named(plan), fine_tuned(plan)
    run.attention = deepspeed.attention(plan)
    run.recomputes = plan.best.options.recompute.granularity != "none"
    run.quantised = Run(dtype=run.dtype) if lora is not None and lora.method == "qlora" else None
    vars(run).update(more)
    return run
