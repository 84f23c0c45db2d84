"""Models that scripts call by a name (the zoo's, those of `model_zoo/known.json`, what huggingface_hub has here), and
which model of the zoo is computed: by every field that changes what is computed, and nothing that is for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from symconfig.descriptor import hub
from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.meaning import Meaning, meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.run import Assumed
from symconfig.resources import data_dir, json_data

_FILE = "known.json"
# How weights are stored, by the end of a name, and bytes of each; "thinking" is how they were tuned.
_STORED = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "awq": 0.5, "gptq": 0.5, "mcore": 2.0}
_ENDS = re.compile(rf"[-_]({'|'.join((*_STORED, 'thinking'))})(?=$|[-_/])", re.IGNORECASE)


def by_name(given: str, place: Place | None) -> tuple[ModelDescriptor, list[Assumed]] | None:
    """Return (model, assumptions) for a model's name or the last part of a folder; None if it is not known.

    Looked up in the zoo and known.json, without endings such as -fp8, and as an id in the Hugging Face cache. Only the
    zoo's exact name and a cached id need no assumption.
    """
    plain = _ENDS.sub("", given)
    for name, known in hub.of_zoo():
        if hub.same(plain, _ENDS.sub("", known)):
            return load_model(name), [] if given == known else [_called(known, given, place)]
    for known in models():
        if hub.same(plain, known):
            model, without = model_of(known)
            assumed = [_called(known, given, place)]
            if without:
                assumed.append(Assumed("images", "none", "the tower before the model is left out", place))
            return model, assumed
    if hub.is_id(given) and hub.cached(given) is not None:
        return load_model(given), []
    return None


def weight_bytes(given: str) -> float:
    """Return the bytes per stored weight that a model's name indicates ("-fp8": 1.0); 2.0 if it indicates nothing."""
    sizes = (_STORED.get(end.lower()) for end in _ENDS.findall(given))
    return next((size for size in sizes if size is not None), _STORED["bf16"])


def _called(known: str, given: str, place: Place | None) -> Assumed:
    return Assumed("model", known, f"of the name {given}; its weights were not looked at", place)


def models() -> dict[str, dict[str, Any]]:
    """Return the models of known.json, by their ids on the Hugging Face hub."""
    known: dict[str, dict[str, Any]] = json_data(data_dir("model_zoo") / _FILE)["models"]
    return known


def vocabularies() -> dict[str, int]:
    """Return sizes of tokenizers by the start of a model's name, in lower case and without the owner."""
    known = json_data(data_dir("model_zoo") / _FILE)["vocabularies"]
    return {start: each["size"] for start, each in known.items()}


@cache
def model_of(name: str) -> tuple[ModelDescriptor, bool]:
    """Return (known.json's model of this name, in bf16; whether it has a vision tower). Cached. Raises KeyError."""
    entry = models()[name]
    if "config" in entry:
        model = import_config({**entry["config"], "torch_dtype": "bfloat16"}, _FILE, name)
    else:
        like = entry["like"]
        model = model_of(like)[0] if like in models() else load_model(like)
    return hub.named(model, name), bool(entry.get("vision"))


_SCALING = "rope_scaling.rope_type"
MOST_FIELDS = 3  # fields at most in which a model may differ from one that it is said to be like
_SHAPES = words(
    """
    hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim experts.num_experts
    experts.moe_intermediate_size experts.shared_expert_intermediate_size latent.q_lora_rank latent.kv_lora_rank
    """
)


@cache
def _zoo() -> tuple[tuple[ModelDescriptor, Meaning], ...]:
    """Return the zoo's models without an adapter, each with its meaning; cached."""
    loaded = (load_model(name) for name in zoo_models())
    return tuple((model, meaning(model)) for model in loaded if model.adapter is None)


def named(name: str) -> ModelDescriptor:
    """Return the zoo's model of this name. Raises StopIteration if there is none."""
    return next(model for model, _ in _zoo() if model.name == name)


def zoo_match(model: ModelDescriptor) -> str | None:
    """Return the name of the zoo's model that computes the same; None if there is none."""
    mine = meaning(model)
    return next((other.name for other, theirs in _zoo() if mine == theirs), None)


def zoo_near(model: ModelDescriptor) -> tuple[str, tuple[str, ...]] | None:
    """Return the zoo's most similar model and its differing fields with this model's values ("vocab_size 32000").

    None if all differ in more than `MOST_FIELDS` fields, or if one is equal.
    """
    mine = meaning(model)
    ranked = []
    for other, theirs in _zoo():  # rope's scaling is one choice
        names = (_SCALING if name.startswith("rope_scaling.") else name for name in differing(mine, theirs))
        fields = tuple(dict.fromkeys(names))
        ranked.append((len(fields), other.name, fields))
    count, name, fields = min(ranked)
    if not 0 < count <= MOST_FIELDS:
        return None
    return name, tuple(f"{field} {_shown(mine.get(field))}" for field in fields)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "on other layers"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def differing(mine: Meaning, theirs: Meaning) -> tuple[str, ...]:
    """Return the sorted names of the fields in which two meanings differ."""
    return tuple(field for field in sorted({*mine, *theirs}) if mine.get(field) != theirs.get(field))


def alike(model: ModelDescriptor, fits: Callable[[ModelDescriptor], bool]) -> ModelDescriptor | None:
    """Return the zoo's most similar model with the same shapes (any vocabulary) that `fits`; None if there is none."""
    mine = meaning(model)
    candidates = sorted(
        (len(differing(mine, theirs)), other.name)
        for other, theirs in _zoo()
        if all(mine.get(shape) == theirs.get(shape) for shape in _SHAPES) and fits(other)
    )
    return named(candidates[0][1]) if candidates else None
