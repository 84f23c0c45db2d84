"""What a model computes, by field: two descriptors with equal meanings are one model, however they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Mixer, Position

# How it is trained, not what it computes.
TRAINED = ("initializer_range", "experts.router_aux_loss_coef")
FOR_PEOPLE = frozenset({"schema_", "name", "source", "huggingface_id", "model_type", "torch_dtype", "notes"})
# Unset values of YaRN: transformers' _compute_yarn_parameters.
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0, "truncate": True}

Meaning = Mapping[str, object]


def flat(model: ModelDescriptor) -> dict[str, Any]:
    """Return the model's JSON fields by dotted name, without None, rare fields at their default, and FOR_PEOPLE (name,
    source, huggingface_id, model_type, torch_dtype, notes). Only sections that are dicts are opened, one level deep.
    """
    fields: dict[str, Any] = {}
    for name, value in model.model_dump(mode="json", exclude=set(FOR_PEOPLE), exclude_none=True).items():
        if isinstance(value, dict):
            fields |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            fields[name] = value
    return fields


def meaning(model: ModelDescriptor) -> dict[str, object]:
    """Return what the model computes, by dotted field; two descriptors are the same model if this is equal.

    Fields without effect and those of training (TRAINED) are left out. Spellings are unified: YaRN's defaults are
    filled in, layers with experts become first_k_dense_replace and moe_layer_freq or else a list, windows a list,
    mixers and adapter targets are sorted, and softmax_after_topk counts as norm_topk_prob.
    """
    idle = _without_effect(model)
    fields: dict[str, object] = {name: value for name, value in flat(model).items() if name not in idle}
    if model.rope_scaling is not None and model.rope_scaling.rope_type == "yarn":
        for name, value in _YARN.items():
            fields.setdefault(f"rope_scaling.{name}", value)
    if model.experts is not None:
        fields.pop("experts.softmax_after_topk", None)  # equal to probabilities that are renormalised
        fields["experts.norm_topk_prob"] = model.experts.norm_topk_prob or model.experts.softmax_after_topk
        placed = leading_and_every(model.moe_layers)
        if placed is not None:
            fields["experts.first_k_dense_replace"], fields["experts.moe_layer_freq"] = placed
            fields.pop("experts.layers", None)
        else:  # a list of every layer goes before both
            fields["experts.layers"] = model.moe_layers
            fields.pop("experts.first_k_dense_replace", None)
            fields.pop("experts.moe_layer_freq", None)
    if model.mixers:
        fields["mixers"] = sorted(map(_mixer, model.mixers), key=str)
    if model.adapter is not None:
        fields["adapter.target_modules"] = tuple(sorted(model.adapter.target_modules))
    if any(model.sliding_layers):
        fields["sliding_window_pattern"] = model.sliding_layers
    return fields


def _mixer(mixer: Mixer) -> dict[str, object]:
    """Return a mixer as a dict in canonical order: block, sizes, sorted switches, layers ([] if all layers have it).

    beside_attention is in it only if true.
    """
    where = () if mixer.layers is None or all(mixer.layers) else mixer.layers
    sizes, switches = dict(sorted(mixer.sizes.items())), sorted(mixer.switches)
    return {"block": mixer.block, "sizes": sizes, "switches": switches, "layers": list(where)} | (
        {"beside_attention": True} if mixer.beside_attention else {}
    )


def _without_effect(model: ModelDescriptor) -> set[str]:
    """Return the names of fields without effect on what this model computes: unused (rope's without rope,
    num_key_value_heads with latent attention), or at a value that changes nothing. TRAINED is among them; the model may
    lack the field.
    """
    experts, latent = model.experts, model.attention is Attention.MLA
    names = {
        "max_position_embeddings": model.position is not Position.LEARNED,  # a bound on the sequence
        **dict.fromkeys(("rope_theta", "rope_local_base_freq"), model.position is not Position.ROPE),
        "partial_rotary_factor": model.position is not Position.ROPE or latent,
        **dict.fromkeys(("head_dim", "num_key_value_heads", "qk_norm"), latent),
        "mlp_layers": model.mlp_layers is not None and all(model.mlp_layers),
        "qk_norm_of": not model.qk_norm,
        "rope_layers": model.rope_layers is not None and all(model.rope_layers),
        "logits_multiplier": model.logits_multiplier == 1.0,
        "embedding_multiplier": model.embedding_multiplier == 1.0,
        "query_pre_attn_scalar": model.query_pre_attn_scalar == model.head_dim,
        **dict.fromkeys(("sliding_window", "sliding_window_pattern"), not any(model.sliding_layers)),
        **dict.fromkeys(("intermediate_size", "mlp_bias"), experts is not None and all(model.moe_layers)),
        "experts.shared_expert_gate": experts is not None and not experts.shared_expert_intermediate_size,
        **dict.fromkeys(("experts.n_group", "experts.topk_group"), experts is not None and (experts.n_group or 1) == 1),
        **{name: model.position is not Position.ROPE for name in flat(model) if name.startswith("rope_scaling.")},
    }
    return {*TRAINED, *(name for name, idle in names.items() if idle)}


def leading_and_every(moe: tuple[bool, ...]) -> tuple[int, int] | None:
    """Return (first_k_dense_replace, moe_layer_freq) that give these layers; moe: per layer, whether it has experts.

    None if those two cannot express the layers, or if no layer has experts. A single layer with experts gets freq 1 if
    it is the last one, else a freq with which no second one follows.
    """
    which = [layer for layer, has in enumerate(moe) if has]
    if not which:
        return None
    every = which[1] - which[0] if len(which) > 1 else 1 if which[0] == len(moe) - 1 else len(moe) - which[0]
    first = which[0] - every + 1
    if first < 0 or which != list(range(which[0], len(moe), every)):
        return None
    return first, every
