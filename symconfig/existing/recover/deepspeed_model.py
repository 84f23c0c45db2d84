"""The model that a DeepSpeed launch trains: asked for, a config.json, or a name of Hugging Face; and its adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from symconfig.descriptor import hub
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import QWEN_TARGETS, Adapter, AdapterTarget
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.arguments import TRUE, Arguments
from symconfig.existing.recover.run import Assumed, Described, Supplied
from symconfig.existing.recover.zoo import by_name, zoo_match, zoo_near

# The same things in the spellings of Transformers' and TRL's examples, LLaMA-Factory, Axolotl, Qwen, QLoRA, our own.
NAMES = ("model", "model_name_or_path", "model_id_or_path", "model_id", "base_model", "model_name", "model_path")
_ON = ("use_lora", "use_peft", "enable_lora", "lora")
_KIND = ("finetuning_type", "train_type", "sft_type", "adapter")
_RANK, _ALPHA, _DROPOUT = ("lora_r", "lora_rank", "lora_dim"), ("lora_alpha",), ("lora_dropout",)
_TARGETS = ("lora_target_modules", "lora_target", "lora_modules", "target_modules")
_FOUR_BITS = ("qlora", "load_in_4bit", "use_4bit", "quantization_bit", "bits")
_ALL = {"all", "all-linear", "all_linear", "ALL"}
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LINEAR_QWEN = tuple(sorted(QWEN_TARGETS))
_PEFT_RANK = 8  # peft/tuners/lora/config.py; its default modules of Llama-like models are the next
_PEFT_TARGETS = ("q_proj", "v_proj")


def described(reading: Reading, arguments: Arguments, supplied: Supplied, problems: list[Problem]) -> Described | None:
    """Return the supplied model, else that of config.json, else of a name, with the arguments' adapter.

    None with what is missing or wrong in `problems`. Unless it is supplied, the zoo's equal model replaces it. `zoo`
    names the model without an adapter.
    """
    try:
        if supplied.model is None and reading.model_config is not None:
            base, assumed = load_model(str(Path(reading.model_config).absolute())), list[Assumed]()
        else:
            base, assumed = named_model(reading, arguments.find(*NAMES), supplied)
        name = zoo_match(base.model_copy(update={"adapter": None}))
        if base.adapter is not None:
            return Described(base, name, tuple(assumed))
        if name and supplied.model is None:
            base = load_model(name)
        fields = _adapter(arguments, base, assumed, problems)
        if fields is None:
            return Described(base, name, tuple(assumed), None if name else zoo_near(base))
        return adapted(Described(base, name, tuple(assumed)), reading, fields)
    except InputError as error:
        problems += error.problems
        return None


def named_model(reading: Reading, setting: Setting | None, supplied: Supplied) -> tuple[ModelDescriptor, list[Assumed]]:
    """Return the supplied model, else the one that a setting's last value names, and assumptions. Raises InputError."""
    if supplied.model is not None:
        return supplied.model, []
    unnamed, hint = "nothing says which model is trained", "--model NAME, or --model FOLDER with its config.json"
    if setting is None or not setting.values:
        raise InputError(unnamed, file=reading.file, hint=hint)
    word = setting.values[-1]
    if word.text and (known := by_name(word.text, setting.place)) is not None:
        return known
    if word.unknown and not word.text.rpartition("/")[2]:
        raise InputError(setting.problem(f"its value {word.unknown}", hint="--model M"))
    if not word.text:
        raise InputError(setting.problem(unnamed, hint=hint))
    if hub.is_id(word.text):  # how to download it
        hint = str(hub.absent(word.text, "").problems[0].hint)
    raise InputError(setting.problem("the model is not one that is known by its name", got=word.text, hint=hint))


def _adapter(
    arguments: Arguments, base: ModelDescriptor, assumed: list[Assumed], problems: list[Problem]
) -> Mapping[str, object] | None:
    """Return the fields of the LoRA or QLoRA adapter that the arguments ask for; None if they ask for none.

    A switch, a rank other than 0 or a method's name asks for it; a switch that is off prevails. Rank and modules are
    PEFT's defaults, recorded in `assumed`, if not given. None also for a malformed rank, then in the problems of
    `arguments`, and for unknown modules, a problem appended to `problems`.
    """
    kind = (arguments.text(*_KIND) or "").lower()
    wanted = arguments.switch(*_ON)
    asked = wanted or kind in ("lora", "qlora")
    rank = None if arguments.text(*_RANK) == "0" and not asked else arguments.whole(*_RANK)
    if wanted is False or not (asked or rank):
        return None
    if rank is None and arguments.given(*_RANK):
        return None
    if rank is None:
        rank = _PEFT_RANK
        assumed.append(Assumed("rank of the adapters", str(rank), "PEFT's default; no argument says it"))
    targets = named_targets(arguments.words(*_TARGETS), base)
    if not targets:
        targets = _LINEAR_QWEN[:1] if base.model_type == "qwen" else _PEFT_TARGETS
        assumed.append(Assumed("adapted modules", ", ".join(targets), "PEFT's default; no argument says them"))
    wrong, where = [name for name in targets if name not in get_args(AdapterTarget)], arguments.find(*_TARGETS)
    if wrong and where is not None:  # the defaults are known
        what, need = "adapts modules that are not known", ", ".join(_LINEAR)
        problems.append(where.problem(what, got=", ".join(wrong), need=need))
        return None
    return {
        "method": "qlora" if kind == "qlora" or four_bits(arguments) else "lora",
        "r": rank,
        "target_modules": targets,
        "lora_alpha": arguments.number(*_ALPHA) or 2.0 * rank,
        "lora_dropout": arguments.number(*_DROPOUT) or 0.0,
    }


def four_bits(arguments: Arguments) -> Setting | None:
    """Return the setting by which weights are loaded in 4 bits; None without one."""
    text = arguments.text(*_FOUR_BITS)
    return arguments.find(*_FOUR_BITS) if text is not None and text.lower() in ("4", *TRUE) else None


def named_targets(given: Iterable[str], base: ModelDescriptor) -> tuple[str, ...]:
    """Return the named modules without duplicates; all linear layers if the list contains "all" or "all-linear"."""
    if set(given) & _ALL:
        return _LINEAR_QWEN if base.model_type == "qwen" else _LINEAR
    return tuple(dict.fromkeys(given))


def adapted(model: Described, reading: Reading, fields: Mapping[str, object]) -> Described:
    """Return the model with an adapter of these fields. Raises InputError if they are not valid for it.

    A qwen model becomes qwen2 if the adapter has none of its own modules' names.
    """
    base = model.model
    try:
        adapter = Adapter.model_validate(fields, strict=False)
        foreign = base.model_type == "qwen" and not set(adapter.target_modules) & set(_LINEAR_QWEN)
        # Qwen-7B trains under the Qwen2 class, too, where its modules have that class's names.
        model_type = "qwen2" if foreign else base.model_type
        whole = base.model_dump(mode="json", by_alias=True, exclude_unset=True)
        whole |= {"adapter": adapter.model_dump(mode="json"), "model_type": model_type}
        return replace(model, model=ModelDescriptor.model_validate(whole, strict=False))
    except ValidationError as error:
        what, items = "the adapter that the arguments describe", error.errors()
        wrong = [(f"{what}: {item['msg']}", ".".join(map(str, item["loc"])) or None) for item in items]
        raise InputError([Problem(text, reading.file, field=field) for text, field in wrong]) from None
