"""Google's Gemma, all generations.

Layers of Gemma 4 without a window have wider heads, and fewer of keys. Its small ones have an embedding for each layer,
and last layers that read the keys and values of earlier ones and may have a wider MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures.architecture import (
    FULL,
    SLIDING,
    Architecture,
    Block,
    Reading,
    Rule,
    Size,
    Values,
    family,
)
from symconfig.descriptor.architectures.rules import by, every
from symconfig.descriptor.model import ModelDescriptor

_SHARED_HEADS = "num_global_key_value_heads"


def _wide_heads(values: Values) -> Any:
    return (values["attention_k_eq_v"] and values[_SHARED_HEADS]) or values["num_key_value_heads"]


# Of layers without a window. Heads of keys are their own only where keys are values, too.
_WIDE = Block(
    "wide_attention",
    {
        "wide_key_value_heads": Size(
            (_SHARED_HEADS,),
            _wide_heads,
            lambda model, heads: {_SHARED_HEADS: heads} if "keys_are_values" in model.mixers[0].switches else {},
        ),
        "wide_head_dim": "global_head_dim",
        "wide_rotary_dim": Size(
            (),
            lambda values: int(values["global_head_dim"] * (values.get("partial_rotary_factor") or 1.0)),
            lambda model, turned: {"partial_rotary_factor": turned / model.mixers[0].sizes["wide_head_dim"]},
        ),
    },
    {"keys_are_values": "attention_k_eq_v"},
)
_EXPERTS = {
    "num_experts": "experts.num_experts",
    "top_k_experts": "experts.num_experts_per_tok",
    "moe_intermediate_size": "experts.moe_intermediate_size",
}


def _gemma4(reader: Reading) -> None:
    """Read Gemma 4's per-layer inputs (if their size is not 0), double-wide MLPs, experts and sizes of layers without a
    window.

    Sets partial_rotary_factor to 1.0, as the file's is that of the layers without a window. MLPs are double-wide only
    beside layers with shared keys and values; with experts (enable_moe_block) they are recorded as a problem.
    """
    values, fields = reader.values, reader.fields
    fields["partial_rotary_factor"] = 1.0
    if size := values.get("hidden_size_per_layer_input"):
        fields["layer_inputs"] = {"size": size, "vocab_size": values["vocab_size_per_layer_input"]}
    wider = values.get("use_double_wide_mlp") and fields.get("num_kv_shared_layers")
    if values.get("enable_moe_block"):
        if wider:
            reader.problem("MLPs beside experts are all as wide", "use_double_wide_mlp", got="true", need="false")
        _beside_experts(reader)
    elif wider:
        fields["wide_intermediate_size"] = 2 * fields["intermediate_size"]
    _sizes_of_layers(reader, values["per_layer_config"])


_SIZES = {"head_dim": "wide_head_dim", "num_key_value_heads": "wide_key_value_heads"}


def _sizes_of_layers(reader: Reading, section: Any) -> None:
    """Set the mixer's sizes from per_layer_config, an object by layer index; nothing for null.

    It must have one and the same head_dim and num_key_value_heads (integers > 0) for every layer without a window, and
    no other key or layer (none without such a mixer), or be empty; else it is recorded as a problem. A size that it
    does not state is the file's. The rotary channels keep their share of the head.
    """
    if section is None:
        return
    mixer: dict[str, Any] = next(iter(reader.fields.get("mixers", ())), {})
    has = mixer.get("layers") or [bool(mixer)] * reader.fields["num_hidden_layers"]
    numbered = isinstance(section, Mapping) and all(str(index).isdecimal() for index in section)
    rows = {int(index): row for index, row in section.items()} if numbered else {-1: None}
    first: Any = next(iter(rows.values()), {})
    alike = rows == {index: first for index, here in enumerate(has) if here} or not rows
    numbers = isinstance(first, Mapping) and all(type(size) is int and size > 0 for size in first.values())
    if not alike or not numbers or not set(first) <= set(_SIZES):
        need = f"one {' and '.join(_SIZES)} for every layer without a window"
        return reader.problem("wrong value", "per_layer_config", got=repr(section), need=need)
    if mixer:
        sizes = mixer["sizes"]
        share = sizes["wide_rotary_dim"] / sizes["wide_head_dim"]
        stated = {key: reader.values[key] for key in _SIZES if key in reader.values} | dict(first)
        mixer["sizes"] = sizes | {_SIZES[key]: size for key, size in stated.items()}
        mixer["sizes"]["wide_rotary_dim"] = int(mixer["sizes"]["wide_head_dim"] * share)


def _beside_experts(reader: Reading) -> None:
    """Set experts on all layers, with norms and normalised weights, the dense MLP as shared expert and
    intermediate_size 0.

    A null number of experts, of choices or width is recorded as a problem that ends the function.
    """
    fields = reader.fields
    for key, field in _EXPERTS.items():
        if reader.values[key] is None:
            return reader.problem("missing", key, need="a whole number > 0, with enable_moe_block")
        fields[field], reader.key_of[field] = reader.values[key], key
    fields["experts.shared_expert_intermediate_size"] = fields["intermediate_size"]
    fields |= {"intermediate_size": 0, "experts.norm_topk_prob": True, "experts.norms_apart": True}


def _gemma4_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the keys of per-layer inputs, shared keys and values, experts, and double-wide MLPs (bools for the last
    two).

    Without per-layer inputs their width is 0 and their vocabulary is left out; without experts their keys are. With
    experts intermediate_size is that of the shared expert.
    """
    has, sparse = model.layer_inputs, model.experts
    keys: dict[str, Any] = {
        "hidden_size_per_layer_input": has.size if has else 0,
        "num_kv_shared_layers": model.num_kv_shared_layers,
        "enable_moe_block": sparse is not None,
        "use_double_wide_mlp": model.wide_intermediate_size is not None,
    }
    if has is not None:
        keys["vocab_size_per_layer_input"] = has.vocab_size
    if sparse is not None:
        keys |= {key: getattr(sparse, field.removeprefix("experts.")) for key, field in _EXPERTS.items()}
        keys["intermediate_size"] = sparse.shared_expert_intermediate_size
    return keys


_KEYS = "hidden_size_per_layer_input vocab_size_per_layer_input per_layer_config use_double_wide_mlp "
_ZERO_CENTERED = "norm_zero_centered scale_embeddings "
_GEMMA2 = _ZERO_CENTERED + "norm_after_sublayer "
_SECOND = "norm_after_sublayer scale_embeddings qk_norm v_norm query_pre_attn_scalar=1.0 "
_ONLY = "use_bidirectional_attention=null|false "
_GEMMA4 = family(
    _SECOND,
    defaults="global_head_dim=512 num_global_key_value_heads=null per_layer_config=null",
    only="use_bidirectional_attention=null|vision",  # which text alone does not notice
    ignored="hidden_act",
    # All but every sixth have a window; the last one never.
    layers=by(lambda values, i, layers: (i + 1) % 6 == 0 or i == layers - 1, FULL, SLIDING),
    blocks={FULL: _WIDE},
    may_be_zero="hidden_size_per_layer_input",
    rules=(Rule(_gemma4, _KEYS),),
)

ARCHITECTURES: dict[str, Architecture] = {
    "gemma2": family(_GEMMA2, only=_ONLY, layers=every(2), ignored="hidden_act",
        same_as="sliding_window_size=sliding_window"),
    "gemma3_text": family(_GEMMA2 + "qk_norm", defaults="sliding_window_pattern=6", only=_ONLY, layers=every(6),
        ignored="hidden_act _sliding_window_pattern"),
    "gemma": family(_ZERO_CENTERED + "hidden_act=gelu_pytorch_tanh",
        # Files of the first release say gelu and mean its approximation (GemmaConfig.__post_init__).
        only=_ONLY + "hidden_act=gelu|gelu_pytorch_tanh hidden_activation=null|gelu_pytorch_tanh",
        ignored="hidden_act"),
    "vaultgemma": family(_ZERO_CENTERED, layers=every(2), ignored="hidden_act"),
    "gemma4_text": replace(_GEMMA4, types=dict.fromkeys(_EXPERTS, "COUNT"),
        rules=(Rule(_gemma4, _KEYS + "enable_moe_block " + " ".join(_EXPERTS), _gemma4_keys),)),
    "gemma4_unified_text": _GEMMA4,
}  # fmt: skip
