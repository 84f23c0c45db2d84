"""Target accelerate: the configuration file of `accelerate launch --config_file`, with the DeepSpeed JSON it points to.

Keys are those of Accelerate 1.15 (`commands/config/config_args.py`, `commands/launch.py`). With a DeepSpeed JSON,
precision, accumulation, clipping and ZeRO stand in that JSON alone: Accelerate refuses them in both places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.frameworks.fsdp.backend import TORCH_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, monitors, refusals, trainer
from symconfig.render.files import File
from symconfig.render.refusals import refused
from symconfig.render.summary import Row, nodes, predicted_for
from symconfig.render.target import Target

RELEASE = "1.15.0"
_SCRIPT = "the training script decides it"
NAMED = f"Accelerate {RELEASE}"
CONFIG, DEEPSPEED = "accelerate_config.yaml", "ds_config.json"


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what Accelerate with DeepSpeed cannot run."""
    trainer.refuse(plan)
    return {
        "framework": f"{NAMED} and DeepSpeed {DEEPSPEED_RELEASE}",
        "config": config(plan),
        "variables": (*deepspeed.environment_variables(plan), *monitors.deepspeed_variables(plan)),
        "notes": deepspeed.notes(plan),
        "predicted_for": predicted_for(plan, "deepspeed"),
        "script": (*_loop(plan), *trainer.script_rows(plan)),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON without an optimizer, which the user's script makes, and the adapter's files."""
    native = deepspeed.config(plan)
    native.pop("optimizer", None)
    yield trainer.json_file(DEEPSPEED, native)
    yield from trainer.adapter_files(plan)


def config(plan: Plan) -> dict[str, Any]:
    """Return Accelerate's configuration file for DeepSpeed; launch.sh supplies rank, address and paths."""
    parallel = trainer.parallelism(plan)
    return {
        **_world(plan, "DEEPSPEED"),
        "deepspeed_config": {
            "deepspeed_config_file": DEEPSPEED,
            "deepspeed_multinode_launcher": "standard",
            "zero3_init_flag": plan.best.options.zero_stage == 3,
        },
        **({"parallelism_config": parallel} if parallel else {}),
    }


def of_shards(plan: Plan) -> Iterator[Problem]:
    """Yield what FSDP 2 does not run, or Transformers' configuration of the model cannot express; QLoRA, too."""
    adapter = plan.model.adapter
    yield from (each.problem() for each in refused(plan, "fsdp", TORCH_RELEASE))
    yield from refusals.model_problems(plan)
    if adapter is not None and adapter.method != "lora":
        what = "weights in 4 bits are not known to train in FSDP 2's shards"
        yield Problem(what, field="adapter.method", got=adapter.method, need="lora")


def shards(plan: Plan, recomputes: bool = True) -> dict[str, Any]:
    """Return Accelerate's configuration file for FSDP 2, with one group per layer class of the model.

    recomputes: the file switches on recompute of all layers if the plan has it; otherwise the program does.
    """
    options, ranks = plan.best.options, plan.best.shard_ranks
    all_again = options.recompute.granularity != "none" and options.recompute.method != "block"
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
    """Return the fields for processes and machines. kind: Accelerate's distributed_type."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "num_machines": nodes(plan).count,
        "num_processes": plan.best.parallel.world_size,
        "machine_rank": 0,
        "same_network": True,
        "rdzv_backend": "static",
        "main_training_function": "main",
        "use_cpu": False,
    }


def _loop(plan: Plan) -> Iterator[Row]:
    """Yield rows of what the loop of the user's script must do itself."""
    training, batch = plan.training, plan.best.batch
    yield Row(
        "DataLoader",
        (
            f"batch_size={batch.micro}; of Accelerator.accumulate, DeepSpeed has its "
            f"{batch.num_microbatches} micro-batches already",
        ),
    )
    yield _script_row(plan)
    ranks = plan.best.parallel.world_size
    yield Row(
        "schedule",
        (
            f"{training.lr_decay_style} to {training.min_lr} after {training.lr_warmup_iters} steps of "
            f"warm-up, {training.train_iters} steps; to a scheduler that Accelerator.prepare gets, give "
            f"{training.lr_warmup_iters * ranks} and {training.train_iters * ranks}: each optimizer "
            f"step is {ranks} of its steps, one for each process",
        ),
    )
    if plan.best.parallel.cp > 1:
        yield Row(
            "mode",
            (
                "model.train() before the loop: a model that was loaded is in evaluation mode, in which "
                "Accelerate switches Ulysses off, and each rank attends to its own part only",
            ),
        )
        yield Row(
            "loss",
            (
                'over batch["shift_labels"], which Ulysses puts in the place of labels; the mean over all '
                "tokens of the sp ranks, not of each rank's mean",
            ),
        )
    recomputed = deepspeed.recompute_layers(plan) != 0
    yield Row("recompute", ("model.gradient_checkpointing_enable()" if recomputed else "none",))


def _script_row(plan: Plan) -> Row:
    """Return the row of the optimizer that the user's script makes."""
    training, optimizer = plan.training, plan.job.optimizer
    lr, decay = f"lr={training.lr}", f"weight_decay={training.weight_decay}"
    adam = f"{lr}, betas=({training.adam_beta1}, {training.adam_beta2}), eps={training.adam_eps}, {decay}"
    match optimizer.name:
        case "adam8bit":
            return Row("optimizer", (f"bitsandbytes.optim.AdamW8bit({adam})",))
        case "adafactor":
            fixed = "scale_parameter=False, relative_step=False"
            return Row("optimizer", (f"transformers.Adafactor({lr}, {decay}, {fixed})",))
        case "sgd":
            return Row("optimizer", (f"torch.optim.SGD({lr}, momentum={optimizer.speed}, {decay})",))
        case _:
            return Row("AdamW", (adam,))


TARGET = Target(
    name="accelerate",
    does="Accelerate's configuration file with the DeepSpeed JSON, and launch.sh, for a script with an Accelerator",
    variables=variables,
    texts=texts,
    assumes={"backend": "deepspeed"},
    counts=counting.STEPS,
    ignored_fields=dict.fromkeys(
        ("data_path", "split", "tokenizer_model", "tokenizer_type", "save", "load", "eval_iters", "manual_gc_interval"),
        _SCRIPT,
    ),
)
