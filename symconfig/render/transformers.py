"""Target transformers: TrainingArguments for any script with a Trainer, as JSON and as arguments.

`HfArgumentParser` reads both (Transformers 5.23): `parse_json_file("training_args.json")`, or launch.sh's words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.config_writer import config_json
from symconfig.frameworks import counting
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, deepspeed_launch, monitors, trainer
from symconfig.render.files import File
from symconfig.render.summary import Row, predicted_for

NAME = "transformers"
DOES = 'TrainingArguments for a script with Transformers\' Trainer, the DeepSpeed JSON with "auto", launch.sh'
ASSUMES = {"backend": "deepspeed"}
COUNTS = counting.STEPS
RELEASE = "5.23.0"
_SCRIPT = "the training script reads the data"
UNSAID = {
    "data_path": _SCRIPT,
    "split": _SCRIPT,
    "tokenizer_model": _SCRIPT,
    "tokenizer_type": _SCRIPT,
    "manual_gc_interval": "a script with a Trainer leaves garbage collection to Python",
}
ARGUMENTS, DEEPSPEED = "training_args.json", "ds_config_hf.json"

BUCKETS = (
    "Trainer sizes DeepSpeed's reduce bucket by its own rule, the square of the hidden size; the prediction is "
    "for the one of ds_config.json"
)


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what Trainer with DeepSpeed cannot run."""
    trainer.refuse(plan, *trainer.schedule_problems(plan), *trainer.load_problems(plan))
    own = deepspeed_launch.environment_variables(plan)
    return {
        "framework": f"Transformers {RELEASE} and DeepSpeed {DEEPSPEED_RELEASE}",
        "arguments": words(plan),
        "deepspeed_config": DEEPSPEED,
        "variables": (*own, *monitors.trainer_variables(plan), *trainer.ulysses_variables(plan)),
        "notes": (*deepspeed_launch.notes(plan), BUCKETS),
        "script": (*_resuming(plan), *trainer.script_rows(plan)),
        "predicted_for": predicted_for(plan, "deepspeed"),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the arguments and the DeepSpeed JSON, the model's config.json for random weights, the adapter's files."""
    yield trainer.json_file(ARGUMENTS, trainer.arguments(plan, DEEPSPEED))
    yield trainer.json_file(DEEPSPEED, deepspeed.config_auto(plan))
    yield trainer.json_file("model/config.json", config_json(plan.model))
    yield from trainer.adapter_files(plan)


def _resuming(plan: Plan) -> Iterator[Row]:
    """Yield what Trainer.train goes on from: what it is given, not its arguments."""
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
    """Return the arguments as words of a command; launch.sh gives `deepspeed` itself, which is a path of its own."""
    return tuple(
        f"--{name}={_word(value)}" for name, value in trainer.arguments(plan, DEEPSPEED).items() if name != "deepspeed"
    )


def _word(value: Any) -> str:
    if isinstance(value, list):  # HfArgumentParser takes one name for report_to, or all that are installed
        return str(value[0]) if len(value) == 1 else "all"
    return json.dumps(value) if isinstance(value, dict) else str(value)
