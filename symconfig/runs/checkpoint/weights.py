"""Two models beside each other: which weights they share."""

from __future__ import annotations

from collections.abc import Callable

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts

# Fields that only say what the model is called.
NAMES = frozenset({"schema_", "name", "source", "notes", "huggingface_id", "torch_dtype", "model_type"})
# Fields that change what is computed with the weights, and none of them.
COMPUTED = frozenset(
    {
        "max_position_embeddings",
        "hidden_act",
        "norm_eps",
        "norm_zero_centered",
        "parallel_residual",
        "rope_theta",
        "rope_scaling",
        "rope_local_base_freq",
        "partial_rotary_factor",
        "sliding_window",
        "sliding_window_pattern",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "scale_embeddings",
        "attention_dropout",
        "hidden_dropout",
        "initializer_range",
    }
)
EXPERTS_COMPUTED = frozenset(
    {
        "num_experts_per_tok",
        "scoring_func",
        "norm_topk_prob",
        "softmax_after_topk",
        "n_group",
        "topk_group",
        "routed_scaling_factor",
        "router_aux_loss_coef",
    }
)
_MTP = "num_nextn_predict_layers"
# Fields with a fact of their own.
OWN = frozenset({"vocab_size", "num_hidden_layers", "experts", _MTP, "adapter", "tie_word_embeddings"})


Finding = Callable[[ModelDescriptor, ModelDescriptor], str]


def _differ(old: ModelDescriptor, new: ModelDescriptor, names: frozenset[str]) -> str:
    return ", ".join(
        f"{name} {_plain(getattr(old, name))} -> {_plain(getattr(new, name))}"
        for name in type(old).model_fields
        if name in names and getattr(old, name) != getattr(new, name)
    )


def _plain(value: object) -> str:
    return "absent" if value is None else str(value) if isinstance(value, int | float | str) else "another"


def shapes(old: ModelDescriptor, new: ModelDescriptor) -> str:
    """Return the differing fields that change a tensor's name or shape, as text; "" if none.

    Fields with a fact of their own (vocabulary, layers, experts, adapter, tied embeddings) are not compared.
    """
    fields = frozenset(type(old).model_fields) - NAMES - COMPUTED - OWN
    if not (old.intermediate_size and new.intermediate_size):  # without dense layers it is none's
        fields -= {"intermediate_size"}
    return ", ".join(filter(None, (_differ(old, new, fields), _expert_shapes(old.experts, new.experts))))


def _expert_shapes(old: Experts | None, new: Experts | None) -> str:
    if old is None or new is None:
        return ""
    return _experts_differ(old, new, frozenset(Experts.model_fields) - EXPERTS_COMPUTED)


def _experts_differ(old: Experts, new: Experts, names: frozenset[str]) -> str:
    return ", ".join(
        f"experts.{name} {getattr(old, name)} -> {getattr(new, name)}"
        for name in Experts.model_fields
        if name in names and getattr(old, name) != getattr(new, name)
    )


def computed(old: ModelDescriptor, new: ModelDescriptor) -> str:
    """Return the differing fields that change how the same weights are used, as text; "" if none."""
    parts = [_differ(old, new, COMPUTED)]
    if old.experts is not None and new.experts is not None:
        parts.append(_experts_differ(old.experts, new.experts, EXPERTS_COMPUTED))
    return ", ".join(filter(None, parts))


def _field(name: str, where: Callable[[ModelDescriptor, ModelDescriptor], bool] = lambda old, new: True) -> Finding:
    """Return a finding on one field's difference; "" unless `where` holds for both models."""
    return lambda old, new: _differ(old, new, frozenset({name})) if where(old, new) else ""


def _adapter_shapes(old: ModelDescriptor, new: ModelDescriptor) -> str:
    """Return the difference of two adapters' rank and target modules; "" if equal or either model has no adapter."""
    if old.adapter is None or new.adapter is None:
        return ""
    parts = [f"r {old.adapter.r} -> {new.adapter.r}"] if old.adapter.r != new.adapter.r else []
    if set(old.adapter.target_modules) != set(new.adapter.target_modules):
        parts.append("other target modules")
    return ", ".join(parts)


def _quantised(old: ModelDescriptor, new: ModelDescriptor) -> str:
    if old.adapter is None or new.adapter is None or old.adapter.method == new.adapter.method:
        return ""
    return f"{old.adapter.method} -> {new.adapter.method}"


# What may differ between two models: its name, what it means, and how it is found.
COMPARED: tuple[tuple[str, str, Finding], ...] = (
    ("shapes", "tensors of other names or shapes", shapes),
    ("computed", "the same weights, used otherwise", computed),
    ("vocabulary", "another vocabulary", _field("vocab_size")),
    ("layers", "another number of layers", _field("num_hidden_layers")),
    (
        "tied",
        "the output layer becomes the embedding",
        _field("tie_word_embeddings", lambda old, new: new.tie_word_embeddings),
    ),
    (
        "untied",
        "the output layer gets weights of its own",
        _field("tie_word_embeddings", lambda old, new: old.tie_word_embeddings),
    ),
    (
        "upcycled",
        "experts in the place of dense layers",
        lambda old, new: f"experts none -> {new.experts.num_experts}" if new.experts and not old.experts else "",
    ),
    (
        "experts-dropped",
        "dense layers in the place of experts",
        lambda old, new: f"experts {old.experts.num_experts} -> none" if old.experts and not new.experts else "",
    ),
    (
        "mtp-more",
        "more layers that predict further tokens",
        _field(_MTP, lambda old, new: new.num_nextn_predict_layers > old.num_nextn_predict_layers),
    ),
    (
        "mtp-fewer",
        "fewer layers that predict further tokens",
        _field(_MTP, lambda old, new: new.num_nextn_predict_layers < old.num_nextn_predict_layers),
    ),
    (
        "adapter-added",
        "an adapter in the new model only",
        lambda old, new: f"no adapter -> {new.adapter.method}" if new.adapter and not old.adapter else "",
    ),
    (
        "adapter-removed",
        "an adapter in the old model only",
        lambda old, new: f"{old.adapter.method} -> no adapter" if old.adapter and not new.adapter else "",
    ),
    (
        "adapter-kept",
        "an adapter in both models",
        lambda old, new: "an adapter in both" if old.adapter and new.adapter else "",
    ),
    ("adapter-shapes", "an adapter of another rank or on other modules", _adapter_shapes),
    ("quantised", "frozen weights in 4 bits in one of the runs only", _quantised),
)
