"""Models with experts: MiniMax-M2, Llama 4, Ernie 4.5, OLMoE, Hunyuan, Granite, Trinity, Command A."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import (
    CHUNKED,
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
from symconfig.descriptor.architectures.dense import (
    COHERE,
    GRANITE,
    HUNYUAN,
    HUNYUAN_IGNORED,
    LOGITS,
    exaone4,
    exaone_pattern,
    rope_if_window,
)
from symconfig.descriptor.architectures.keys import pairs
from symconfig.descriptor.architectures.rules import LAYERNORM, NO_DENSE, OWN_PREDICTION, SIGMOID, WIDTH
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Norm

_ALL_HEADS = "qk_norm qk_norm_of=all_heads "
_AFTER_CHOICE = "experts.norm_topk_prob=false experts.softmax_after_topk "
_SHARED_WIDTH = "shared_intermediate_size=experts.shared_expert_intermediate_size "


def _minimax(reader: Reading) -> None:
    """Report a problem if attn_type_list has anything but 1 (full attention); sets nothing."""
    listed = reader.values["attn_type_list"]
    if listed is not None and (not isinstance(listed, list) or any(one != 1 for one in listed)):
        what = "MiniMax-M2's layers all have full attention"
        reader.problem(what, "attn_type_list", got=listed, need="1 for each layer")


def _hunyuan(reader: Reading) -> None:
    """Set the number of experts and of choices, and their key_of; a list is taken if all its values are equal.

    Other lists, and a moe_intermediate_size or num_shared_expert of the file other than intermediate_size or 1 (lists:
    in any value), are recorded as problems; null is not.
    """
    for key, field in (("moe_topk", "experts.num_experts_per_tok"), ("num_experts", "experts.num_experts")):
        value = reader.values[key]
        alike = set(map(str, value)) if isinstance(value, list) else {value}
        if len(alike) != 1:
            reader.problem("layers with different experts are not described", key, got=value, need="one number")
            continue
        reader.fields[field], reader.key_of[field] = (value[0] if isinstance(value, list) else value), key
    for key, built in (("moe_intermediate_size", reader.values["intermediate_size"]), ("num_shared_expert", 1)):
        value = reader.data.get(key)
        if any(one not in (None, built) for one in (value if isinstance(value, list) else [value])):
            reader.problem("is not what Transformers' class builds", key, got=value, need=str(built))


def _hunyuan_keys(model: ModelDescriptor) -> Mapping[str, Any]:
    sparse = model.experts
    return {} if sparse is None else {"moe_topk": sparse.num_experts_per_tok, "num_experts": sparse.num_experts}


def _ernie(values: Values, layers: int) -> list[bool]:
    """Return for each layer whether it has experts: those with an index from moe_layer_start_index to
    moe_layer_end_index (-1 or null: the last layer) whose index + 1 is a multiple of moe_layer_interval (null or 0: 1).
    """
    first, last, step = (values[f"moe_layer_{name}"] for name in ("start_index", "end_index", "interval"))
    last = layers if last in (-1, None) else last
    return [(index + 1) % (step or 1) == 0 and first <= index <= last for index in range(layers)]


def _ernie_layers(model: ModelDescriptor) -> Mapping[str, Any]:
    """Return the indices of the first and last layer with experts and the interval of the first two; num_hidden_layers
    for both indices without any.

    The interval is 1 if only one layer has experts, or if it does not divide the first index + 1.
    """
    which = [index for index, moe in enumerate(model.moe_layers) if moe] or [model.num_hidden_layers]
    apart = which[1] - which[0] if len(which) > 1 and not (which[0] + 1) % (which[1] - which[0]) else 1
    return {"moe_layer_start_index": which[0], "moe_layer_end_index": which[-1], "moe_layer_interval": apart}


def _llama4_experts(values: Values, layers: int) -> list[bool]:
    listed, step = values["moe_layers"], values["interleave_moe_layer_step"]
    return [index in listed if isinstance(listed, list) else (index + 1) % (step or 1) == 0 for index in range(layers)]


def _temperature_tuning(reader: Reading) -> None:
    """List attn_scale and floor_scale as particulars, unless attn_temperature_tuning is false or 0; null means on."""
    if reader.values["attn_temperature_tuning"] is None or reader.values["attn_temperature_tuning"]:
        rules.particulars({"attn_scale": None, "floor_scale": None}).read(reader)


def _llama4_keys(model: ModelDescriptor) -> Mapping[str, Any]:
    """Return the model's particulars by name, attn_temperature_tuning (true if there are any), and in moe_layers the
    indices of the layers with experts.
    """
    values = {one.name: one.value for one in model.particulars}
    listed = [index for index, moe in enumerate(model.moe_layers) if moe]
    return {**values, "attn_temperature_tuning": bool(values), "moe_layers": listed}


def _cohere_layers(values: Values, layers: int) -> list[str]:
    """Return each layer's type: every n-th is full, the others sliding; the dense layers in front have another n.

    n: prefix_dense_sliding_window_pattern for the first first_k_dense_replace layers, sliding_window_pattern, counted
    anew, for the others.
    """
    keys = ("first_k_dense_replace", "prefix_dense_sliding_window_pattern", "sliding_window_pattern")
    front, ahead, behind = (values[key] for key in keys)
    steps = [(i + 1) % ahead if i < front else (i - front + 1) % behind for i in range(layers)]
    return [SLIDING if step else FULL for step in steps]


def _cohere(reader: Reading) -> None:
    """Set intermediate_size to prefix_dense_intermediate_size (null or 0: intermediate_size), and how experts are
    scored.

    With rms_norm_eps the norm is RMSNorm with it. expert_selection_fn gives the scores; "softmax" is after the choice.
    With shared experts, their combination strategy is a particular unless it is "sum".
    """
    values, fields = reader.values, reader.fields
    fields["intermediate_size"] = values["prefix_dense_intermediate_size"] or values["intermediate_size"]
    if values["rms_norm_eps"] is not None:
        fields |= {"norm": "rmsnorm", "norm_eps": values["rms_norm_eps"]}
    fields["experts.scoring_func"] = values["expert_selection_fn"]
    fields["experts.softmax_after_topk"] = values["expert_selection_fn"] == "softmax"
    if values["num_shared_experts"]:
        rules.particulars({"shared_expert_combination_strategy": "sum"}).read(reader)


def _cohere_keys(model: ModelDescriptor) -> Mapping[str, Any]:
    return {
        "prefix_dense_intermediate_size": model.intermediate_size or None,
        "rms_norm_eps": model.norm_eps if model.norm is Norm.RMSNORM else None,
        "expert_selection_fn": model.experts.scoring_func if model.experts else "softmax",
    }


# MiMo-V2-Flash, whose layers with a window have twice the key/value heads of the others.
_TIMES = 2
_WIDE = Block(
    "wide_attention",
    {
        "wide_key_value_heads": "num_key_value_heads",
        "wide_head_dim": "head_dim",
        "wide_value_dim": "v_head_dim",
        "wide_rotary_dim": Size(
            (), lambda values: int(values["head_dim"] * values["partial_rotary_factor"]), lambda model, turned: {}
        ),
    },
)
_MIMO_LAYERS = rules.by(lambda values, i, _: i and (i + 1) % 6)
_PUBLISHED = pairs(
    """hybrid_layer_pattern=LAYERS moe_layer_freq=LAYERS swa_num_attention_heads=COUNT swa_num_key_value_heads=COUNT
    swa_head_dim=COUNT swa_v_head_dim=COUNT sliding_window_size=COUNT"""
)


def _mimo(reader: Reading) -> None:
    """Set MiMo's window, twice the key/value heads, dense layers and rope's fractions.

    The window is sliding_window_size + 1, where that is given and the model has one. Values of the published file that
    Transformers' class would not build are recorded as problems; null is not. Without mlp_layer_types the first layer
    is dense. partial_rotary_factor becomes that of sliding layers in rope_parameters, if stated; that of the file gives
    wide_rotary_dim of the mixers.
    """
    values, fields, number = reader.values, reader.fields, reader.fields["num_hidden_layers"]
    granted = {
        "hybrid_layer_pattern": [int(kind == SLIDING) for kind in _MIMO_LAYERS(values, number)],
        "moe_layer_freq": [int(index > 0) for index in range(number)],
        "swa_num_attention_heads": values["num_attention_heads"],
        "swa_num_key_value_heads": _TIMES * values["num_key_value_heads"],
        "swa_head_dim": values["head_dim"],
        "swa_v_head_dim": values["v_head_dim"],
    }
    for key, built in granted.items():
        if values[key] not in (None, built):
            reader.problem("is not what Transformers' class builds", key, got=values[key], need=str(built))
    if values["sliding_window_size"] is not None and "sliding_window" in fields:
        fields["sliding_window"] = values["sliding_window_size"] + 1
    fields["num_key_value_heads"] = _TIMES * values["num_key_value_heads"]
    if not values["mlp_layer_types"]:
        fields["experts.first_k_dense_replace"] = min(1, number)
    for mixer in fields.get("mixers", ()):
        mixer["sizes"]["wide_rotary_dim"] = int(fields["head_dim"] * fields["partial_rotary_factor"])
    sections = reader.data.get("rope_parameters")
    local = (sections.get(SLIDING) or {}) if isinstance(sections, Mapping) else {}
    fields["partial_rotary_factor"] = local.get("partial_rotary_factor", values["partial_rotary_factor"])


def _mimo_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return num_key_value_heads, half the model's, and rope_parameters for full and sliding layers.

    Full layers have rope_theta and the fraction of the wide mixer's rotary channels (without it, or if equal, the
    model's); sliding ones rope_local_base_freq (unset: rope_theta) and the model's fraction.
    """
    sizes = next((one.sizes for one in model.mixers if one.block == _WIDE.name), {})
    local = model.partial_rotary_factor
    turned = sizes.get("wide_rotary_dim", model.rotary_dim)
    whole = local if turned == model.rotary_dim else turned / model.head_dim
    bases = {FULL: (model.rope_theta, whole), SLIDING: (model.rope_local_base_freq or model.rope_theta, local)}
    rope = {
        kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
        for kind, (base, share) in bases.items()
    }
    return {"num_key_value_heads": model.num_key_value_heads // _TIMES, "rope_parameters": rope}


ARCHITECTURES: dict[str, Architecture] = {
    "minimax_m2": family(NO_DENSE + SIGMOID + _ALL_HEADS + "experts.norm_topk_prob", names=WIDTH,
        defaults="rotary_dim=null attn_type_list=null partial_rotary_factor=1.0",
        only="""scoring_func=sigmoid use_routing_bias use_qk_norm qk_norm_type=per_layer shared_intermediate_size=0
            shared_moe_mode=sigmoid""", noted=OWN_PREDICTION,
        ignored="""use_mtp mtp_transformer_layers mlp_intermediate_size layernorm_full_attention_beta
            layernorm_linear_attention_beta layernorm_mlp_beta""",
        rules=(Rule(_minimax, "attn_type_list"), replace(rules.turned_channels, write=None))),
    "olmoe": family(NO_DENSE + _ALL_HEADS, names=WIDTH,
        rules=(rules.heads_fill_hidden, rules.particulars({"clip_qkv": None}))),
    "flex_olmo": family(NO_DENSE + _ALL_HEADS + "norm_before_sublayer=false norm_after_sublayer", names=WIDTH),
    "phimoe": family(NO_DENSE + LAYERNORM + "experts.norm_topk_prob=false", names=WIDTH, only="hidden_dropout=0.0",
        noted={"input_jitter_noise": "input_jitter_noise is not modelled: it changes no shape and no cost"},
        ignored="original_max_position_embeddings",  # rope_scaling says it, too
        layers=rules.all_sliding, rules=(rules.particulars({}, {"router": lambda values: "sparsemixer"}),)),
    "hunyuan_v1_moe": family(NO_DENSE + "qk_norm experts.norm_topk_prob",
        names="intermediate_size=experts.moe_intermediate_size,experts.shared_expert_intermediate_size",
        only=HUNYUAN + "moe_layer_num_skipped=0 routed_scaling_factor=1.0 use_mixed_mlp_moe norm_topk_prob",
        same_as="attention_head_dim=head_dim",
        # The first two are what the rule checks, the others of images.
        ignored=HUNYUAN_IGNORED
        + """moe_intermediate_size num_shared_expert im_start_id im_end_id im_newline_id mask_init_id num_media_embeds
            text_start_id text_end_id image_token_id video_start_id video_end_id vit_input_resolution vit_mapping_type
            vit_norm_type vit_patch vit_token""", rules=(Rule(_hunyuan, "moe_topk num_experts", _hunyuan_keys),)),
    "aria_text": family(NO_DENSE + _AFTER_CHOICE,
        names=WIDTH + "moe_num_experts=experts.num_experts moe_topk=experts.num_experts_per_tok mlp_bias=",
        rules=(rules.shared_experts("moe_num_shared_experts"),)),
    "granitemoe": family(NO_DENSE + _AFTER_CHOICE, names=WIDTH, rules=GRANITE),
    "granitemoeshared": family(NO_DENSE + _AFTER_CHOICE, names=WIDTH + _SHARED_WIDTH, rules=GRANITE),
    "ernie4_5_moe": family("experts.e_score_correction_bias experts.norm_topk_prob",
        only="use_bias=false moe_gate=topk moe_gate_act=null|softmax moe_use_aux_free",
        names="moe_num_experts=experts.num_experts moe_k=experts.num_experts_per_tok",
        noted={
            "num_nextn_predict_layers": "layers of multi-token prediction are left out: their place is not described"
        },
        ignored="moe_norm_min moe_capacity",  # Transformers' class drops no token
        rules=(rules.shared_experts("moe_num_shared_experts"), rules.experts_at(
            _ernie, "moe_layer_start_index moe_layer_end_index moe_layer_interval", _ernie_layers))),
    "hy_v3": family(SIGMOID + "qk_norm experts.norm_topk_prob experts.first_k_dense_replace=1",
        names="router_scaling_factor=experts.routed_scaling_factor mlp_bias=", defaults="num_nextn_predict_layers=0",
        only="first_k_dense_replace=1 qk_norm route_norm moe_router_use_sigmoid moe_router_enable_expert_bias",
        same_as="expert_hidden_dim=moe_intermediate_size",
        # In which precision some of it is computed.
        ignored="enable_moe_fp32_combine enable_lm_head_fp32 enable_attention_fp32_softmax use_grouped_mm",
        rules=(rules.shared_experts("num_shared_experts"),)),
    "llama4_text": family(
        "experts.scoring_func=sigmoid experts.norm_topk_prob=false experts.input_scaled qk_norm_of=unit",
        names="""intermediate_size=experts.moe_intermediate_size,experts.shared_expert_intermediate_size
            intermediate_size_mlp=intermediate_size use_qk_norm=qk_norm""", defaults="attn_temperature_tuning=null",
        ignored="for_llm_compressor", layers=rules.by_rope(CHUNKED, FULL),
        rules=(rules.rope_by_layer,
            rules.experts_at(_llama4_experts, "moe_layers interleave_moe_layer_step"),
            Rule(_temperature_tuning, "attn_temperature_tuning attn_scale floor_scale", _llama4_keys))),
    "afmoe": family(SIGMOID + "qk_norm norm_after_sublayer attention_gate=channel experts.norm_topk_prob",
        names="""route_scale=experts.routed_scaling_factor num_dense_layers=experts.first_k_dense_replace
            mup_enabled=scale_embeddings""",
        # Its gate has no bias, where the other projections may have one.
        only="attention_bias=false score_func=sigmoid route_norm", ignored="use_grouped_mm",
        layers=rules.every(4, "global_attn_every_n_layers"), reads="global_attn_every_n_layers",
        rules=(rules.rope_with_window, rules.shared_experts("num_shared_experts"))),
    "mellum": family("qk_norm", defaults="num_mtp_layers=0", same_as="num_mtp_layers=num_nextn_predict_layers",
        layers=rules.always(FULL)),
    "kolibri1": family(SIGMOID + NO_DENSE + "qk_norm norm_after_sublayer", layers=rules.every(5),
        rules=(rope_if_window, rules.particulars({}, {"e_score_correction_bias": lambda values: "of logits"}))),
    "flint": family("qk_norm attention_sinks experts.scoring_func=sigmoid", defaults="mlp_only_layers=[0,1]",
        layers=rules.by(lambda values, i, layers: i < 2 or i % 4 == 1 or i == layers - 1, FULL, SLIDING),
        rules=(rules.rope_with_window,)),
    "exaone_moe": family(SIGMOID + "qk_norm", only="scoring_func=sigmoid topk_method=noaux_tc", layers=exaone4,
        rules=(exaone_pattern, rules.shared_experts("num_shared_experts"))),
    "cohere2_moe": family(COHERE, names=WIDTH, defaults="first_k_dense_replace=0", layers=_cohere_layers,
        reads="prefix_dense_sliding_window_pattern",
        rules=(LOGITS, Rule(_cohere, """prefix_dense_intermediate_size rms_norm_eps expert_selection_fn
            shared_expert_combination_strategy""", _cohere_keys), rules.rope_with_window,
            rules.shared_experts("num_shared_experts"))),
    "mimo_v2_flash": family(SIGMOID + "attention_sinks",
        names="head_dim=head_dim attention_bias=qkv_bias v_head_dim=v_head_dim",
        defaults=" ".join(f"{key}=null" for key in _PUBLISHED),
        only="""scoring_func=sigmoid topk_method=noaux_tc n_shared_experts=null|0 layernorm_epsilon=1e-5
            swa_rope_theta=1e4 add_swa_attention_sink_bias""",
        ignored="attention_chunk_size",  # its window again
        layers=_MIMO_LAYERS, blocks={FULL: _WIDE},
        types="routed_scaling_factor=NUMBER " + " ".join(f"{key}={kind}" for key, kind in _PUBLISHED.items()),
        rules=(Rule(_mimo, " ".join(_PUBLISHED), _mimo_keys), rules.particulars({"attention_value_scale": 1.0}))),
}  # fmt: skip
