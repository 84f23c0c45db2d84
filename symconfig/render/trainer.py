"""The TrainingArguments of Transformers' Trainer for a plan, and what they cannot express.

Every format that ends in a Trainer uses this; `accelerate` uses what a script decides itself.
Names and schedules are those of Transformers 5.6 to 5.23 (`training_args.py`, `optimization.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from posixpath import basename, normpath
from typing import Any

from symconfig.errors import Problem
from symconfig.format import json_text
from symconfig.formats.deepspeed import own_optimizer
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.frameworks.megatron.environment import Variable
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, learning
from symconfig.render.deepspeed import attention
from symconfig.render.files import File
from symconfig.render.shared import hf_weights, training_problem

Json = dict[str, Any]

# Trainer makes every optimizer that the DeepSpeed JSON does not have itself, and tells DeepSpeed to take it
# (`integrations/deepspeed.py`, deepspeed_optim_sched); on the host it becomes DeepSpeed's (Accelerate 1.11,
# `map_pytorch_optim_to_deepspeed`).
_OPTIMIZERS = {"adam": "adamw_torch_fused", "adam8bit": "adamw_bnb_8bit", "adafactor": "adafactor", "sgd": "sgd"}
_CHECKPOINT = re.compile(r"checkpoint-\d+")  # trainer_utils.py, PREFIX_CHECKPOINT_DIR


def every_nth(plan: Plan) -> int | None:
    """Return n if recomputing every n-th layer gives the plan's number of layers, with FSDP and the method "block";
    else None. Transformers 5.24 can do so with FSDP 2; n >= 2, the smallest.
    """
    c, layers = plan.best.configuration, plan.model.num_hidden_layers
    if plan.best.target.backend != "fsdp" or c.recompute_method != "block":
        return None
    return next((n for n in range(2, layers + 1) if ceil(layers / n) == c.recompute_layers), None)


def schedule_problems(plan: Plan, *, unwrapped: bool = False) -> Iterator[Problem]:
    """Yield a problem for each part of the learning-rate schedule that the Trainer lacks.

    Linear decay with an optimizer that is not in the DeepSpeed JSON, unless unwrapped; decays that do not end with the
    run (constant excepted); inverse square root that would fall below min_lr, or has no warm-up. unwrapped: the Trainer
    asks its own optimizer for the rate, not DeepSpeed's wrapper.
    """
    training = plan.training
    if training.lr_decay_style == "linear" and not (unwrapped or own_optimizer(plan)):
        what = (
            "Trainer's linear decay asks the optimizer for its rate, which is lost where DeepSpeed wraps Trainer's own"
        )
        need = "cosine, or an optimizer of the DeepSpeed JSON"
        yield training_problem(plan, "lr_decay_style", what, need=need)
    decays = training.lr_decay_style != "constant"
    if decays and training.lr_decay_iters not in (None, training.train_iters):
        what = "Trainer's schedules decay until the last step"
        yield training_problem(plan, "lr_decay_iters", what, need=str(training.train_iters))
    if training.lr_decay_style == "inverse-square-root":
        end = training.lr * (max(training.lr_warmup_iters, 1) / training.train_iters) ** 0.5
        if end < training.min_lr:
            what = "Trainer's inverse square root has no lower bound, and this run would reach it"
            yield training_problem(plan, "min_lr", what, need=f"at most {end:.3g}")
        if not training.lr_warmup_iters:
            what = "Trainer's inverse square root takes its scale from the warm-up"
            yield training_problem(plan, "lr_warmup_iters", what, need="1 or more")


def program_problems(plan: Plan, name: str) -> Iterator[Problem]:
    """Yield what a program with its own training script lacks: models without a name, a fractional lora_alpha. name:
    the program's.
    """
    adapter = plan.model.adapter
    if named(plan) is None:
        what = f"{name} loads a model, its configuration and its tokenizer by name, and this one has none"
        yield Problem(what, field="huggingface_id", hint="--hf-weights ID, or a folder")
    if adapter is not None and adapter.lora_alpha != int(adapter.lora_alpha):
        yield Problem(f"{name} takes a whole number", field="adapter.lora_alpha", got=str(adapter.lora_alpha))


def padded(plan: Plan, longest: str) -> Iterator[str]:
    """Yield a note that the prediction is an upper bound, as sequences are padded to their micro-batch's longest;
    nothing if the job states their lengths. longest: the program's option for the maximum length.
    """
    if plan.job.sequences is None:
        yield (
            f"Sequences are padded to the longest of their micro-batch, not to {longest}: the prediction, for full "
            "ones, is an upper bound"
        )


def named(plan: Plan) -> str | None:
    """Return the folder or id of the model, even if its weights are to be random; None if it has neither."""
    return plan.job.training.hf_weights or plan.model.huggingface_id


def load_problems(plan: Plan) -> Iterator[Problem]:
    """Yield a problem if the checkpoint to resume from is no folder `checkpoint-N` and not the run's own last one.
    Nothing if the job loads none.
    """
    training = plan.training
    if training.load and not training.loads_its_own and not _CHECKPOINT.fullmatch(basename(normpath(training.load))):
        what = "Trainer goes on from one checkpoint, or from the last that the run itself saved"
        yield training_problem(plan, "load", what, need="FOLDER/checkpoint-STEP, or what training.save says")


def arguments(plan: Plan, config: str | None) -> Json:
    """Return TrainingArguments as a dict of JSON values.

    config: the path of the DeepSpeed JSON whose "auto" values they fill in; None: none is named, and Accelerate's file
    configures sharding and recompute. Batch sizes are in examples per device, and a preference pair is one.
    `optim` is left out if the DeepSpeed JSON has the optimizer; SGD's momentum is in optim_args. Evaluation only if
    eval_iters is not 0, with training's batch size; resume_from_checkpoint only for a `load` that is not the run's own
    last checkpoint.
    """
    training, options, optimizer = plan.training, plan.best.configuration, plan.job.optimizer
    micro, nth = options.micro // learning.per_example(plan), every_nth(plan) if config is None else None
    made = config is None or not own_optimizer(plan)
    return {
        "output_dir": output_dir(plan),
        **({} if config is None else {"deepspeed": config}),
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": options.num_microbatches,
        "max_steps": training.train_iters,
        **({"optim": _OPTIMIZERS["adam" if config is None else optimizer.name]} if made else {}),
        **({"optim_args": f"momentum={optimizer.speed}"} if config is not None and optimizer.name == "sgd" else {}),
        "learning_rate": training.lr,
        **schedule(plan),
        "adam_beta1": training.adam_beta1,
        "adam_beta2": training.adam_beta2,
        "adam_epsilon": training.adam_eps,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.clip_grad,
        options.precision: True,
        **(
            {"gradient_checkpointing": config is not None and options.recompute != "none"}
            if nth is None
            else {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": nth}}
        ),
        "seed": training.seed,
        "logging_steps": training.log_interval,
        "save_steps": training.save_interval,
        **deepspeed.trainer_arguments(plan),
        **(
            {"eval_strategy": "steps", "eval_steps": training.eval_interval, "per_device_eval_batch_size": micro}
            if training.eval_iters
            else {}
        ),
        **({"resume_from_checkpoint": training.load} if training.load and not training.loads_its_own else {}),
    }


def output_dir(plan: Plan) -> str:
    """Return the checkpoint folder; "checkpoints" by default, as the Trainer needs one even if nothing is saved."""
    return plan.training.save or "checkpoints"


def schedule(plan: Plan) -> Json:
    """Return warmup_steps and the scheduler's arguments; the rate is the same function of the step as Megatron-LM's.
    Only the warm-up before WSD differs: the Trainer's starts at the smallest rate, others at 0. Other styles than
    constant, inverse-square-root, cosine and linear are taken for WSD.
    """
    training, share = plan.training, plan.training.min_lr / plan.training.lr
    decay: Json = {"num_decay_steps": training.wsd_decay_iters, "decay_type": "linear", "min_lr_ratio": share}
    known: dict[str, tuple[str, Json]] = {
        "constant": ("constant_with_warmup", {}),
        "inverse-square-root": ("inverse_sqrt", {}),
        # min_lr would ask an optimizer that DeepSpeed wraps for its rate
        "cosine": ("cosine_with_min_lr", {"min_lr_rate": share}),
        "linear": ("polynomial", {"lr_end": training.min_lr, "power": 1.0}),
    }
    kind, given = known.get(training.lr_decay_style, ("warmup_stable_decay", decay))
    return {
        "warmup_steps": training.lr_warmup_iters,
        "lr_scheduler_type": kind,
        **({"lr_scheduler_kwargs": given} if given else {}),
    }


def ulysses_variables(plan: Plan) -> tuple[Variable, ...]:
    """Return the environment variables by which Accelerate 1.15 configures Ulysses, in upper case; () if cp is 1. They
    include the data-parallel ranks, from which Accelerate computes DeepSpeed's batch.
    """
    config = parallelism(plan)
    switched = {"accelerate_use_parallelism_config": "true", **config} if config else {}
    return tuple(
        Variable(name.upper(), str(value), "Ulysses, as Accelerate reads it", forced=True)
        for name, value in switched.items()
    )


def parallelism(plan: Plan) -> Json:
    """Return Accelerate's parallelism_config for Ulysses, each key with that prefix: sp_size cp, dp_replicate_size dp,
    the other degrees 1; {} if cp is 1.
    """
    parallel = plan.best.configuration
    if parallel.cp == 1:
        return {}
    return {
        "parallelism_config_dp_replicate_size": parallel.dp,
        "parallelism_config_dp_shard_size": 1,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
        "parallelism_config_cp_backend": "torch",
        "parallelism_config_sp_size": parallel.cp,
        "parallelism_config_sp_backend": "deepspeed",
        "parallelism_config_sp_seq_length": plan.best.configuration.seq_length,
        "parallelism_config_sp_seq_length_is_variable": False,
        "parallelism_config_sp_attn_implementation": attention(plan),
    }


def adapter_files(plan: Plan) -> Iterator[File]:
    """Yield PEFT's adapter_config.json, and for QLoRA a quantization_config.json (nf4, double quantisation). Nothing
    without an adapter. Raises as `target_modules`.
    """
    lora = plan.model.adapter
    if lora is None:
        return
    yield json_file(
        "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": hf_weights(plan),
            "r": lora.r,
            "lora_alpha": lora.lora_alpha,
            "lora_dropout": lora.lora_dropout,
            "bias": "none",
            "target_modules": list(target_modules(plan.model)),
        },
    )
    if lora.method == "qlora":
        dtype = learning.DTYPES[plan.best.configuration.precision]
        yield json_file(
            "quantization_config.json",
            {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
                "bnb_4bit_compute_dtype": dtype,
                "bnb_4bit_quant_storage": dtype,
            },
        )


def script_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield rows of what the user's training script must set itself: sequence length and attention. Also, where they
    apply, Ulysses' position ids and epochs, weights, evaluation data, the adapter, 4-bit weights.
    """
    yield "sequence length", f"{plan.best.configuration.seq_length} tokens in every sequence"
    yield "attention", f'attn_implementation="{attention(plan)}"'
    if plan.best.configuration.cp > 1:
        yield "position_ids", "torch.arange(len(input_ids)) in every sample: Ulysses stops at a batch without"
        sequences = plan.training.train_iters * plan.best.configuration.global_batch
        yield "epochs", f"one, of {sequences:,} sequences or more: DeepSpeed's loader for Ulysses starts no second one"
    if (weights := hf_weights(plan)) is not None:
        yield "weights", f"AutoModelForCausalLM.from_pretrained({weights!r})"
    if plan.training.eval_iters:
        yield "evaluation", "an eval_dataset for Trainer, which stops without one where it is to evaluate"
    if plan.model.adapter is not None:
        yield "adapter", "peft.LoraConfig.from_pretrained(FOLDER) reads adapter_config.json"
    if plan.model.adapter is not None and plan.model.adapter.method == "qlora":
        yield "frozen weights", "BitsAndBytesConfig(**...) of quantization_config.json"


def json_file(path: str, data: Json) -> File:
    return File(path, json_text(data))
