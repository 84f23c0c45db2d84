"""Google's Gemma, all generations.

Layers of Gemma 4 without a window have wider heads, and fewer of keys. Its small ones have an embedding for each layer,
and last layers that read the keys and values of earlier ones and may have a wider MLP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Reading, Rule, family
from symconfig.descriptor.architectures.blocks import Block, Size, Values
from symconfig.descriptor.architectures.rules import by, every, sizes_by_layer
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
_SIZES = {"head_dim": "wide_head_dim", "num_key_value_heads": "wide_key_value_heads"}
_EXPERTS = {
    "num_experts": "experts.num_experts",
    "top_k_experts": "experts.num_experts_per_tok",
    "moe_intermediate_size": "experts.moe_intermediate_size",
}


def _gemma4(reader: Reading) -> None:
    """Read Gemma 4's per-layer inputs, double-wide MLPs, experts and sizes of layers without a window.

    Sets partial_rotary_factor to 1.0, as the file's is that of the layers without a window. Experts together with
    double-wide MLPs are a problem.
    """
    values, fields = reader.values, reader.fields
    fields["partial_rotary_factor"] = 1.0
    _layer_inputs(reader)
    wider = values.get("use_double_wide_mlp") and fields.get("num_kv_shared_layers")
    if values.get("enable_moe_block"):
        if wider:
            reader.problem("MLPs beside experts are all as wide", "use_double_wide_mlp", got="true", need="false")
        _beside_experts(reader)
    elif wider:
        fields["wide_intermediate_size"] = 2 * fields["intermediate_size"]
    need = f"one {' and '.join(_SIZES)} for every layer without a window"
    mixer, stated = sizes_by_layer(reader, _SIZES, need)
    if stated:
        share = mixer["sizes"]["wide_rotary_dim"] / mixer["sizes"]["wide_head_dim"]
        mixer["sizes"] = mixer["sizes"] | {_SIZES[name]: size for name, size in stated.items()}
        mixer["sizes"]["wide_rotary_dim"] = int(mixer["sizes"]["wide_head_dim"] * share)


def _beside_experts(reader: Reading) -> None:
    """Set experts on all layers, with the dense MLP as their shared expert and intermediate_size 0.

    A missing number of experts or width is a problem.
    """
    fields = reader.fields
    for key, field in _EXPERTS.items():
        if reader.values[key] is None:
            return reader.problem("missing", key, need="a whole number > 0, with enable_moe_block")
        fields[field], reader.key_of[field] = reader.values[key], key
    fields["experts.shared_expert_intermediate_size"] = fields["intermediate_size"]
    fields |= {"intermediate_size": 0, "experts.norm_topk_prob": True, "experts.norms_apart": True}


def _layer_inputs(reader: Reading) -> None:
    """Set layer_inputs (width and vocabulary of the per-layer embedding); nothing if its width is 0 or null."""
    if size := reader.values.get("hidden_size_per_layer_input"):
        rows = reader.values["vocab_size_per_layer_input"]
        reader.fields["layer_inputs"] = {"size": size, "vocab_size": rows}


def _layer_inputs_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the keys of the per-layer embedding and of the layers that share keys and values.

    Without such an embedding, its width is 0 and its vocabulary is left out.
    """
    has = model.layer_inputs
    keys = {"hidden_size_per_layer_input": has.size if has else 0, "num_kv_shared_layers": model.num_kv_shared_layers}
    return keys | ({"vocab_size_per_layer_input": has.vocab_size} if has else {})


def _gemma4_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the keys of per-layer inputs, experts (intermediate_size from the shared expert) and double-wide MLPs."""
    keys, sparse = _layer_inputs_keys(model), model.experts
    if sparse is not None:
        keys |= {key: getattr(sparse, field.removeprefix("experts.")) for key, field in _EXPERTS.items()}
    keys["enable_moe_block"] = sparse is not None
    if sparse is not None:
        keys["intermediate_size"] = sparse.shared_expert_intermediate_size
    return {**keys, "use_double_wide_mlp": model.wide_intermediate_size is not None}


def _gemma3n(reader: Reading) -> None:
    """Set intermediate_size, mlp_sparsity and per-layer inputs of Gemma 3n.

    A list of widths must have one equal width > 0 per layer, and a list of sparsities one share in [0, 1), else it is a
    problem. Without sparsities the first ten layers have 0.95, if there are more than ten, and the others 0.
    """
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
    _layer_inputs(reader)


def _gemma3n_keys(model: ModelDescriptor) -> dict[str, Any]:
    shares = model.mlp_sparsity or (0.0,) * model.num_hidden_layers
    own = {"intermediate_size": model.intermediate_size, "activation_sparsity_pattern": list(shares)}
    return {**_layer_inputs_keys(model), **own}


_PER_LAYER = "hidden_size_per_layer_input vocab_size_per_layer_input "
_KEYS = _PER_LAYER + "per_layer_config use_double_wide_mlp "
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
    "gemma3n_text": family(_SECOND + "streams.mixing=predicted",
        names="altup_num_inputs=streams.count altup_correct_scale=streams.scaled", only="altup_active_idx=0",
        ignored="altup_coef_clip",  # bounds weights, which are not wider for it
        layers=every(5),
        rules=(Rule(_gemma3n, _PER_LAYER + "intermediate_size activation_sparsity_pattern", _gemma3n_keys),)),
    "gemma4_text": replace(_GEMMA4, kinds=dict.fromkeys(_EXPERTS, "COUNT"),
        rules=(Rule(_gemma4, _KEYS + "enable_moe_block " + " ".join(_EXPERTS), _gemma4_keys),)),
    "gemma4_unified_text": _GEMMA4,
}  # fmt: skip
