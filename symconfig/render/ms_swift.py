"""Targets ms-swift and ms-swift-deepspeed: the YAML of ms-swift's training with Megatron-Core, and with DeepSpeed.

`megatron pt` and `megatron sft`; LoRA, too.
The architecture is the config.json's of the model that is named, which mcore-bridge reads; what a plan chooses is said
in arguments, each option of Megatron-LM's by the table of `formats.renamed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from symconfig.descriptor.task import PLAIN
from symconfig.descriptor.tuning import LossName
from symconfig.errors import InfeasibleError, Problem
from symconfig.formats.keys import write
from symconfig.formats.renamed import EXTRA, MS_SWIFT
from symconfig.formats.tuners import SWIFT, SWIFT_WRITTEN
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED_RELEASE
from symconfig.frameworks.megatron import adapters, environment, flags
from symconfig.frameworks.megatron.releases import between
from symconfig.graph.parts import is_layer
from symconfig.plans.history import History
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, learning, megatron, shared, trainer, tuners
from symconfig.render.accelerate import JSON_AUTO
from symconfig.render.files import File
from symconfig.render.learning import Compares
from symconfig.render.megatron_args import Group
from symconfig.render.shared import CHECKPOINTS_COUNTING, STEPS_COUNTING, training_problem
from symconfig.render.target import Target, translated

NAME, RELEASE, BRIDGE_RELEASE = SWIFT.name, SWIFT.release, "1.6.5"
# Of ms-swift 4.6.0, megatron/arguments/megatron_args.py; its scheduler takes the checkpoint's schedule unasked.
_RESUME_COMMAND = translated(
    {
        "--override-opt_param-scheduler": "",
        "--load": "--mcore_model {} --finetune false",
        "--no-load-optim": "--no_load_optim true",
        "--no-load-rng": "--no_load_rng true",
    }
)
IGNORED_FIELDS = dict.fromkeys(("tokenizer_model", "tokenizer_type"), "ms-swift takes the model's tokenizer")
OLDEST = "core_v0.16.1"  # mcore-bridge 1.6.5 asks for megatron-core>=0.16,<0.20
# The model_types that mcore-bridge loads (model/constant.py), which ms-swift calls by the same names, and the chat
# template of each family's first models (swift/model/models/).
TEMPLATES = {
    "llama": "llama", "qwen2": "qwen2_5", "qwen2_moe": "qwen", "qwen3": "qwen3", "qwen3_moe": "qwen3",
    "deepseek_v2": "deepseek", "deepseek_v3": "deepseek_v2_5", "gpt_oss": "gpt_oss",
}  # fmt: skip
# The same of multimodal models, whose towers mcore-bridge takes from Transformers (model/mm_gpts).
TOWERS = {
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl",
    "qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5", "glm4v": "glm4v", "glm4v_moe": "glm4_5v", "llama4": "llama4",
    "internvl": "internvl_hf",
}  # fmt: skip
_LLAMA3 = "llama3_2"
Values = dict[str, Any]


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables for ms-swift on Megatron-Core: releases, command_name (pt or sft), sections,
    loaded_as, environment, wanted modules, notes; last_checkpoint is None unless the run resumes its own. Raises
    InfeasibleError with all that has no option, InputError as `megatron.groups`.
    """
    version = megatron.version(plan)
    training = plan.training
    return {
        "framework": f"ms-swift {RELEASE} on Megatron-Core {version}",
        "release": RELEASE,
        "bridge_release": BRIDGE_RELEASE,
        "command_name": shared.loss_of(plan),
        "sections": sections(plan),
        "loaded_as": loaded_as(plan),
        "last_checkpoint": f"{(training.save or '').rstrip('/')}/last-checkpoint" if training.loads_its_own else None,
        "variables": environment.variables(plan, version),
        "wants": shared.modules_wanted(plan),
        "notes": tuple(_notes(plan)),
    }


def sections(plan: Plan) -> dict[str, Values]:
    """Return ms-swift's arguments by heading, translated from Megatron-LM's groups for the model without its adapter.

    Precision, optimizer sharding, recompute and MoE defaults are added where no option sets them; what only
    Megatron-Core knows goes under "PASSED ON TO MEGATRON-CORE". Packing is on unless the job states other batching.
    `load` and evaluation appear if set; TensorBoard and W&B replace Megatron-LM's. Raises InfeasibleError with all that
    has no argument, InputError as `megatron.groups`.
    """
    groups, options = _groups(plan), flags.flags(megatron.version(plan))
    renamed = {group.name.removesuffix("_ARGS"): MS_SWIFT.write(group.options, options) for group in groups}
    if problems := [problem for _, refused in renamed.values() for problem in refused]:
        raise InfeasibleError(problems)
    arguments: dict[str, Values] = {"MODEL": _model(plan)}
    if (lora := adapters.as_laid(plan.model, NAME).adapter) is not None:
        arguments["ADAPTER"] = {
            "tuner_type": "lora",
            "lora_rank": lora.r,
            "lora_alpha": lora.lora_alpha,
            "lora_dropout": lora.lora_dropout,
            "target_modules": [layer for layer, name in adapters.FUSED.items() if name in lora.target_modules],
        }
    extra: Values = {}
    for heading, (given, _) in renamed.items():
        for path, value in given.items():
            section = extra if path.startswith(EXTRA) else arguments.setdefault(heading, {})
            section[path.removeprefix(f"{EXTRA}.")] = value
    best, training, how = plan.best, plan.training, shared.batching(plan)
    # Where ms-swift has defaults of its own, and the plan counts on Megatron-LM's.
    packs = how in (None, "packed")
    arguments["TRAINING"] |= {"packing": packs, "attention_backend": "auto"}
    if not packs:  # else they stand in one row in any case
        arguments["TRAINING"]["padding_free"] = how == "padding_free"
    arguments["TRAINING"].setdefault("cross_entropy_loss_fusion", False)
    half = best.configuration.precision == "fp16"  # what is not said is taken from config.json, of many models fp16
    defaults: dict[str, Values] = {
        "PRECISION": {"torch_dtype": "float16" if half else "bfloat16", "fp16": half, "bf16": not half},
        "DATA_PARALLEL": {"use_distributed_optimizer": best.configuration.zero_stage > 0},
        "RECOMPUTE": {"recompute_granularity": "none"},
        **({} if plan.model.experts is None else {"MOE": {"moe_grouped_gemm": False, "moe_router_dtype": "none"}}),
    }
    arguments |= {heading: {**usual, **arguments.get(heading, {})} for heading, usual in defaults.items()}
    logging = arguments["EVAL_AND_LOGGING"]
    # A folder of several checkpoints is none to go on from: launch.sh finds the last of its own, for which they must
    # lie where they did at the last start (sft_args.py, add_version).
    if training.loads_its_own:
        logging["add_version"] = False
    elif training.load is not None:
        logging |= {loaded_as(plan): training.load, "finetune": False}
    # TensorBoard, Weights & Biases and the timeout, whose words are Trainer's; wandb_exp_name is the run's name.
    logging |= {name: value for name, value in deepspeed.trainer_arguments(plan).items() if name != "run_name"}
    if training.eval_iters:
        logging["split_dataset_ratio"] = training.held_out
    if extra:
        arguments["PASSED ON TO MEGATRON-CORE"] = {EXTRA: extra}
    return arguments


def resume_command(plan: Plan, words: Sequence[str]) -> str | None:
    """Return the command that resumes the run from Megatron-LM's options in `words`, adapters by --mcore_adapter; None
    if one has no translation."""
    sentence = _RESUME_COMMAND(plan, words)
    return sentence and sentence.replace("--mcore_model", f"--{loaded_as(plan)}")


def loaded_as(plan: Plan) -> str:
    """Return the argument for a checkpoint to resume from: "mcore_adapter" with an adapter, whose checkpoint has no
    other weights, else "mcore_model"."""
    return "mcore_model" if plan.model.adapter is None else "mcore_adapter"


def _model(plan: Plan) -> Values:
    """Return the arguments for the model; `model` and `use_hf` are left out if it has no name. With a vision tower also
    which parts of it are frozen, and max_pixels if it takes any size.
    """
    name = plan.job.training.hf_weights or plan.model.huggingface_id
    vision, pixels = plan.model.vision, shared.pixels(plan)
    fields: Values = {"model": name, "use_hf": True} if name else {}
    known = shared.template(plan.model, TEMPLATES | TOWERS, _LLAMA3) or ""
    fields |= {"model_type": shared.outer_type(plan.model), "template": known}
    if vision is not None:
        fields |= {"freeze_vit": vision.frozen, "freeze_aligner": vision.projector_frozen}
        fields |= {"vit_gradient_checkpointing": False, **({} if pixels is None else {"max_pixels": pixels})}
    return fields


def _groups(plan: Plan) -> tuple[Group, ...]:
    """Return Megatron-LM's options without adapters. Data start over where they end (trainers/base.py, cyclic_iter)."""
    model = plan.model.model_copy(update={"adapter": None})
    return megatron.groups(replace(plan, model=model, history=History()))


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what Megatron-LM or ms-swift does not support. Of ms-swift these are release main and those
    before core_v0.16.1, Muon, weighted data, text models but TEMPLATES', first chunks with fewer layers than the
    tower's deepstack, and adapters that are QLoRA, or on other modules than its fused ones.
    """
    model, version = plan.model, megatron.version(plan)
    try:
        _groups(plan)
    except InfeasibleError as error:
        yield from error.problems

    def refused(field: str, why: str, got: object, hint: str | None = None, pins: tuple[str, ...] = ()) -> Problem:
        """Return a problem with ms-swift's refusal and the reason."""
        return Problem(f"{MS_SWIFT.refusal}: {why}", field=field, got=str(got), hint=hint, pins=pins)

    if version == "main" or not between(version, OLDEST, None):
        why = f"mcore-bridge {BRIDGE_RELEASE} goes with Megatron-Core 0.16 to 0.19"
        yield refused("megatron_version", why, version, "--megatron-version core_v0.19")
    if plan.job.optimizer.name == "muon":
        why = "it runs Muon without the distributed optimizer, and without overlap unless as dist_muon"
        yield refused("optimizer", why, "muon", "--target megatron")
    if plan.training.blended:
        why = "its datasets have no weights; NAME#COUNT takes COUNT examples of one"
        yield refused("training.data_path", why, " ".join(plan.training.data_path))
    if model.vision is None and model.model_type not in TEMPLATES:
        yield refused("model_type", f"mcore-bridge {BRIDGE_RELEASE} loads no such model", model.model_type)
    if model.vision is not None and plan.best.stages:
        first, need = sum(map(is_layer, plan.best.stages[0].chunks[0])), len(model.vision.deepstack_visual_indexes)
        if first < need:
            why = f"the tower's patches enter the first {need} layers, which must be in the first chunk"
            yield refused("pp", why, f"{first} layers there", pins=("vpp=1", "pp=1"))
    if (lora := adapters.as_laid(model, NAME).adapter) is not None:
        if lora.method != "lora":
            yield refused("adapter.method", "it keeps the frozen weights of Megatron-Core in bf16", lora.method)
        if others := {*lora.target_modules} - {*adapters.FUSED.values()}:
            why = "it puts one adapter on q, k and v together, and one on gate and up"
            yield refused("adapter.target_modules", why, " ".join(sorted(others)))


def _notes(plan: Plan) -> Iterator[str]:
    """Yield sentences to read before the first start: on images with a vision tower; on packing; on the
    prediction and the layout of adapters; on a checkpoint to resume from that is not the run's own; on weights, in
    pretraining.
    """
    lora = plan.model.adapter
    yield from shared.image_notes(plan, "max_pixels")
    if shared.batching(plan) in (None, "packed"):
        yield (
            "Sequences are packed: each of the batch is filled with whole examples up to the sequence length, so that "
            "a step computes what was planned"
        )
    if lora is not None:
        yield (
            "What is expected of a step is that of Megatron-Bridge's adapters, which are split a little differently "
            "from mcore-bridge's"
        )
    if lora is not None and adapters.as_laid(plan.model, NAME) != plan.model:
        yield (
            "One adapter lies on q, k and v together, and one on gate and up, as mcore-bridge has it: the first "
            f"matrix, of rank {lora.r}, is theirs in common, so that there are fewer weights than with one for each"
        )
    if plan.training.load is not None and not plan.training.loads_its_own:
        yield (
            f"`{loaded_as(plan)}` is the folder of one checkpoint, with latest_checkpointed_iteration.txt in it, "
            "and must be there: of a run of ms-swift, last-checkpoint in its output_dir"
        )
    if shared.pretrains(plan):
        yield "Training starts from the published weights, or from those of `mcore_model`: ms-swift has no random ones"


# With DeepSpeed: ms-swift 4.6.0 (`arguments/`) around Transformers' Trainer. Pairs are in one forward; the reference is
# a second model, sharded where ZeRO-3 shards the policy, and read between the policy's forward and its backward
# (`rlhf_trainers/dpo_trainer.py`). Beside adapters it is the model without them.
# Losses that are an `rlhf_type` of their own; any other is a `loss_type` of dpo or kto.
_TYPES: Mapping[LossName, str] = {"orpo": "orpo", "simpo": "simpo", "cpo": "cpo", "reward": "rm"}
COMPARES = Compares(
    losses=("sigmoid", "hinge", "ipo", "kto", "apo_zero_unpaired", *_TYPES),
    batching=("padded", "padding_free"),
    padded=tuple(_TYPES),  # arguments/rlhf_args.py, _check_padding_free
    first=("model",),  # rlhf_trainers/kto_trainer.py, forward
)
_OF_SWIFT = {**TEMPLATES, "mistral": "llama", "mixtral": "llama"}


def _swift(plan: Plan) -> dict[str, object]:
    """Return the templates' variables of ms-swift with DeepSpeed; the command is rlhf for preferences, else pt or sft.
    No last_checkpoint: the run's own last one is refused. Raises as `target_modules` for an adapter.
    """
    published = ["Training starts from the published weights: ms-swift has no random ones"]
    own = published if shared.pretrains(plan) else trainer.padded(plan, "max_length")
    return {
        "framework": f"ms-swift {RELEASE} and DeepSpeed {DEEPSPEED_RELEASE}",
        "release": RELEASE,
        "command_name": "rlhf" if plan.job.preference else shared.loss_of(plan),
        "sections": swift_sections(plan),
        "last_checkpoint": None,
        "variables": deepspeed.environment_variables(plan, deepspeed.BY_TRAINER),
        "notes": (*shared.step_notes(plan), *deepspeed.notes(plan), *own),
    }


def _swift_texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON without an optimizer, which ms-swift's Trainer makes itself (`trainers/mixin.py`,
    create_optimizer), and with zero_allow_untested_optimizer. Raises InfeasibleError.
    """
    data = deepspeed.config_auto(plan)
    data.pop("optimizer", None)
    yield trainer.json_file(JSON_AUTO, {**data, "zero_allow_untested_optimizer": True})


def swift_sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return {section: fields of the YAML}: MODEL, DATA, PREFERENCE (if the job has it) and TRAINING. The path of the
    DeepSpeed JSON is left out, as launch.sh adds it, and beta for losses that do not use it. Raises as `target_modules`
    for an adapter.
    """
    arguments = trainer.arguments(plan, JSON_AUTO)
    del arguments["deepspeed"]
    known = shared.template(plan.model, _OF_SWIFT, _LLAMA3)
    run = tuners.run_of(plan, packs=_packs(plan), unpadded=_without_padding(plan), template=known or "")
    result: dict[str, dict[str, Any]] = {name: write(table, run) for name, table in SWIFT_WRITTEN.items()}
    if plan.job.preference is not None:
        preference = learning.preference(plan)
        kind, beta = _TYPES.get(preference.loss), {"beta": preference.beta}
        loss = {"rlhf_type": plan.task, "loss_type": preference.loss, **beta}
        result["PREFERENCE"] = (
            loss if kind is None else {"rlhf_type": kind, **(beta if preference.means.scaled else {})}
        )
    return {**result, "TRAINING": {"optim": "adamw_torch_fused", **arguments, "add_version": False}}


def _packs(plan: Plan) -> bool:
    """Return whether sequences are packed up to the sequence length: in pretraining, or if the job says so."""
    return shared.pretrains(plan) or shared.batching(plan) == "packed"


def _without_padding(plan: Plan) -> bool:
    """Return whether the sequences of a micro-batch are concatenated without padding, each attending only to itself."""
    return _packs(plan) or shared.batching(plan) == "padding_free"


def _swift_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what ms-swift with DeepSpeed does not support: what DeepSpeed, Trainer and its schedule and `load` do not.
    Also other model families and vision towers, packing with eager attention, resuming the run's own last checkpoint,
    and weighted data.
    """
    yield from shared.problems(plan)
    yield from trainer.program_problems(plan, "ms-swift")
    yield from trainer.schedule_problems(plan, unwrapped=True)
    yield from trainer.load_problems(plan)
    model = plan.model
    if model.vision is not None or model.model_type not in _OF_SWIFT:
        what, need = "ms-swift is written for other families of models", " or ".join(_OF_SWIFT)
        yield Problem(what, field="model_type", got=model.model_type, need=need)
    if _without_padding(plan) and deepspeed.attention(plan) == "eager":
        what = "ms-swift puts sequences into one row for flash attention alone"
        yield Problem(what, field="attention", got="eager", hint="--target llamafactory")
    if plan.training.loads_its_own:
        what, need = "ms-swift goes on from one checkpoint, which is named", "FOLDER/checkpoint-STEP"
        yield training_problem(plan, "load", what, need=need)
    yield from shared.data_problems(plan, "ms-swift")


TARGETS = (
    Target(
        name=NAME,
        does="ms-swift's YAML for `megatron pt` and `megatron sft`, LoRA included, and its launch.sh",
        variables=variables,
        problems=_problems,
        assumes={"backend": "megatron"},
        towers=TOWERS,
        counts=CHECKPOINTS_COUNTING,
        resume_command=resume_command,
        ignored_fields=IGNORED_FIELDS,
    ),
    Target(
        name=f"{NAME}-deepspeed",
        does="ms-swift's YAML for `swift pt`, `sft` and `rlhf` (DPO, KTO, CPO and more, rewards), "
        "the DeepSpeed JSON, launch.sh",
        variables=_swift,
        problems=_swift_problems,
        texts=_swift_texts,
        assumes={"backend": "deepspeed"},
        tasks=PLAIN,
        compares=COMPARES,
        counts=STEPS_COUNTING,
        ignored_fields={
            **IGNORED_FIELDS,
            "manual_gc_interval": "ms-swift with a Trainer leaves garbage collection to Python",
        },
    ),
)
