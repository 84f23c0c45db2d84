"""Which model of the zoo is computed: every field that changes what is computed, and nothing that is for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import Attention, ModelDescriptor, Position
from symconfig.existing.recover.moe import leading_and_every

# How it is trained, not what it computes.
_TRAINED = ("initializer_range", "experts.router_aux_loss_coef")
FOR_PEOPLE = frozenset({"schema_", "name", "source", "huggingface_id", "model_type", "torch_dtype", "notes"})
_SECTION = {"rope_scaling": "rope_scaling.rope_type"}  # by which field such a choice is told
NEAR = 3  # fields at most in which a model may differ from one that it is said to be like
# Unset values of YaRN: transformers' _compute_yarn_parameters.
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0, "truncate": True}
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

Meaning = Mapping[str, object]


def flat(model: ModelDescriptor) -> dict[str, Any]:
    """Fields by dotted name, sections opened; what is not set is not there."""
    found: dict[str, Any] = {}
    for name, value in model.model_dump(mode="json", exclude=set(FOR_PEOPLE), exclude_none=True).items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            found[name] = value
    return found


def meaning(model: ModelDescriptor) -> dict[str, object]:
    """What is computed, by field: two descriptors with equal meanings are one model, however it is written."""
    found: dict[str, object] = flat(model)
    for name in _idle(model):
        found.pop(name, None)
    if model.rope_scaling is not None and model.rope_scaling.rope_type == "yarn":
        for name, value in _YARN.items():
            found.setdefault(f"rope_scaling.{name}", value)
    if model.experts is not None:
        found.pop("experts.softmax_after_topk", None)  # equal to probabilities that are renormalised
        found["experts.norm_topk_prob"] = model.experts.norm_topk_prob or model.experts.softmax_after_topk
        placed = leading_and_every(model.moe_layers)
        if placed is not None:
            found["experts.first_k_dense_replace"], found["experts.moe_layer_freq"] = placed
    if model.adapter is not None:
        found["adapter.target_modules"] = tuple(sorted(model.adapter.target_modules))
    if any(model.sliding_layers):
        found["sliding_window_pattern"] = model.sliding_layers
    return found


def _idle(model: ModelDescriptor) -> Iterator[str]:
    """Fields that say nothing about this model."""
    yield from _TRAINED
    if model.position is not Position.LEARNED:
        yield "max_position_embeddings"  # a bound on the sequence
    if model.position is not Position.ROPE:
        yield from ("rope_theta", "partial_rotary_factor", "rope_local_base_freq")
        yield from (name for name in flat(model) if name.startswith("rope_scaling."))
    if model.attention is Attention.MLA:
        yield from ("head_dim", "num_key_value_heads", "partial_rotary_factor", "qk_norm")
    if model.query_pre_attn_scalar == model.head_dim:
        yield "query_pre_attn_scalar"
    if not any(model.sliding_layers):
        yield from ("sliding_window", "sliding_window_pattern")
    if model.experts is not None:
        if all(model.moe_layers):
            yield from ("intermediate_size", "mlp_bias")
        if not model.experts.shared_expert_intermediate_size:
            yield "experts.shared_expert_gate"
        if (model.experts.n_group or 1) == 1:
            yield from ("experts.n_group", "experts.topk_group")


@cache
def _zoo() -> tuple[tuple[ModelDescriptor, Meaning], ...]:
    """Of the models without an adapter: no adapter is an option of Megatron-LM."""
    loaded = (load_model(name) for name in zoo_models())
    return tuple((model, meaning(model)) for model in loaded if model.adapter is None)


def named(name: str) -> ModelDescriptor:
    """The model of the zoo of this name."""
    return next(model for model, _ in _zoo() if model.name == name)


def zoo_match(model: ModelDescriptor) -> str | None:
    """The zoo's model that computes the same."""
    mine = meaning(model)
    return next((other.name for other, theirs in _zoo() if mine == theirs), None)


def zoo_near(model: ModelDescriptor) -> tuple[str, tuple[str, ...]] | None:
    """The zoo's model that differs in the fewest fields, `NEAR` at most, and what they are here: "vocab_size 32000"."""
    mine = meaning(model)
    ranked = sorted((len(_choices(mine, theirs)), other.name, _choices(mine, theirs)) for other, theirs in _zoo())
    count, name, fields = ranked[0]
    if not 0 < count <= NEAR:
        return None
    return name, tuple(f"{field} {_shown(mine.get(field))}" for field in fields)


def differing(mine: Meaning, theirs: Meaning) -> tuple[str, ...]:
    """Fields in which two meanings differ."""
    return tuple(field for field in sorted({*mine, *theirs}) if mine.get(field) != theirs.get(field))


def _choices(mine: Meaning, theirs: Meaning) -> tuple[str, ...]:
    """The same, where a section that is one choice counts as one."""
    fields = (_SECTION.get(field.partition(".")[0], field) for field in differing(mine, theirs))
    return tuple(dict.fromkeys(fields))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "on other layers"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def alike(model: ModelDescriptor, fits: Callable[[ModelDescriptor], bool]) -> ModelDescriptor | None:
    """The zoo's model of the same shapes but for the vocabulary, the most alike where there are several."""
    mine = meaning(model)
    found = sorted(
        (len(differing(mine, theirs)), other.name)
        for other, theirs in _zoo()
        if all(mine.get(shape) == theirs.get(shape) for shape in _SHAPES) and fits(other)
    )
    return named(found[0][1]) if found else None


def by_tokenizer(name: str) -> ModelDescriptor | None:
    """The zoo's model whose Hugging Face name this is; lower case, with or without the owner."""
    for model, _ in _zoo():
        theirs = (model.huggingface_id or "").lower()
        if theirs and name in (theirs, theirs.rpartition("/")[2]):
            return model
    return None
