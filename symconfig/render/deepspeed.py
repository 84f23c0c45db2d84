"""Target deepspeed: ds_config.json in two flavours, a training script, launch.sh.

Monitors and the timeout of collectives are keys and variables of DeepSpeed 0.19.8 (`monitor/config.py`,
`constants.py`) and of Transformers 5.23 (`integrations/integration_utils.py`). W&B itself reads WANDB_PROJECT and
WANDB_NAME.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from symconfig.descriptor.architectures.keys import recorded
from symconfig.descriptor.write import config_json
from symconfig.errors import Problem
from symconfig.format import json_text, picked
from symconfig.formats import deepspeed as formats
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.frameworks.deepspeed.behaviour import (
    ADAPTER_REQUIREMENTS,
    DEEPSPEED_RELEASE,
    QLORA_REQUIREMENTS,
    REQUIREMENTS,
)
from symconfig.frameworks.megatron.environment import Variable
from symconfig.plans.plan import Plan
from symconfig.render import shared
from symconfig.render.files import File
from symconfig.render.shared import RENUMBERED_COUNTING, data_problems, hf_weights, problems, refuse
from symconfig.render.target import Saving, Target, launched
from symconfig.resources import data_dir

Json = dict[str, Any]


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables: train.py's arguments by bash array (`groups`), environment, default weights (""
    for random ones) and data, notes.
    """
    return {
        "framework": f"DeepSpeed {DEEPSPEED_RELEASE}" + (" with PEFT" if plan.model.adapter else ""),
        "groups": arguments(plan),
        "variables": environment_variables(plan, BY_DEEPSPEED),
        "default_model": default_model(plan),
        "default_data": plan.training.data_path,
        "notes": notes(plan),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield ds_config.json, ds_config_hf.json ("auto"), model/config.json, train.py and its modules, and
    requirements.txt. Raises InfeasibleError for what DeepSpeed cannot run.
    """
    yield File("ds_config.json", json_text(config(plan)))
    yield File("ds_config_hf.json", json_text(config_auto(plan)))
    yield File("model/config.json", json.dumps(config_json(plan.model), indent=2, allow_nan=False) + "\n")
    for name in ("train.py", "sequences.py", "saving.py", "states.py"):
        text = (data_dir("templates") / "deepspeed" / name).read_text(encoding="utf-8")
        yield File(name, text, executable=name == "train.py")
    yield File("requirements.txt", "".join(f"{pin}\n" for pin in requirements(plan)))


def words(plan: Plan) -> list[str]:
    """Return the arguments of train.py as words."""
    return [word for group in arguments(plan).values() for word in group]


def config(plan: Plan) -> Json:
    """Return ds_config.json, with numbers and without "auto"; with sections "tensorboard" and "wandb" of DeepSpeed's
    monitors if the job sets them. Raises InfeasibleError.
    """
    refuse(plan)
    training, data = plan.training, formats.write(plan)
    if (folder := training.tensorboard_dir) is not None:
        data["tensorboard"] = {"enabled": True, "output_path": folder, "job_name": run_name(plan)}
    if training.wandb_project is not None:
        data["wandb"] = {"enabled": True, "project": training.wandb_project}
    return data


def config_auto(plan: Plan) -> Json:
    """Return the JSON for Transformers' Trainer, with "auto" for what it fills in and without monitors. Raises
    InfeasibleError."""
    refuse(plan)
    return formats.write(plan, auto=True)


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what DeepSpeed, or the generated training script, cannot run: also weighted data and
    optimizers but AdamW.
    """
    yield from problems(plan)
    yield from data_problems(plan, "the generated training script")
    if not formats.own_optimizer(plan):
        what = "the generated training script has the optimizer that DeepSpeed makes, which is AdamW"
        yield Problem(what, field="optimizer", got=plan.job.optimizer.name, hint="--target transformers")


def notes(plan: Plan) -> tuple[str, ...]:
    """Return sentences on limits of this release that affect the plan; () if there are none. They are on the first
    Qwen's weights, ZeRO-1 with fp32 gradients on the GPU, clipping under Ulysses, and packing.
    """
    options, sentences = plan.best.configuration, []
    if plan.model.model_type == "qwen":
        sentences.append("The first Qwen's weights load only once converted to the Qwen2 class: MODEL names them")
    if options.zero_stage == 1 and options.grad_bytes == 4 and not options.optimizer_offload:
        sentences.append(
            "ZeRO-1 with fp32 gradients runs DeepSpeed's BF16_Optimizer, which reduces the gradients once a "
            "step and does not overlap it with backward"
        )
    if plan.best.configuration.cp > 1 and plan.training.clip_grad:
        sentences.append(
            "Under Ulysses, ZeRO-1 and 2 of this release measure the gradient norm on the first sequence rank "
            "of each group only, so clipping is approximate"
        )
    if plan.job.packing:
        sentences.append(shared.PACKING)
    return tuple(sentences)


def arguments(plan: Plan) -> dict[str, list[str]]:
    """Return {bash array: arguments of train.py, each as --name=value}: MODEL_ARGS, TRAINING_ARGS, and with an adapter
    ADAPTER_ARGS. Decay steps are left out if unset, WSD's unless the style is WSD; --qlora is a bare switch. Raises as
    `target_modules` for an adapter.
    """
    training, adapter, decays = plan.training, plan.model.adapter, plan.training.lr_decay_style == "WSD"
    names = ("train_iters", "lr", "min_lr", "lr_decay_style", "lr_decay_iters")
    groups: dict[str, dict[str, object]] = {
        "MODEL_ARGS": {"attn_implementation": attention(plan), "recompute_layers": recompute_layers(plan)},
        "TRAINING_ARGS": {
            **picked(plan.best.configuration, "seq_length"),
            **picked(training, *names),
            "lr_wsd_decay_iters": training.wsd_decay_iters if decays else None,
            **picked(training, "lr_warmup_iters", "seed", "log_interval", "save_interval"),
        },
    }
    if adapter is not None:
        modules = {"lora_target_modules": ",".join(target_modules(plan.model))}
        groups["ADAPTER_ARGS"] = {"lora_r": adapter.r, **picked(adapter, "lora_alpha", "lora_dropout"), **modules}
    words = {
        group: [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
        for group, given in groups.items()
    }
    if adapter is not None and adapter.method == "qlora":
        words["ADAPTER_ARGS"].append("--qlora")
    return words


def attention(plan: Plan) -> str:
    """Return Transformers' attention, "eager" or "sdpa". "eager" if the job asks for unfused attention, or the model
    has sinks, soft-capped scores or a class without sdpa.
    """
    model = plan.model
    capped = model.attention_sinks or model.attn_logit_softcapping is not None
    plain = plan.job.attention == "unfused" or capped or bool(recorded(model.model_type, "plain_attention"))
    return "eager" if plain else "sdpa"


def recompute_layers(plan: Plan) -> int:
    """Return train.py's number of recomputed layers: 0 for none, n for the first n by the method "block", else -1
    (all).
    """
    c = plan.best.configuration
    if c.recompute == "none":
        return 0
    some = c.recompute_method == "block" and c.recompute_layers < plan.model.num_hidden_layers
    return c.recompute_layers if some else -1


def default_model(plan: Plan) -> str:
    """Return the weights to start from; "" for random ones, and for the first Qwen, whose own do not load."""
    own = hf_weights(plan) if plan.model.model_type != "qwen" else None
    return plan.job.training.hf_weights or own or ""


def environment_variables(plan: Plan, monitors: Collection[str] = ()) -> tuple[Variable, ...]:
    """Return launch.sh's environment variables, with reasons: TOKENIZERS_PARALLELISM always. PYTORCH_CUDA_ALLOC_CONF on
    NVIDIA GPUs but for RL; OMP_NUM_THREADS if optimizer state is offloaded; of `monitors` those that the job sets.
    """
    named = [Variable("TOKENIZERS_PARALLELISM", "false", "tokenizers' threads and forked workers dead-lock")]
    # vLLM's pool of memory that sleeps forbids it (device_allocator/cumem.py, until April 2026).
    if plan.cluster.gpu.vendor == "nvidia" and plan.job.rl is None:
        named.append(
            Variable(
                "PYTORCH_CUDA_ALLOC_CONF",
                "expandable_segments:True",
                "less fragmentation: ZeRO allocates and frees buffers of many sizes",
            )
        )
    if plan.best.configuration.optimizer_offload:
        named.append(
            Variable(
                "OMP_NUM_THREADS",
                "$(( $(nproc) > GPUS_PER_NODE ? $(nproc) / GPUS_PER_NODE : 1 ))",
                "the optimizer runs on the host's cores, and torchrun would give each rank one",
            )
        )
    return (*named, *set_by_job(plan, monitors))


def requirements(plan: Plan) -> tuple[str, ...]:
    """Return the lines of requirements.txt: pinned packages, with PEFT and bitsandbytes for an adapter that needs them.
    tensorboard and wandb are added without a version if the job uses them.
    """
    pins = dict(REQUIREMENTS)
    if plan.model.adapter is not None:
        pins |= ADAPTER_REQUIREMENTS
        if plan.model.adapter.method == "qlora":
            pins |= QLORA_REQUIREMENTS
    for name, wanted in (("tensorboard", plan.training.tensorboard_dir), ("wandb", plan.training.wandb_project)):
        if wanted is not None:
            pins[name] = name
    return tuple(pins.values())


SECONDS = 60  # of a minute
JOB = "what the job asks for"


def run_name(plan: Plan) -> str:
    """Return the run's name in Weights & Biases; by default the model's name."""
    return plan.training.wandb_name or plan.model.name


BY_DEEPSPEED = ("WANDB_PROJECT", "WANDB_NAME", "DEEPSPEED_TIMEOUT")  # variables of what its JSON cannot set
BY_TRAINER = ("TENSORBOARD_LOGGING_DIR", "WANDB_PROJECT")


def set_by_job(plan: Plan, names: Collection[str]) -> Iterator[Variable]:
    """Yield the environment variables of these names for monitors and the collectives' timeout that the job sets."""
    training = plan.training
    values = {
        "TENSORBOARD_LOGGING_DIR": (training.tensorboard_dir, "the folder of TensorBoard's files"),
        "WANDB_PROJECT": (training.wandb_project, "the project in Weights & Biases"),
        "WANDB_NAME": (training.wandb_project and run_name(plan), "the run's name in Weights & Biases"),
        "DEEPSPEED_TIMEOUT": (training.distributed_timeout_minutes, "minutes that a collective may wait"),
    }
    for name, (value, what) in values.items():
        if name in names and value is not None:
            yield Variable(name, str(value), f"{what}: {JOB}", literal=True)


def trainer_arguments(plan: Plan) -> dict[str, Any]:
    """Return TrainingArguments for monitors and the timeout (in seconds); {} if the job has none. report_to lists the
    monitors that are set; run_name is given with W&B only.
    """
    training, minutes = plan.training, plan.training.distributed_timeout_minutes
    monitors = {"tensorboard": training.tensorboard_dir, "wandb": training.wandb_project}
    arguments = {
        "report_to": [name for name, wanted in monitors.items() if wanted is not None] or None,
        "run_name": None if training.wandb_project is None else run_name(plan),
        "ddp_timeout": None if minutes is None else minutes * SECONDS,
    }
    return {name: value for name, value in arguments.items() if value is not None}


TARGETS = (
    Target(
        name="deepspeed",
        does='DeepSpeed\'s JSON, native and with "auto", a training script for it, launch.sh',
        variables=variables,
        problems=_problems,
        words=words,
        texts=texts,
        assumes={"backend": "deepspeed"},
        counts=RENUMBERED_COUNTING,
        resume_command=launched,
        saving=Saving("--save", "SAVE=DIR bash launch.sh"),
        ignored_fields={
            "eval_iters": "train.py does not evaluate",
            "split": "train.py trains on all of its files",
            "manual_gc_interval": "train.py leaves garbage collection to Python",
            "tokenizer_type": "train.py takes Hugging Face's tokenizers",
        },
    ),
)
