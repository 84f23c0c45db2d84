"""Target transformers: TrainingArguments for any script with a Trainer, as JSON and as arguments.

`HfArgumentParser` reads both (Transformers 5.23): `parse_json_file("training_args.json")`, or launch.sh's words.
Trainer runs DeepSpeed, or PyTorch's FSDP 2, which Accelerate's launcher is told of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.config_writer import config_json
from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks import counting
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import accelerate, deepspeed, monitors, trainer
from symconfig.render.files import File
from symconfig.render.fill import as_yaml
from symconfig.render.refusals import of_fsdp
from symconfig.render.summary import Row, predicted_for
from symconfig.render.target import Target

RELEASE = "5.23.0"
_SCRIPT = "the training script reads the data"
ARGUMENTS, DEEPSPEED = "training_args.json", "ds_config_hf.json"

BUCKETS = (
    "Trainer sizes DeepSpeed's reduce bucket by its own rule, the square of the hidden size; the prediction is "
    "for the one of ds_config.json"
)


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables. Raises InfeasibleError for what the Trainer cannot run."""
    sharded = of_fsdp(plan)
    others = (*trainer.schedule_problems(plan, unwrapped=sharded), *trainer.load_problems(plan))
    if sharded and (faults := (*_of_shards(plan), *trainer.problems(plan, every_layer=False), *others)):
        raise InfeasibleError(faults)
    if not sharded:
        trainer.refuse(plan, *others)
    own = deepspeed.environment_variables(plan)
    return {
        "framework": f"Transformers {RELEASE} and "
        + (accelerate.NAMED if sharded else f"DeepSpeed {DEEPSPEED_RELEASE}"),
        "sharded": sharded,
        "arguments": words(plan),
        "deepspeed_config": DEEPSPEED,
        "variables": (*own, *monitors.trainer_variables(plan), *trainer.ulysses_variables(plan)),
        "notes": (*deepspeed.notes(plan), *(() if sharded else (BUCKETS,))),
        "script": (*_resuming(plan), *trainer.script_rows(plan)),
        "predicted_for": "" if sharded else predicted_for(plan, "deepspeed"),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the arguments, the DeepSpeed JSON or Accelerate's file for FSDP 2, the model's config.json and the
    adapter's files.
    """
    yield trainer.json_file(ARGUMENTS, _arguments(plan))
    if of_fsdp(plan):
        yield File(accelerate.CONFIG, as_yaml(accelerate.shards(plan)) + "\n")
    else:
        yield trainer.json_file(DEEPSPEED, deepspeed.config_auto(plan))
    yield trainer.json_file("model/config.json", config_json(plan.model))
    yield from trainer.adapter_files(plan)


def _arguments(plan: Plan) -> dict[str, Any]:
    return trainer.arguments(plan, None if of_fsdp(plan) else DEEPSPEED)


def _of_shards(plan: Plan) -> Iterator[Problem]:
    """Yield what does not run with FSDP 2 under Accelerate, Ulysses included."""
    yield from accelerate.of_shards(plan)
    if (cp := plan.best.parallel.cp) > 1:
        yield Problem("Accelerate runs Ulysses with DeepSpeed alone", field="cp", got=str(cp), pins=("cp=1",))


def _resuming(plan: Plan) -> Iterator[Row]:
    """Yield the row of what the script must pass to Trainer.train to resume; nothing if it does not resume."""
    training = plan.training
    if training.loads_its_own:
        yield Row(
            "checkpoint",
            (
                "trainer.train(resume_from_checkpoint=trainer_utils.get_last_checkpoint(output_dir)), "
                "which needs the folder, and is None where it has none yet",
            ),
        )
    elif training.load:
        yield Row("checkpoint", ("trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)",))


def words(plan: Plan) -> tuple[str, ...]:
    """Return the arguments as --name=value words without `deepspeed`, whose path launch.sh adds."""
    return tuple(f"--{name}={_word(value)}" for name, value in _arguments(plan).items() if name != "deepspeed")


def _word(value: Any) -> str:
    if isinstance(value, list):  # HfArgumentParser takes one name for report_to, or all that are installed
        return str(value[0]) if len(value) == 1 else "all"
    return json.dumps(value) if isinstance(value, dict) else str(value)


TARGET = Target(
    name="transformers",
    does="TrainingArguments for a script with Transformers' Trainer, "
    "the DeepSpeed JSON or Accelerate's file, launch.sh",
    variables=variables,
    texts=texts,
    assumes={"backend": "deepspeed"},
    counts=counting.STEPS,
    ignored_fields={
        "data_path": _SCRIPT,
        "split": _SCRIPT,
        "tokenizer_model": _SCRIPT,
        "tokenizer_type": _SCRIPT,
        "manual_gc_interval": "a script with a Trainer leaves garbage collection to Python",
    },
)
