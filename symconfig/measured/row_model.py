"""The model of a measured row: its stated shape over a public model's, over what such models share."""

from __future__ import annotations

from functools import cache
from typing import Any

from symconfig.descriptor.document import Document
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.measurements import MeasuredModel, Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts, LatentAttention
from symconfig.descriptor.strict import Strict, validate
from symconfig.errors import InputError, nearest
from symconfig.frameworks.megatron.adapters import peft_names
from symconfig.measured.assumptions import Assumption, assumptions
from symconfig.measured.row_options import RowOptions


def _fields(owner: type[Strict]) -> tuple[str, ...]:
    """Return the descriptor's field names that a measured row also has."""
    return tuple(name for name in MeasuredModel.model_fields if name in owner.model_fields)


_zoo_model = cache(load_model)
_EXPERTS, _LATENT = _fields(Experts), _fields(LatentAttention)
_PLAIN = tuple(name for name in _fields(ModelDescriptor) if name not in ("name", *_LATENT))
_ADAPTER = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}


def model_of(row: Row, options: RowOptions, seq_length: int) -> ModelDescriptor:
    """Return the row's model: its stated fields over the source's, over those of the public model of this name (listed
    or in the zoo), or typical ones.

    Records the source's fields that matter. Multi-token-prediction layers are only those stated or assumed (0 else).
    Stated experts replace fields of the public model's, without a gate of the shared expert unless assumed. head_dim:
    hidden size / heads unless stated or in the zoo; a window pattern of another length is dropped. Raises InputError
    for an incomplete shape or an invalid model.
    """
    assumption, stated = options.assumption, row.model.model_dump(exclude_none=True)
    zoo, public = _public(row)
    fields: dict[str, Any] = (
        _zoo_model(zoo).model_dump(mode="json", by_alias=True) if zoo else _typical(stated, seq_length)
    ) | public
    own = {name: stated[name] for name in _PLAIN if name in stated}
    if "mtp_num_layers" in stated:
        own["num_nextn_predict_layers"] = stated["mtp_num_layers"]
    fields["num_nextn_predict_layers"] = 0  # a public model's head is often left out of a run
    of_experts = {name: value for name, value in assumption.model.items() if name in Experts.model_fields}
    for name, value in assumption.model.items():
        inside = name in of_experts
        options.guess(name, value, "num_experts" in stated if inside else name not in own and fields.get(name) != value)
        if not inside:
            fields[name] = value
    fields |= own
    fields |= {"name": row.model.name, "source": "the measured row"}
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if missing := [field for field in needed if fields.get(field) is None]:
        what = f"no public model is known by this name, and the row does not state {', '.join(missing)}"
        known = {item.name.lower(): item.name for item in assumptions().models} | {name: name for name in zoo_models()}
        hint = known.get(nearest(row.model.name, known, most=1) or "")
        raise InputError(what, field="model.name", got=row.model.name, hint=hint)
    if fields["attention"] == "mla":
        given = {name: stated[name] for name in _LATENT if name in stated}
        fields["latent"] = (fields.get("latent") or {"q_lora_rank": None}) | given
    if "num_experts" in stated:
        moe = fields.get("experts") or {"norm_topk_prob": True, "first_k_dense_replace": 0}
        moe |= {name: stated[name] for name in _EXPERTS if name in stated}
        if "first_k_dense" in stated:
            moe["first_k_dense_replace"] = stated["first_k_dense"]
        fields["experts"] = moe | {"shared_expert_gate": False} | of_experts
    if "head_dim" not in stated and not zoo:
        fields["head_dim"] = fields["hidden_size"] // fields["num_attention_heads"]
    if fields.get("sliding_window_pattern") and len(fields["sliding_window_pattern"]) != fields["num_hidden_layers"]:
        fields["sliding_window_pattern"] = None
    if row.task == "lora":
        fields["adapter"] = adapter_of(row, assumption)
    return validate(Document(fields, f"model {row.model.name}"), ModelDescriptor)


@cache
def _zoo_names() -> dict[str, str]:
    return {_letters(name): name for name in zoo_models()}


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _public(row: Row) -> tuple[str | None, dict[str, Any]]:
    """Return (zoo's model or None, fields that replace its own) of the public model of the row's name."""
    listed = next((item for item in assumptions().models if item.name == row.model.name), None)
    return (listed.zoo, listed.fields) if listed else (_zoo_names().get(_letters(row.model.name)), {})


def public_vocabulary(row: Row) -> int | None:
    """Return the vocabulary's size of the public model of the row's name; None if no model is known by it."""
    zoo, fields = _public(row)
    return fields.get("vocab_size") or (_zoo_model(zoo).vocab_size if zoo else None)


def adapted(model: ModelDescriptor, row: Row, assumption: Assumption) -> ModelDescriptor:
    """Return the model with the row's LoRA adapter, in place of its own. Raises InputError if none is stated, nor by
    the source, or it is none of this model.
    """
    fields = model.model_dump(mode="json", by_alias=True) | {"adapter": adapter_of(row, assumption)}
    return validate(Document(fields, f"model {row.model.name}"), ModelDescriptor)


def adapter_of(row: Row, assumption: Assumption) -> dict[str, Any]:
    """Return the LoRA adapter's fields: those of the row over its source's, with Megatron-Bridge's names replaced.
    Raise InputError if neither states any.
    """
    adapter = assumption.lora.model_dump(mode="json") if assumption.lora else {}
    stated = row.model.lora or {}
    adapter |= {ours: stated[theirs] for theirs, ours in _ADAPTER.items() if theirs in stated}
    if not adapter:
        raise InputError("rank and targets of LoRA are not stated", field="model.lora")
    return adapter | {"target_modules": [peft_names(name)[0] for name in adapter["target_modules"]]}


def _typical(stated: dict[str, Any], seq_length: int) -> dict[str, Any]:
    """Return default model fields: Llama-like if the row's MLP is gated or it does not say so, else GPT-like; one
    key-value head for each attention head, and the sequence length as most positions.
    """
    gated = stated.get("gated_mlp", True)
    return {
        "schema": "symconfig.model/1",
        "model_type": "llama" if gated else "gpt2",
        "intermediate_size": 0,
        "num_key_value_heads": stated.get("num_attention_heads"),
        "max_position_embeddings": seq_length,
        "gated_mlp": gated,
        "hidden_act": "silu" if gated else "gelu",
        "mlp_bias": not gated,
        "qkv_bias": not gated,
        "attention_out_bias": not gated,
        "norm": "rmsnorm" if gated else "layernorm",
        "position": "rope" if gated else "learned",
        "attention": "gqa",
        "tie_word_embeddings": not gated,
    }
