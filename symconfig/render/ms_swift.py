"""Target ms-swift: the YAML of `megatron pt` and `megatron sft`, ms-swift's training with Megatron-Core; LoRA, too.

The architecture is the config.json's of the model that is named, which mcore-bridge reads; what a plan chooses is said
in arguments. Each option that Megatron-LM would be given is looked up in `ms_swift_options`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Adapter
from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks import counting
from symconfig.frameworks.megatron import environment, flags
from symconfig.frameworks.megatron.flags import Flag, FlagTable
from symconfig.graph.parts import is_layer
from symconfig.plans.history import History
from symconfig.plans.plan import Plan
from symconfig.render import going_on, megatron, monitors, preflight, summary, towers
from symconfig.render import ms_swift_options as table
from symconfig.render.megatron_args import Group

NAME = "ms-swift"
DOES = "ms-swift's YAML for `megatron pt` and `megatron sft`, LoRA included, and its launch.sh"
ASSUMES = {"backend": "megatron"}
COUNTS = counting.CHECKPOINTS_OWN
# Of ms-swift 4.6.0, megatron/arguments/megatron_args.py; its scheduler takes the checkpoint's schedule unasked.
_GOES_ON = going_on.translated(
    {
        "--override-opt_param-scheduler": "",
        "--load": "--mcore_model {} --finetune false",
        "--no-load-optim": "--no_load_optim true",
        "--no-load-rng": "--no_load_rng true",
    }
)
RELEASE, BRIDGE_RELEASE = "4.6.0", "1.6.5"
UNSAID = {
    "tokenizer_model": "ms-swift takes the model's tokenizer",
    "tokenizer_type": "ms-swift takes the model's tokenizer",
}
OLDEST = "core_v0.16.1"  # mcore-bridge 1.6.5 asks for megatron-core>=0.16,<0.20
# The model_types that mcore-bridge loads (model/constant.py), which ms-swift calls by the same names, and the chat
# template of each family's first models (swift/model/models/).
TEMPLATES = {
    "llama": "llama",
    "qwen2": "qwen2_5",
    "qwen2_moe": "qwen",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek_v2_5",
    "gpt_oss": "gpt_oss",
}
# The same of multimodal models, whose towers mcore-bridge takes from Transformers (model/mm_gpts).
TOWERS = {
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "glm4v": "glm4v",
    "glm4v_moe": "glm4_5v",
    "llama4": "llama4",
    "internvl": "internvl_hf",
}
LLAMA3_VOCABULARY, LLAMA3_TEMPLATE = 128256, "llama3_2"  # the tokenizer tells Llama 3 from its forerunners
# Megatron fuses these layers, and mcore-bridge puts one adapter on each fused layer.
FUSED = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc2": ("down_proj",),
}

_WHOLE = {"qkv_proj": FUSED["linear_qkv"], "gate_up_proj": FUSED["linear_fc1"]}  # adapters' names of the first two

Values = dict[str, Any]


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError with all that ms-swift cannot be told, InputError."""
    version = megatron.version(plan)
    training = plan.training
    return {
        "framework": f"ms-swift {RELEASE} on Megatron-Core {version}",
        "version": version,
        "release": RELEASE,
        "bridge_release": BRIDGE_RELEASE,
        "command_name": stage(plan),
        "sections": sections(plan),
        "loaded_as": loaded_as(plan),
        "last_checkpoint": f"{(training.save or '').rstrip('/')}/last-checkpoint" if training.loads_its_own else None,
        "variables": environment.variables(plan, version),
        "wants": preflight.wants(plan),
        "notes": tuple(_notes(plan)),
        "predicted_for": summary.predicted_for(plan, megatron.NAME),
    }


def stage(plan: Plan) -> str:
    """Return ms-swift's stage. pt: every token is learnt; sft: answers only."""
    return "pt" if plan.model.adapter is None and plan.job.task in (None, "pretrain") else "sft"


def sections(plan: Plan) -> dict[str, Values]:
    """Return the arguments under the names of Megatron-LM's groups. Raises InfeasibleError with all that cannot be
    said.
    """
    # Its data start over where they end (trainers/base.py, cyclic_iter): no run is short of them.
    plain = replace(plan, model=plan.model.model_copy(update={"adapter": None}), history=History())
    groups = megatron.groups(plain)
    if problems := [*_problems(plan), *_refusals(groups)]:
        raise InfeasibleError(problems)
    options = flags.flags(megatron.version(plan))
    resolved = namespace(options, groups)
    values = {name: resolved[flag.dest] for name, flag in options.flags.items()}
    arguments: dict[str, Values] = {"MODEL": _model(plan)}
    if plan.model.adapter is not None:
        lora = plan.model.adapter
        assert lora is not None
        arguments["ADAPTER"] = {
            "tuner_type": "lora",
            "lora_rank": lora.r,
            "lora_alpha": lora.lora_alpha,
            "lora_dropout": lora.lora_dropout,
            "target_modules": [fused for fused, parts in FUSED.items() if set(parts) <= _parts(lora)],
        }
    extra: Values = {}
    for group in groups:
        words: Values = {}
        for option in group.options:
            words |= _arguments(option, values, extra)
        if words:
            heading = group.name.removesuffix("_ARGS")
            arguments[heading] = {**arguments.get(heading, {}), **words}
    _as_megatron_has_it(plan, arguments)
    arguments["EVAL_AND_LOGGING"] |= _checkpoints(plan) | _monitors(plan)
    if plan.training.eval_iters:
        arguments["EVAL_AND_LOGGING"]["split_dataset_ratio"] = plan.training.held_out
    if extra:
        arguments["PASSED ON TO MEGATRON-CORE"] = {"megatron_extra_kwargs": extra}
    return arguments


def _arguments(option: Sequence[str], values: Values, extra: Values) -> Values:
    """Return the arguments for one option; into `extra` what has none of its own. `values`: by option."""
    name = option[0].partition("=")[0]
    spelled = name.lstrip("-").replace("-", "_")
    if tuple(option) in table.SPELLED:
        return dict(table.SPELLED[tuple(option)])
    if name in table.PASSED_ON:
        extra[spelled] = values[name]
    if name == "--load":
        return {}  # `_checkpoints` says it
    if name in table.RENAMED:
        return {table.RENAMED[name]: values[name]}
    return {spelled: values[name]} if name in table.SAME else {}


def goes_on(plan: Plan, words: Sequence[str]) -> str | None:
    """Say how a run goes on; a checkpoint of adapters is loaded as such."""
    sentence = _GOES_ON(plan, words)
    return sentence and sentence.replace("--mcore_model", f"--{loaded_as(plan)}")


def loaded_as(plan: Plan) -> str:
    """Return the argument for a checkpoint to go on from. One of adapters holds nothing else (trainers/base.py,
    save_checkpoint), and `mcore_model` would be the frozen weights then, without iteration and optimizer.
    """
    return "mcore_model" if plan.model.adapter is None else "mcore_adapter"


def _checkpoints(plan: Plan) -> Values:
    """Return where it goes on from. A folder of several checkpoints is none: launch.sh finds the last of its own, for
    which they must lie where they did at the last start (sft_args.py, add_version).
    """
    load = plan.training.load
    if load is None:
        return {}
    return {"add_version": False} if plan.training.loads_its_own else {loaded_as(plan): load, "finetune": False}


def _monitors(plan: Plan) -> Values:
    """Return TensorBoard, Weights & Biases and the timeout, whose words are Trainer's."""
    values = monitors.trainer_arguments(plan)
    values.pop("run_name", None)  # wandb_exp_name says it
    return values


def _model(plan: Plan) -> Values:
    name = plan.job.training.hf_weights or plan.model.huggingface_id
    named = {"model": name, "use_hf": True} if name else {}
    fields = {**named, "model_type": towers.outer_type(plan.model), "template": template(plan.model)}
    return {**fields, **_tower(plan)}


def _tower(plan: Plan) -> Values:
    """Return what is trained of the vision tower, whose activations the plan keeps."""
    vision, pixels = plan.model.vision, towers.pixels(plan)
    if vision is None:
        return {}
    fields: Values = {"freeze_vit": vision.frozen, "freeze_aligner": vision.projector_frozen}
    fields["vit_gradient_checkpointing"] = False
    return {**fields, **({} if pixels is None else {"max_pixels": pixels})}


def template(model: ModelDescriptor) -> str:
    """Return the chat template of the model's family."""
    if model.model_type == "llama" and model.vocab_size == LLAMA3_VOCABULARY:
        return LLAMA3_TEMPLATE
    return {**TEMPLATES, **TOWERS}[towers.outer_type(model)]


def _parts(lora: Adapter) -> set[str]:
    """Return the layers that have adapters, fused ones by their parts."""
    return {part for name in lora.target_modules for part in _WHOLE.get(name, (name,))}


def _as_megatron_has_it(plan: Plan, fields: dict[str, Values]) -> None:
    """Set what ms-swift has defaults of its own for and the plan counts on Megatron-LM's."""
    best, lengths = plan.best, plan.job.sequences
    packs = lengths is None or lengths.batching == "packed"
    fields["TRAINING"] |= {"packing": packs, "attention_backend": "auto"}
    if not packs:  # else they stand in one row in any case
        fields["TRAINING"]["padding_free"] = lengths is not None and lengths.batching == "padding_free"
    fields["TRAINING"].setdefault("cross_entropy_loss_fusion", False)
    half = best.options.precision == "fp16"  # what is not said is taken from config.json, of many models fp16
    fields["PRECISION"] = {
        "torch_dtype": "float16" if half else "bfloat16",
        "fp16": half,
        "bf16": not half,
        **fields["PRECISION"],
    }
    fields["DATA_PARALLEL"] = {
        "use_distributed_optimizer": best.options.zero_stage > 0,
        **fields.get("DATA_PARALLEL", {}),
    }
    fields["RECOMPUTE"] = {"recompute_granularity": "none", **fields.get("RECOMPUTE", {})}
    if plan.model.experts is not None:
        fields["MOE"] = {"moe_grouped_gemm": False, "moe_router_dtype": "none", **fields.get("MOE", {})}


def _refusals(groups: Sequence[Group]) -> Iterator[Problem]:
    """Yield the options that ms-swift has no word for."""
    known = table.SAME | table.RENAMED.keys() | table.PASSED_ON | table.NOT_NEEDED.keys() | table.REFUSED_WITH
    for option in (option for group in groups for option in group.options):
        name = option[0].partition("=")[0]
        field, why, pins = table.REFUSED.get(name, (name, "it has no such argument", ()))
        if tuple(option) not in table.SPELLED and (name in table.REFUSED or name not in known):
            yield _refused(field, why, " ".join(option), pins=pins)


def _problems(plan: Plan) -> Iterator[Problem]:
    model, version = plan.model, megatron.version(plan)
    order = flags.versions()
    if order.index(version) < order.index(OLDEST) or version == "main":
        yield _refused(
            "megatron_version",
            f"mcore-bridge {BRIDGE_RELEASE} goes with Megatron-Core 0.16 to 0.19",
            version,
            "--megatron-version core_v0.19",
        )
    if plan.job.optimizer.name == "muon":
        yield _refused(
            "optimizer",
            "it runs Muon without the distributed optimizer, and without overlap unless as dist_muon",
            "muon",
            "--target megatron",
        )
    if plan.training.blended:
        yield _refused(
            "training.data_path",
            "its datasets have no weights; NAME#COUNT takes so many examples of one",
            " ".join(plan.training.data_path),
        )
    if model.vision is None and model.model_type not in TEMPLATES:
        yield _refused("model_type", f"mcore-bridge {BRIDGE_RELEASE} loads no such model", model.model_type)
    if model.vision is not None and plan.best.stages:
        first = sum(map(is_layer, plan.best.stages[0].chunks[0]))
        if first < (need := len(model.vision.deepstack_visual_indexes)):
            yield _refused(
                "pp",
                f"the tower's patches enter the first {need} layers, which must be in the first chunk",
                f"{first} layers there",
                pins=("vpp=1", "pp=1"),
            )
    if model.adapter is not None:
        yield from _adapter_problems(plan)


def _adapter_problems(plan: Plan) -> Iterator[Problem]:
    lora = plan.model.adapter
    assert lora is not None
    targets = _parts(lora)
    if lora.method != "lora":
        yield _refused("adapter.method", "it keeps the frozen weights of Megatron-Core in bf16", lora.method)
    if plan.best.options.zero_stage > 1:
        yield _refused(
            "zero_stage",
            "adapters beside Megatron-FSDP are not known to train",
            plan.best.options.zero_stage,
            pins=("zero=..1",),
        )
    unknown = targets - {part for parts in FUSED.values() for part in parts}
    split = {part for parts in FUSED.values() for part in targets & set(parts) if not set(parts) <= targets}
    if unknown or split:
        yield _refused(
            "adapter.target_modules",
            "it puts one adapter on q, k and v together, and one on gate and up",
            " ".join(sorted(unknown | split)),
        )


def _notes(plan: Plan) -> Iterator[str]:
    lora = plan.model.adapter
    yield from towers.notes(plan, "max_pixels")
    yield (
        "Sequences are packed: each of the batch is filled with whole examples up to the sequence length, so that a "
        "step computes what was planned"
    )
    if lora is not None:
        yield (
            "What is expected of a step is that of Megatron-Bridge's adapters, which are split a little differently "
            "from mcore-bridge's"
        )
    if lora is not None and any(len(set(parts) & set(lora.target_modules)) > 1 for parts in FUSED.values()):
        yield (
            "One adapter lies on q, k and v together, and one on gate and up, as mcore-bridge has it: the first "
            f"matrix, of rank {lora.r}, is theirs in common, so that there are fewer weights than with one for each"
        )
    if plan.training.load is not None and not plan.training.loads_its_own:
        yield (
            f"`{loaded_as(plan)}` is the folder of one checkpoint, with latest_checkpointed_iteration.txt in it, "
            "and must be there: of a run of ms-swift, last-checkpoint in its output_dir"
        )
    if stage(plan) == "pt":
        yield "Training starts from the published weights, or from those of `mcore_model`: ms-swift has no random ones"


def _refused(field: str, why: str, got: object, hint: str | None = None, pins: tuple[str, ...] = ()) -> Problem:
    return Problem(f"ms-swift {RELEASE} cannot be told: {why}", field=field, got=str(got), hint=hint, pins=pins)


def namespace(table: FlagTable, groups: Iterable[Group]) -> dict[str, Any]:
    """Return the values by destination, as argparse leaves them: before validate_args fills anything in.

    Values are those that JSON has: an enumeration is the name of its member, a pattern of layers the text of it.
    """
    # Of several options of a destination, argparse takes the default of the one that is spelled like it.
    order = sorted(table.flags.values(), key=lambda flag: flag.name == "--" + flag.dest.replace("_", "-"))
    arguments = {flag.dest: _default(flag) for flag in order}
    for group in groups:
        for first, *values in group.options:
            name, joined, value = first.partition("=")
            flag = table.flags[name]
            arguments[flag.dest] = _given(flag, [value] if joined else values)
    return arguments


def _default(flag: Flag) -> Any:
    """Return a default as the table has it printed."""
    value = _literal(flag.default)
    return list(value) if isinstance(value, tuple | list) else value


@cache
def _literal(text: str) -> Any:
    """Read a literal of Python; a text that is none is the name of an enumeration's member, or itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text.removeprefix("AttnBackend.")


def _given(flag: Flag, values: Sequence[str]) -> Any:
    if flag.kind == "optional":
        return not flag.name.startswith("--no-")
    if flag.kind != "store":
        return flag.kind == "true"
    typed = [_typed(flag, value) for value in values]
    return typed[0] if flag.nargs in (None, "?") else typed


def _typed(flag: Flag, value: str) -> Any:
    if flag.type == "int":
        return int(value)
    if flag.type == "float":
        return float(value)
    if flag.type == "tuple_type":
        return [int(part) for part in value.strip("()").split(",")]
    return value
