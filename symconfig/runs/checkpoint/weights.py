"""Two models beside each other: which weights they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from symconfig.descriptor.model import Experts, ModelDescriptor

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
# Fields with a fact of their own.
OWN = frozenset(
    {"vocab_size", "num_hidden_layers", "experts", "num_nextn_predict_layers", "adapter", "tie_word_embeddings"}
)


@dataclass(frozen=True, slots=True)
class Compared:
    """A fact about two models."""

    name: str
    does: str
    find: Callable[[ModelDescriptor, ModelDescriptor], str]


def _differ(old: ModelDescriptor, new: ModelDescriptor, names: frozenset[str]) -> str:
    return ", ".join(
        f"{name} {_plain(getattr(old, name))} -> {_plain(getattr(new, name))}"
        for name in type(old).model_fields
        if name in names and getattr(old, name) != getattr(new, name)
    )


def _plain(value: object) -> str:
    return "absent" if value is None else str(value) if isinstance(value, int | float | str) else "another"


def shapes(old: ModelDescriptor, new: ModelDescriptor) -> str:
    """Compare widths, heads, biases, norms: everything else that makes a tensor of another name or shape."""
    fields = frozenset(type(old).model_fields) - NAMES - COMPUTED - OWN
    if not (old.intermediate_size and new.intermediate_size):  # without dense layers it is none's
        fields -= {"intermediate_size"}
    return ", ".join(filter(None, (_differ(old, new, fields), _expert_shapes(old.experts, new.experts))))


def _expert_shapes(old: Experts | None, new: Experts | None) -> str:
    if old is None or new is None:
        return ""
    return ", ".join(
        f"experts.{name} {getattr(old, name)} -> {getattr(new, name)}"
        for name in Experts.model_fields
        if name not in EXPERTS_COMPUTED and getattr(old, name) != getattr(new, name)
    )


def computed(old: ModelDescriptor, new: ModelDescriptor) -> str:
    """Compare how the same weights are used."""
    parts = [_differ(old, new, COMPUTED)]
    if old.experts is not None and new.experts is not None:
        parts += [
            f"experts.{name} {getattr(old.experts, name)} -> {getattr(new.experts, name)}"
            for name in Experts.model_fields
            if name in EXPERTS_COMPUTED and getattr(old.experts, name) != getattr(new.experts, name)
        ]
    return ", ".join(filter(None, parts))


def _upcycled(old: ModelDescriptor, new: ModelDescriptor) -> str:
    return f"experts none -> {new.experts.num_experts}" if old.experts is None and new.experts is not None else ""


def _dropped(old: ModelDescriptor, new: ModelDescriptor) -> str:
    return f"experts {old.experts.num_experts} -> none" if old.experts is not None and new.experts is None else ""


def _counts(name: str) -> Callable[[ModelDescriptor, ModelDescriptor], str]:
    return lambda old, new: _differ(old, new, frozenset({name}))


def _tied(old: ModelDescriptor, new: ModelDescriptor) -> str:
    return _differ(old, new, frozenset({"tie_word_embeddings"})) if new.tie_word_embeddings else ""


def _untied(old: ModelDescriptor, new: ModelDescriptor) -> str:
    return _differ(old, new, frozenset({"tie_word_embeddings"})) if old.tie_word_embeddings else ""


def _more_mtp(old: ModelDescriptor, new: ModelDescriptor) -> str:
    more = new.num_nextn_predict_layers > old.num_nextn_predict_layers
    return _differ(old, new, frozenset({"num_nextn_predict_layers"})) if more else ""


def _fewer_mtp(old: ModelDescriptor, new: ModelDescriptor) -> str:
    fewer = new.num_nextn_predict_layers < old.num_nextn_predict_layers
    return _differ(old, new, frozenset({"num_nextn_predict_layers"})) if fewer else ""


def _adapter_added(old: ModelDescriptor, new: ModelDescriptor) -> str:
    return f"no adapter -> {new.adapter.method}" if old.adapter is None and new.adapter is not None else ""


def _adapter_removed(old: ModelDescriptor, new: ModelDescriptor) -> str:
    return f"{old.adapter.method} -> no adapter" if old.adapter is not None and new.adapter is None else ""


def _adapter_kept(old: ModelDescriptor, new: ModelDescriptor) -> str:
    return "an adapter in both" if old.adapter is not None and new.adapter is not None else ""


def _adapter_shapes(old: ModelDescriptor, new: ModelDescriptor) -> str:
    """Compare adapters: another rank, or other modules."""
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


COMPARED = (
    Compared("shapes", "tensors of other names or shapes", shapes),
    Compared("computed", "the same weights, used otherwise", computed),
    Compared("vocabulary", "another vocabulary", _counts("vocab_size")),
    Compared("layers", "another number of layers", _counts("num_hidden_layers")),
    Compared("tied", "the output layer becomes the embedding", _tied),
    Compared("untied", "the output layer gets weights of its own", _untied),
    Compared("upcycled", "experts in the place of dense layers", _upcycled),
    Compared("experts-dropped", "dense layers in the place of experts", _dropped),
    Compared("mtp-more", "more layers that predict further tokens", _more_mtp),
    Compared("mtp-fewer", "fewer layers that predict further tokens", _fewer_mtp),
    Compared("adapter-added", "an adapter in the new model only", _adapter_added),
    Compared("adapter-removed", "an adapter in the old model only", _adapter_removed),
    Compared("adapter-kept", "an adapter in both models", _adapter_kept),
    Compared("adapter-shapes", "an adapter of another rank or on other modules", _adapter_shapes),
    Compared("quantised", "frozen weights in 4 bits in one of the runs only", _quantised),
)
