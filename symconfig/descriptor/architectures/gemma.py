"""Google's Gemma, all generations.

Layers of Gemma 4 without a window have wider heads, and fewer of keys. Its small ones have an embedding for each layer,
and last layers that read the keys and values of earlier ones and may have a wider MLP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Kind, Reading, Rule, Values
from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.architectures.mixer_keys import Block, Size
from symconfig.descriptor.architectures.rules import alternate, every, sizes_by_layer
from symconfig.descriptor.model import ModelDescriptor

_GEMMA2 = {"norm_zero_centered": True, "norm_after_sublayer": True, "scale_embeddings": True}
_ONLY = {"use_bidirectional_attention": (None, False)}
_WINDOW = {"sliding_window_size": "sliding_window"}  # of files that were published before transformers had the class


_GEMMA = {"norm_zero_centered": True, "scale_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}


_EVERY = 6  # of which the last has no window
_SIZES = {"head_dim": "wide_head_dim", "num_key_value_heads": "wide_key_value_heads"}


def layers(values: Values, number: int) -> list[str]:
    """List the layers' types: all but every sixth have a window; the last one never."""
    return [FULL if (i + 1) % _EVERY == 0 or i == number - 1 else SLIDING for i in range(number)]


def _wide_heads(values: Values) -> Any:
    own = values["num_global_key_value_heads"] if values["attention_k_eq_v"] else None
    return own or values["num_key_value_heads"]


_SHARED_HEADS = "num_global_key_value_heads"
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


def _gemma4(reader: Reading) -> None:
    """Read Gemma 4: rope's fraction is that of the wide layers, which have a section of the file of their own, too."""
    values, fields = reader.values, reader.fields
    fields["partial_rotary_factor"] = 1.0
    layer_inputs(reader)
    wider = values.get("use_double_wide_mlp") and fields.get("num_kv_shared_layers")
    if values.get("enable_moe_block"):
        if wider:
            reader.problem("MLPs beside experts are all as wide", "use_double_wide_mlp", got="true", need="false")
        _beside_experts(reader)
    elif wider:
        fields["wide_intermediate_size"] = 2 * fields["intermediate_size"]
    _per_layer(reader)


def _beside_experts(reader: Reading) -> None:
    """Read experts on all layers, beside the MLP, which is their shared expert."""
    values, fields = reader.values, reader.fields
    for key, field in _EXPERTS.items():
        if values[key] is None:
            return reader.problem("missing", key, need="a whole number > 0, with enable_moe_block")
        fields[field] = values[key]
        reader.key_of[field] = key
    fields["experts.shared_expert_intermediate_size"] = fields["intermediate_size"]
    fields |= {"intermediate_size": 0, "experts.norm_topk_prob": True, "experts.norms_apart": True}
    return None


def layer_inputs(reader: Reading) -> None:
    """Read the embedding for each layer, which has a width and a vocabulary of its own."""
    if size := reader.values.get("hidden_size_per_layer_input"):
        rows = reader.values["vocab_size_per_layer_input"]
        reader.fields["layer_inputs"] = {"size": size, "vocab_size": rows}


def layer_inputs_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the keys of a model's embedding for each layer, and of layers that share keys and values."""
    has = model.layer_inputs
    sizes = {} if has is None else {"vocab_size_per_layer_input": has.vocab_size}
    size = 0 if has is None else has.size
    return {"hidden_size_per_layer_input": size, "num_kv_shared_layers": model.num_kv_shared_layers, **sizes}


def _per_layer(reader: Reading) -> None:
    """Read per_layer_config, sizes by layer's number; they may differ on the wide layers only, and all alike."""
    need = f"one {' and '.join(_SIZES)} for every layer without a window"
    mixer, stated = sizes_by_layer(reader, _SIZES, need)
    if not stated:
        return
    own = {_SIZES[name]: size for name, size in stated.items()}
    share = mixer["sizes"]["wide_rotary_dim"] / mixer["sizes"]["wide_head_dim"]
    mixer["sizes"] = mixer["sizes"] | own
    mixer["sizes"]["wide_rotary_dim"] = int(mixer["sizes"]["wide_head_dim"] * share)


def _small_keys(model: ModelDescriptor) -> dict[str, Any]:
    own = {"use_double_wide_mlp": model.wide_intermediate_size is not None}
    return {**layer_inputs_keys(model), **_expert_keys(model), **own}


def _gemma3n(reader: Reading) -> None:
    """Read Gemma 3n: a width may be one for all layers or one for each, which may not differ; cut-off shares may."""
    values, fields = reader.values, reader.fields
    layers, wide, cut = fields["num_hidden_layers"], values["intermediate_size"], values["activation_sparsity_pattern"]
    listed = wide if isinstance(wide, list) else [wide] * layers
    if len(listed) != layers or any(type(one) is not int or not 0 < one < 2**40 or one != listed[0] for one in listed):
        need = f"one width > 0, or {layers} alike"
        return reader.problem("wrong value", "intermediate_size", got=repr(wide), need=need)
    fields["intermediate_size"] = listed[0]
    if cut is None:
        cut = [0.95] * 10 + [0.0] * (layers - 10) if layers > 10 else [0.0] * layers
    shares = cut if isinstance(cut, list) else []
    if len(shares) != layers or any(isinstance(one, bool) or not 0 <= one < 1 for one in shares):
        need = f"a share from 0 to 1 for each of {layers} layers"
        return reader.problem("wrong value", "activation_sparsity_pattern", got=repr(cut), need=need)
    if any(shares):
        fields["mlp_sparsity"] = [float(one) for one in shares]
    layer_inputs(reader)
    fields["streams.count"], fields["streams.mixing"] = values["altup_num_inputs"], "predicted"
    fields["streams.scaled"] = values["altup_correct_scale"]
    return None


def _keys_3n(model: ModelDescriptor) -> dict[str, Any]:
    streams, shares = model.streams, model.mlp_sparsity or (0.0,) * model.num_hidden_layers
    own: dict[str, Any] = (
        {} if streams is None else {"altup_num_inputs": streams.count, "altup_correct_scale": streams.scaled}
    )
    own |= {"intermediate_size": model.intermediate_size, "activation_sparsity_pattern": list(shares)}
    return {**layer_inputs_keys(model), **own}


_EXPERTS = {
    "num_experts": "experts.num_experts",
    "top_k_experts": "experts.num_experts_per_tok",
    "moe_intermediate_size": "experts.moe_intermediate_size",
}


def _expert_keys(model: ModelDescriptor) -> dict[str, Any]:
    sparse = model.experts
    if sparse is None:
        return {"enable_moe_block": False}
    keys = {key: getattr(sparse, field.removeprefix("experts.")) for key, field in _EXPERTS.items()}
    return {**keys, "enable_moe_block": True, "intermediate_size": sparse.shared_expert_intermediate_size}


_KEYS = words("per_layer_config hidden_size_per_layer_input vocab_size_per_layer_input use_double_wide_mlp")
_GEMMA4 = Architecture(
    constants={
        "norm_after_sublayer": True,
        "scale_embeddings": True,
        "qk_norm": True,
        "v_norm": True,
        "query_pre_attn_scalar": 1.0,
    },
    defaults={"global_head_dim": 512, "num_global_key_value_heads": None, "per_layer_config": None},
    only={"use_bidirectional_attention": (None, "vision")},  # which text alone does not notice
    ignored=("hidden_act",),
    layers=layers,
    blocks={FULL: _WIDE},
    may_be_zero=("hidden_size_per_layer_input",),
    rules=(Rule(_gemma4, _KEYS),),
)

ARCHITECTURES: dict[str, Architecture] = {
    "gemma2": Architecture(constants=_GEMMA2, only=_ONLY, layers=alternate, ignored=("hidden_act",), same_as=_WINDOW),
    "gemma3_text": Architecture(
        constants={**_GEMMA2, "qk_norm": True},
        defaults={"sliding_window_pattern": 6},
        only=_ONLY,
        layers=every(6),
        ignored=("hidden_act", "_sliding_window_pattern"),
    ),
    "gemma": Architecture(
        constants=_GEMMA,
        # Files of the first release say gelu and mean its approximation (GemmaConfig.__post_init__).
        only={
            "hidden_act": ("gelu", "gelu_pytorch_tanh"),
            "hidden_activation": (None, "gelu_pytorch_tanh"),
            "use_bidirectional_attention": (None, False),
        },
        ignored=("hidden_act",),
    ),
    "vaultgemma": Architecture(
        constants={"norm_zero_centered": True, "scale_embeddings": True}, layers=alternate, ignored=("hidden_act",)
    ),
    "gemma3n_text": Architecture(
        constants=_GEMMA4.constants,
        only={"altup_active_idx": (0,)},
        ignored=("altup_coef_clip",),  # bounds weights, which are not wider for it
        layers=every(5),
        rules=(
            Rule(
                _gemma3n,
                words(
                    """intermediate_size activation_sparsity_pattern altup_num_inputs altup_correct_scale
                    hidden_size_per_layer_input vocab_size_per_layer_input"""
                ),
                _keys_3n,
            ),
        ),
    ),
    "gemma4_text": replace(
        _GEMMA4,
        names=dict.fromkeys(_EXPERTS, ()),
        kinds=dict.fromkeys(_EXPERTS, Kind.COUNT),
        rules=(Rule(_gemma4, (*_KEYS, *_EXPERTS, "enable_moe_block"), _small_keys),),
    ),
    "gemma4_unified_text": _GEMMA4,
}
