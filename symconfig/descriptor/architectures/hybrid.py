"""Families that mix tokens by state spaces, linear attention or convolutions, in all of their layers or in some.

What their own blocks are is in graph/blocks; here are only their sizes and switches, as each class spells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import (
    FULL,
    LINEAR,
    OLDER_TYPES,
    SLIDING,
    Architecture,
    Block,
    Reading,
    Rule,
    Size,
    Values,
    family,
    named,
)
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, ROUTED_AS_V3, V3
from symconfig.descriptor.architectures.rules import NO_DENSE, WIDTH, attending, scale
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import NO_MIXER, Mlp

# How a class starts, and how it steps at inference: neither changes a shape or a cost.
_STARTS = """time_step_floor time_step_max time_step_min time_step_scale time_step_init_scheme time_step_limit
    rescale_prenorm_residual residual_in_fp32 use_mamba_kernels use_mambapy use_associative_scan num_logits_to_keep
    mamba_dt_min mamba_dt_max mamba_dt_limit mamba_dt_init_floor """


def _notes(names: str) -> dict[str, str]:
    """Return the note that a factor is left out, for each key (words)."""
    why = "is a factor of activations that changes no shape and no cost, and is left out"
    return {name: f"{name} {why}" for name in names.split()}


def _kimi_layers(values: Values, layers: int) -> list[str]:
    listed = values["linear_attn_config.full_attn_layers"]
    attends = [i for i in range(1, layers) if i % 4 == 0] if listed is None else [i - 1 for i in listed]
    return [FULL if i in attends else LINEAR for i in range(layers)]


def _nemotron_layers(values: Values, layers: int) -> list[str]:
    """Return each layer's type by the letters of hybrid_override_pattern; an unknown letter stands for itself."""
    types = {"M": LINEAR, "*": FULL, "E": "moe", "-": "mlp"}
    return [types.get(letter, letter) for letter in values["hybrid_override_pattern"]]


def _only_scans(reader: Reading) -> None:
    """Set the heads, key/value heads and head_dim of a model without attention to those of its state space, and
    mlp_layers to false for each layer.
    """
    fields = reader.fields
    sizes = fields["mixers"][0]["sizes"]
    heads = sizes["mamba_num_heads"]
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": sizes["mamba_head_dim"]}
    fields["mlp_layers"] = [False] * fields["num_hidden_layers"]


def _granite(reader: Reading) -> None:
    """Set Granite 4's attention scale (attention_multiplier ** -2) and its dense MLP: intermediate_size 0 with experts.

    Without experts it is shared_intermediate_size, and the experts' fields are deleted. Position is "none" unless
    position_embedding_type is rope. A key that the file lacks has the class's default (`Reading.values`).
    """
    values, fields = reader.values, reader.fields
    fields["query_pre_attn_scalar"] = values["attention_multiplier"] ** -2
    fields["intermediate_size"] = 0
    if not values["num_local_experts"]:
        fields["intermediate_size"] = values["shared_intermediate_size"]
        rules.without_experts(fields)
    if values["position_embedding_type"] != "rope":
        fields["position"] = "none"


def _nemotron(reader: Reading) -> None:
    """Set which layers are nothing but an MLP or experts (mlp_layers), which have experts, and the shared expert's
    width.

    By layer_types, in old or new spelling, else (null or empty) by hybrid_override_pattern. If no layer is experts,
    their fields are deleted.
    """
    values, fields = reader.values, reader.fields
    listed = values["layer_types"] or _nemotron_layers(values, fields["num_hidden_layers"])
    listed = [OLDER_TYPES.get(kind, kind) for kind in listed]
    fields["mlp_layers"] = [kind in ("moe", "mlp") for kind in listed]
    moe = [kind == "moe" for kind in listed]
    if not any(moe):
        return rules.without_experts(fields)
    fields["experts.layers"] = moe
    fields["experts.shared_expert_intermediate_size"] = values["moe_shared_expert_intermediate_size"]


def _nemotron_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return layer_types, and moe_shared_expert_intermediate_size if it is not 0.

    A layer with attention is full_attention; another one "moe" or "mlp" by its MLP, and without MLP linear_attention.
    """
    alone = {Mlp.MOE: "moe", Mlp.DENSE: "mlp"}
    types = [FULL if kind.attends else alone.get(kind.mlp, LINEAR) for kind in model.kind_of_layer]
    width = model.experts.shared_expert_intermediate_size if model.experts else None
    return {"layer_types": types, **({"moe_shared_expert_intermediate_size": width} if width else {})}


def _lfm2(reader: Reading) -> None:
    """Set intermediate_size to two thirds, rounded down; times block_ffn_dim_multiplier, rounded up to
    block_multiple_of.

    Unchanged if block_auto_adjust_ff_dim is false; neither multiplied nor rounded up if the multiplier is null.
    """
    values = reader.values
    if not values["block_auto_adjust_ff_dim"]:
        return
    width = int(2 * reader.fields["intermediate_size"] / 3)
    if values["block_ffn_dim_multiplier"] is not None:
        multiple = values["block_multiple_of"]
        width = multiple * ceil(int(values["block_ffn_dim_multiplier"] * width) / multiple)
    reader.fields["intermediate_size"] = width


def _expand(key: str) -> Rule:
    """Return a rule that reads nothing, and writes `key` (inner width of the first Mamba-2 mixer over hidden_size).

    The key is left out unless the quotient is an integer above 0.
    """

    def write(model: ModelDescriptor) -> dict[str, Any]:
        sizes = [mixer.sizes for mixer in model.mixers if mixer.block == "mamba2"]
        factors = [one["mamba_num_heads"] * one["mamba_head_dim"] / model.hidden_size for one in sizes]
        return {key: int(factors[0])} if factors and factors[0] and factors[0].is_integer() else {}

    return Rule(lambda reader: None, key, write)


# Mamba-2's sizes, in the order in which the tables below name their keys.
_SCAN_SWITCHES = ("conv_bias", "proj_bias", "out_proj_bias", "gated_norm")
_SCAN = "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel chunk_size"


def _scan(sizes: Mapping[str, str | Size], biases: tuple[str, str, str], norm: str = "") -> Block:
    """Return Mamba-2's block with keys for its three biases; `norm` is the key of its gated norm, empty: always on."""
    return Block("mamba2", sizes, dict(zip(_SCAN_SWITCHES, (*biases, norm), strict=True)))


_OWN = ("mamba_conv_bias", "mamba_proj_bias")
_USE = ("use_conv_bias", "use_bias", "use_bias")
_mamba2 = _scan(named(_SCAN, "num_heads head_dim n_groups state_size conv_kernel chunk_size"), _USE)
_nemotron_h = _scan(named(_SCAN), _USE)


def _bamba_width(values: Values) -> int:
    inner = values.get("mamba_d_ssm") or int(values["mamba_expand"] * values["hidden_size"])
    heads, width = values["mamba_n_heads"], values["mamba_d_head"]
    return int(inner // heads if width == "auto" else width)


# Of Bamba, Granite 4 and, with keys of its own, Falcon-H1.
_BAMBA = named(_SCAN, "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_chunk_size") | {
    "mamba_head_dim": Size(("mamba_d_head", "mamba_expand"), _bamba_width)
}
_bamba = _scan(_BAMBA, (*_OWN, "mamba_proj_bias"))
_falcon_h1 = replace(_scan(_BAMBA, (*_OWN, "projectors_bias"), "mamba_rms_norm"), beside_attention=True)


_DELTA = "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim"
_delta = Block("gated_delta_net", named(_DELTA))


_KDA = "linear_num_heads linear_head_dim linear_conv_kernel_dim"
_kimi = Block("kimi_delta_attention", named(_KDA))
_short_conv = Block("short_conv", named("conv_L_cache"), {"conv_bias": "conv_bias"})
_ALONE = Block(NO_MIXER)


_QWEN: dict[str, Any] = {
    "constants": "qk_norm norm_zero_centered attention_gate=channel ",
    "defaults": "full_attention_interval=4",
    "only": "attn_output_gate output_gate_type=swish|silu ",
    "noted": {"mtp_num_hidden_layers": "multi-token-prediction layers (mtp_num_hidden_layers) are left out"},
    "ignored": "mamba_ssm_dtype mtp_use_dedicated_embeddings ",
    "layers": attending(lambda values, i, _: (i + 1) % values["full_attention_interval"] == 0),
    "blocks": {LINEAR: _delta},
    "reads": "full_attention_interval",
}
# Its classes have one MLP for all layers, and its files still say that there is no other.
_QWEN_3_5 = _QWEN | {"only": _QWEN["only"] + "mlp_only_layers=[]|null"}
_QWEN_EXPERTS = _QWEN["constants"] + "experts.shared_expert_gate "
_SCALED = tuple(scale(name, name) for name in ("embedding_multiplier", "residual_multiplier"))
_AUTO_HEADS = "mamba_d_head=COUNT "
_LFM2_IGNORED = """block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu
    block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init num_heads theta use_pos_enc"""
_TYPES_ALIKE = "layers_block_type=layer_types "

ARCHITECTURES: dict[str, Architecture] = {
    # A state space has no longest sequence.
    "mamba2": family(NO_DENSE + "max_position_embeddings=1048576 position=none",
        ignored=_STARTS + "mixer_rms_eps intermediate_size", layers=rules.all_linear, blocks={LINEAR: _mamba2},
        types="time_step_rank=COUNT", reads="time_step_rank", rules=(Rule(_only_scans), _expand("expand"))),
    "bamba": family(ignored=_STARTS, same_as=_TYPES_ALIKE,
        layers=attending(lambda values, i, _: i in (values["attn_layer_indices"] or ())), blocks={LINEAR: _bamba},
        reads="attn_layer_indices", types=_AUTO_HEADS + "attn_layer_indices=LAYERS", rules=(_expand("mamba_expand"),)),
    "granitemoehybrid": family("experts.norm_topk_prob",
        names=WIDTH
        + """num_local_experts=experts.num_experts num_experts_per_tok=experts.num_experts_per_tok
            shared_intermediate_size=experts.shared_expert_intermediate_size""",
        ignored=_STARTS + "init_method normalization_function", layers=rules.all_linear, blocks={LINEAR: _bamba},
        types=_AUTO_HEADS, may_be_zero="num_local_experts num_experts_per_tok",
        rules=(*_SCALED, scale("logits_multiplier", "logits_scaling", lambda value: 1 / value),
            Rule(_granite, "position_embedding_type num_local_experts num_experts_per_tok attention_multiplier",
                lambda model: {"attention_multiplier": rules.attention_scale_of(model)}), _expand("mamba_expand"))),
    "falcon_h1": family(
        noted=_notes("""attention_in_multiplier attention_out_multiplier key_multiplier mlp_multipliers
            ssm_in_multiplier ssm_multipliers ssm_out_multiplier"""),
        # expansion_factor and mlp_expansion_factor are how its own code derives mamba_d_ssm and intermediate_size.
        ignored=_STARTS + "mamba_norm_before_gate mamba_use_mlp expansion_factor mlp_expansion_factor time_step_rank",
        same_as=_TYPES_ALIKE, layers=rules.all_linear, blocks={LINEAR: _falcon_h1}, reads="mamba_d_ssm",
        types=_AUTO_HEADS + "mamba_d_ssm=COUNT", rules=(_SCALED[0], scale("logits_multiplier", "lm_head_multiplier"))),
    "nemotron_h": family("position=none gated_mlp=false experts.scoring_func=sigmoid experts.e_score_correction_bias",
        defaults="num_hidden_layers=LAYERS hybrid_override_pattern=ME*- rms_norm_eps=1e-5",
        names="mlp_hidden_act=hidden_act num_nextn_predict_layers= moe_latent_size=experts.latent_size",
        only="attention_bias=false mamba_hidden_act=silu mamba_proj_bias=false",
        noted={"num_nextn_predict_layers": "layers of multi-token prediction are left out, as its class does"},
        ignored=_STARTS
        + """expand mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_layers_block_type
            mtp_hybrid_override_pattern rms_norm_eps sliding_window rope_theta time_step_rank""",
        same_as=_TYPES_ALIKE
        + """norm_eps=layer_norm_epsilon attention_head_dim=head_dim mamba_n_groups=n_groups
            mamba_d_conv=conv_kernel mamba_chunk_size=chunk_size mamba_conv_bias=use_conv_bias""",
        layers=_nemotron_layers, blocks={LINEAR: _nemotron_h, "moe": _ALONE, "mlp": _ALONE},
        rules=(Rule(_nemotron, "hybrid_override_pattern moe_shared_expert_intermediate_size", _nemotron_keys),)),
    "qwen3_next": family(**_QWEN | {"constants": _QWEN_EXPERTS}),
    "qwen3_5_text": family(**_QWEN_3_5),
    "qwen3_5_moe_text": family(**_QWEN_3_5 | {"constants": _QWEN_EXPERTS + NO_DENSE + "experts.norm_topk_prob"}),
    "lara_mini": family(NO_DENSE + "qk_norm",
        # Five layers over and over: two with a window, one without.
        layers=lambda values, layers: [(LINEAR, SLIDING, LINEAR, FULL, SLIDING)[i % 5] for i in range(layers)],
        blocks={LINEAR: _delta}, rules=(rules.rope_with_window,)),
    "kimi_linear": family(V3 + "position=none",
        defaults="linear_attn_config.full_attn_layers=null first_k_dense_replace=1",
        only=ROUTED_AS_V3
        + "mla_use_nope moe_router_activation_func=sigmoid use_grouped_topk num_nextn_predict_layers=0",
        ignored=LATENT_IGNORED + "rope_theta linear_attn_config.kda_layers",
        # The published file has a section for the sizes of its linear attention.
        same_as="""linear_attn_config.num_heads=linear_num_heads linear_attn_config.head_dim=linear_head_dim
            linear_attn_config.short_conv_kernel_size=linear_conv_kernel_dim""", layers=_kimi_layers,
        blocks={LINEAR: _kimi}, reads="linear_attn_config.full_attn_layers",
        types="linear_attn_config.full_attn_layers=LAYERS"),
    "lfm2": family("qk_norm", ignored=_LFM2_IGNORED,
        same_as="tie_embedding=tie_word_embeddings block_ff_dim=intermediate_size",
        layers=rules.by(lambda v, i, _: v["full_attn_idxs"] is not None and i not in v["full_attn_idxs"], "conv"),
        blocks={"conv": _short_conv}, reads="full_attn_idxs", types="full_attn_idxs=LAYERS",
        rules=(Rule(_lfm2, "block_auto_adjust_ff_dim block_multiple_of block_ffn_dim_multiplier",
            lambda model: {"block_auto_adjust_ff_dim": False}),)),
    "lfm2_moe": family("qk_norm experts.scoring_func=sigmoid",
        names="""num_dense_layers=experts.first_k_dense_replace use_expert_bias=experts.e_score_correction_bias""",
        ignored=_LFM2_IGNORED, same_as="tie_embedding=tie_word_embeddings", blocks={"conv": _short_conv}),
}  # fmt: skip
