"""Targets accelerate and transformers: files for a person's own script with an Accelerator, or with a Trainer.

accelerate writes the configuration file of `accelerate launch --config_file` with the DeepSpeed JSON that it points to.
transformers writes TrainingArguments as JSON and as arguments, which `HfArgumentParser` reads (Transformers 5.23):
`parse_json_file("training_args.json")`, or launch.sh's words. Trainer runs DeepSpeed, or PyTorch's FSDP 2, which
Accelerate's launcher configures.

Keys are those of Accelerate 1.15 (`commands/config/config_args.py`, `commands/launch.py`). With a DeepSpeed JSON,
precision, accumulation, clipping and ZeRO stand in that JSON alone: Accelerate refuses them in both places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.write import config_json
from symconfig.errors import Problem
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED_RELEASE
from symconfig.frameworks.known import TORCH_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, shared, trainer
from symconfig.render.files import File
from symconfig.render.fill import as_yaml
from symconfig.render.shared import STEPS_COUNTING, nodes, of_fsdp, refused
from symconfig.render.target import Target

RELEASE = "1.15.0"
_SCRIPT = "the training script decides it"
NAMED = f"Accelerate {RELEASE}"
CONFIG, DEEPSPEED, JSON_AUTO = "accelerate_config.yaml", "ds_config.json", "ds_config_hf.json"
TRANSFORMERS = "5.23.0"
_READS = "the training script reads the data"


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables for a script with Accelerate: release names, config (Accelerate's file for
    DeepSpeed as a dict, with cp > 1 also its parallelism_config for Ulysses), environment, notes, and `script`, rows of
    what the user's loop must do. In config ds_config.json is referred to by name; launch.sh supplies rank, address and
    paths.
    """
    parallel = trainer.parallelism(plan)
    stage = {"deepspeed_multinode_launcher": "standard", "zero3_init_flag": plan.best.configuration.zero_stage == 3}
    return {
        "framework": f"{NAMED} and DeepSpeed {DEEPSPEED_RELEASE}",
        "config": {
            **_world(plan, "DEEPSPEED"),
            "deepspeed_config": {"deepspeed_config_file": DEEPSPEED, **stage},
            **({"parallelism_config": parallel} if parallel else {}),
        },
        "variables": deepspeed.environment_variables(plan, deepspeed.BY_DEEPSPEED),
        "notes": deepspeed.notes(plan),
        "script": (*_loop(plan), *trainer.script_rows(plan)),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield ds_config.json without its optimizer, which the user's script makes, and the adapter's files, if any.
    Raises InfeasibleError for what DeepSpeed cannot run.
    """
    native = deepspeed.config(plan)
    native.pop("optimizer", None)
    yield trainer.json_file(DEEPSPEED, native)
    yield from trainer.adapter_files(plan)


def of_shards(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each FSDP 2 constraint that fails, each model field that Transformers' config lacks, and
    QLoRA.
    """
    adapter = plan.model.adapter
    yield from refused(plan, "fsdp", TORCH_RELEASE).values()
    yield from shared.model_problems(plan)
    if adapter is not None and adapter.method != "lora":
        what = "weights in 4 bits are not known to train in FSDP 2's shards"
        yield Problem(what, field="adapter.method", got=adapter.method, need="lora")


def shards(plan: Plan, recomputes: bool = True) -> dict[str, Any]:
    """Return Accelerate's configuration file for FSDP 2 as a dict; wrapped by the model's layer classes, always
    resharded.

    recomputes: fsdp_activation_checkpointing is on if the plan recomputes all layers (not the "block" method); False:
    off, as the program recomputes. With hybrid sharding (`shard_ranks` set) it has parallelism_config of instances x
    shards.
    """
    options, ranks = plan.best.configuration, plan.best.shard_ranks
    all_again = options.recompute != "none" and options.recompute_method != "block"
    mesh = {"dp_replicate_size": options.instances, "dp_shard_size": ranks, "tp_size": 1, "cp_size": 1}
    return {
        **_world(plan, "FSDP"),
        "mixed_precision": options.precision,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_offload_params": options.param_offload,
            "fsdp_activation_checkpointing": recomputes and all_again,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        **({} if ranks is None else {"parallelism_config": {f"parallelism_config_{n}": v for n, v in mesh.items()}}),
    }


def _world(plan: Plan, kind: str) -> dict[str, Any]:
    """Return the fields for processes and machines; kind: Accelerate's distributed_type. machine_rank is 0, which
    launch.sh overrides.
    """
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "num_machines": nodes(plan).count,
        "num_processes": plan.best.configuration.world_size,
        "machine_rank": 0,
        "same_network": True,
        "rdzv_backend": "static",
        "main_training_function": "main",
        "use_cpu": False,
    }


def _loop(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield rows of what the user's training loop must do itself: batch size, optimizer, schedule, recompute. With cp >
    1 also rows for model.train() and for the loss over shift_labels. Scheduler steps are multiplied by the number of
    ranks, as Accelerate steps it once for each process.
    """
    training, optimizer, batch = plan.training, plan.job.optimizer, plan.best.configuration
    yield (
        "DataLoader",
        f"batch_size={batch.micro}; of Accelerator.accumulate, DeepSpeed has its {batch.num_microbatches} "
        "micro-batches already",
    )
    lr, decay = f"lr={training.lr}", f"weight_decay={training.weight_decay}"
    adam = f"{lr}, betas=({training.adam_beta1}, {training.adam_beta2}), eps={training.adam_eps}, {decay}"
    others = {
        "adam8bit": f"bitsandbytes.optim.AdamW8bit({adam})",
        "adafactor": f"transformers.Adafactor({lr}, {decay}, scale_parameter=False, relative_step=False)",
        "sgd": f"torch.optim.SGD({lr}, momentum={optimizer.speed}, {decay})",
    }
    yield ("optimizer", others[optimizer.name]) if optimizer.name in others else ("AdamW", adam)
    ranks = batch.world_size
    yield (
        "schedule",
        f"{training.lr_decay_style} to {training.min_lr} after {training.lr_warmup_iters} steps of warm-up, "
        f"{training.train_iters} steps; to a scheduler that Accelerator.prepare gets, give "
        f"{training.lr_warmup_iters * ranks} and {training.train_iters * ranks}: each optimizer step is {ranks} of its "
        "steps, one for each process",
    )
    if batch.cp > 1:
        yield (
            "mode",
            "model.train() before the loop: a model that was loaded is in evaluation mode, in which Accelerate "
            "switches Ulysses off, and each rank attends to its own part only",
        )
        yield (
            "loss",
            'over batch["shift_labels"], which Ulysses puts in the place of labels; the mean over all tokens of the sp '
            "ranks, not of each rank's mean",
        )
    yield "recompute", "model.gradient_checkpointing_enable()" if deepspeed.recompute_layers(plan) else "none"


def trainer_problems(plan: Plan, program: str | None = None) -> Iterator[Problem]:
    """Yield what DeepSpeed or FSDP 2 under the Trainer, the Trainer, or a program around it does not support. program:
    its name; None: the user's own script.
    """
    sharded = of_fsdp(plan)
    yield from of_shards(plan) if sharded else shared.problems(plan)
    yield from trainer.schedule_problems(plan, unwrapped=sharded)
    yield from trainer.load_problems(plan)
    if program is not None:
        yield from trainer.program_problems(plan, program)


def trainer_variables(plan: Plan, name: str, release: str, launcher: str = NAMED) -> dict[str, object]:
    """Return the templates' variables that all programs with a Trainer share: framework, release, sharded (by FSDP),
    variables (of the environment), and with FSDP predicted_for, "".

    name, release: the program's. launcher: Accelerate's name and release in `framework` for FSDP, else DeepSpeed's is
    there.
    """
    sharded = of_fsdp(plan)
    return {
        "framework": f"{name} {release} and " + (launcher if sharded else f"DeepSpeed {DEEPSPEED_RELEASE}"),
        "release": release,
        "sharded": sharded,
        "variables": (*deepspeed.environment_variables(plan, deepspeed.BY_TRAINER), *trainer.ulysses_variables(plan)),
        **({"predicted_for": ""} if sharded else {}),
    }


BUCKETS = (
    "Trainer sizes DeepSpeed's reduce bucket by its own rule, the square of the hidden size; the prediction is "
    "for the one of ds_config.json"
)


def _of_trainer(plan: Plan) -> dict[str, object]:
    """Return the templates' variables for a script with a Trainer: those of `trainer_variables`, arguments
    (--name=value), notes (with DeepSpeed one on its reduce buckets), and script rows; the first one is the checkpoint
    that Trainer.train must get, if the job resumes.
    """
    last = "trainer_utils.get_last_checkpoint(output_dir)"
    resumes = "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)" if plan.training.load else ""
    if plan.training.loads_its_own:
        resumes = (
            f"trainer.train(resume_from_checkpoint={last}), which needs the folder, and is None where it has none yet"
        )
    return {
        **trainer_variables(plan, "Transformers", TRANSFORMERS),
        "arguments": words(plan),
        "deepspeed_config": JSON_AUTO,
        "notes": (*deepspeed.notes(plan), *(() if of_fsdp(plan) else (BUCKETS,))),
        "script": (*([("checkpoint", resumes)] if resumes else []), *trainer.script_rows(plan)),
    }


def sharding_file(plan: Plan, recomputes: bool = True) -> File:
    """Return Accelerate's file for FSDP 2 (`shards`), or ds_config_hf.json for DeepSpeed. Raises InfeasibleError for
    what DeepSpeed cannot run.
    """
    if of_fsdp(plan):
        return File(CONFIG, as_yaml(shards(plan, recomputes)) + "\n")
    return trainer.json_file(JSON_AUTO, deepspeed.config_auto(plan))


def _trainer_files(plan: Plan) -> Iterator[File]:
    """Yield training_args.json, Accelerate's file (FSDP) or ds_config_hf.json (DeepSpeed), the model's config.json, and
    the adapter's files, if any.
    """
    yield trainer.json_file("training_args.json", trainer_arguments(plan))
    yield sharding_file(plan)
    yield trainer.json_file("model/config.json", config_json(plan.model))
    yield from trainer.adapter_files(plan)


def trainer_arguments(plan: Plan) -> dict[str, Any]:
    """Return TrainingArguments as JSON data, with the DeepSpeed JSON's name unless the plan is for FSDP."""
    return trainer.arguments(plan, None if of_fsdp(plan) else JSON_AUTO)


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what DeepSpeed or FSDP 2 under the Trainer cannot run: framework, schedule and `load`; with FSDP also
    recompute of some layers that are not every n-th.
    """
    yield from trainer_problems(plan)
    if of_fsdp(plan) and plan.best.configuration.recompute_method == "block" and trainer.every_nth(plan) is None:
        pins = ("recompute=none", "recompute=full")
        yield Problem("Transformers recomputes every n-th layer or none", field="recompute", pins=pins)


def words(plan: Plan) -> tuple[str, ...]:
    """Return the arguments as --name=value words without `deepspeed`, whose path launch.sh adds."""
    return tuple(f"--{name}={_word(value)}" for name, value in trainer_arguments(plan).items() if name != "deepspeed")


def _word(value: Any) -> str:
    if isinstance(value, list):  # HfArgumentParser takes one name for report_to, or all that are installed
        return str(value[0]) if len(value) == 1 else "all"
    return json.dumps(value) if isinstance(value, dict) else str(value)


TARGETS = (
    Target(
        name="accelerate",
        does="Accelerate's configuration file with the DeepSpeed JSON, and launch.sh, for a script with an Accelerator",
        variables=variables,
        problems=shared.problems,
        texts=texts,
        assumes={"backend": "deepspeed"},
        counts=STEPS_COUNTING,
        ignored_fields=dict.fromkeys(
            (
                "data_path",
                "split",
                "tokenizer_model",
                "tokenizer_type",
                "save",
                "load",
                "eval_iters",
                "manual_gc_interval",
            ),
            _SCRIPT,
        ),
    ),
    Target(
        name="transformers",
        does="TrainingArguments for a script with Transformers' Trainer, "
        "the DeepSpeed JSON or Accelerate's file, launch.sh",
        variables=_of_trainer,
        problems=_problems,
        words=words,
        texts=_trainer_files,
        assumes={"backend": "deepspeed"},
        counts=STEPS_COUNTING,
        ignored_fields={
            **dict.fromkeys(("data_path", "split", "tokenizer_model", "tokenizer_type"), _READS),
            "manual_gc_interval": "a script with a Trainer leaves garbage collection to Python",
        },
    ),
)
