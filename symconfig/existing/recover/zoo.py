"""Which model of the zoo is computed: every field that changes what is computed, and nothing that is for people."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.meaning import Meaning, meaning
from symconfig.descriptor.model import ModelDescriptor

_SECTION = {"rope_scaling": "rope_scaling.rope_type"}  # by which field such a choice is told
MOST_FIELDS = 3  # fields at most in which a model may differ from one that it is said to be like
_SHAPES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "experts.num_experts",
    "experts.moe_intermediate_size",
    "experts.shared_expert_intermediate_size",
    "latent.q_lora_rank",
    "latent.kv_lora_rank",
)


@cache
def _zoo() -> tuple[tuple[ModelDescriptor, Meaning], ...]:
    """Return the zoo's models without an adapter: no adapter is an option of Megatron-LM."""
    loaded = (load_model(name) for name in zoo_models())
    return tuple((model, meaning(model)) for model in loaded if model.adapter is None)


def named(name: str) -> ModelDescriptor:
    """Return the model of the zoo of this name."""
    return next(model for model, _ in _zoo() if model.name == name)


def zoo_match(model: ModelDescriptor) -> str | None:
    """Return the zoo's model that computes the same."""
    mine = meaning(model)
    return next((other.name for other, theirs in _zoo() if mine == theirs), None)


def zoo_near(model: ModelDescriptor) -> tuple[str, tuple[str, ...]] | None:
    """Return the zoo's model that differs in the fewest fields, `MOST_FIELDS` at most, and what they are here:
    "vocab_size 32000".
    """
    mine = meaning(model)
    ranked = sorted((len(_choices(mine, theirs)), other.name, _choices(mine, theirs)) for other, theirs in _zoo())
    count, name, fields = ranked[0]
    if not 0 < count <= MOST_FIELDS:
        return None
    return name, tuple(f"{field} {_shown(mine.get(field))}" for field in fields)


def differing(mine: Meaning, theirs: Meaning) -> tuple[str, ...]:
    """Return the fields in which two meanings differ."""
    return tuple(field for field in sorted({*mine, *theirs}) if mine.get(field) != theirs.get(field))


def _choices(mine: Meaning, theirs: Meaning) -> tuple[str, ...]:
    """Return the differing fields, where a section that is one choice counts as one."""
    fields = (_SECTION.get(field.partition(".")[0], field) for field in differing(mine, theirs))
    return tuple(dict.fromkeys(fields))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "on other layers"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def alike(model: ModelDescriptor, fits: Callable[[ModelDescriptor], bool]) -> ModelDescriptor | None:
    """Return the zoo's model of the same shapes but for the vocabulary, the most alike where there are several."""
    mine = meaning(model)
    candidates = sorted(
        (len(differing(mine, theirs)), other.name)
        for other, theirs in _zoo()
        if all(mine.get(shape) == theirs.get(shape) for shape in _SHAPES) and fits(other)
    )
    return named(candidates[0][1]) if candidates else None


def by_tokenizer(name: str) -> ModelDescriptor | None:
    """Return the zoo's model whose Hugging Face name this is; lower case, with or without the owner."""
    for model, _ in _zoo():
        theirs = (model.huggingface_id or "").lower()
        if theirs and name in (theirs, theirs.rpartition("/")[2]):
            return model
    return None
