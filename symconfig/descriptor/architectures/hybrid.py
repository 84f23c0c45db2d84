"""Families that mix tokens by state spaces, linear attention or convolutions, in all of their layers or in some.

What their own blocks are is in graph/blocks; here are only their sizes and switches, as each class spells them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from symconfig.descriptor.architectures import blocks, rules
from symconfig.descriptor.architectures.architecture import (
    FULL,
    INDEXED,
    LINEAR,
    OLDER_TYPES,
    SLIDING,
    Architecture,
    Reading,
    Rule,
    family,
    link,
)
from symconfig.descriptor.architectures.blocks import Values
from symconfig.descriptor.architectures.deepseek import (
    BAILING,
    BAILING_IGNORED,
    LATENT_IGNORED,
    ROUTED_AS_V3,
    V3,
    shared_as_routed,
)
from symconfig.descriptor.architectures.rules import NO_DENSE, WIDTH, attending, scale
from symconfig.descriptor.layers import Mlp
from symconfig.descriptor.model import ModelDescriptor

# How a class starts, and how it steps at inference: neither changes a shape or a cost.
STARTS = """time_step_floor time_step_max time_step_min time_step_scale time_step_init_scheme time_step_limit
    rescale_prenorm_residual residual_in_fp32 use_mamba_kernels use_mambapy use_associative_scan num_logits_to_keep
    mamba_dt_min mamba_dt_max mamba_dt_limit mamba_dt_init_floor """
# Positions of a class that states no number of them: a state space has none, RecurrentGemma's attention sees a window.
UNLIMITED = "max_position_embeddings=1048576 "


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
    """Set the heads of a model without attention and MLPs to those of its state space.

    Without heads of their own (Mamba), its channels count as heads, with head_dim 1.
    """
    fields = reader.fields
    sizes = fields["mixers"][0]["sizes"]
    heads = sizes.get("mamba_num_heads", sizes.get("ssm_intermediate_size"))
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    fields |= {"head_dim": sizes.get("mamba_head_dim", 1), "mlp_layers": [False] * fields["num_hidden_layers"]}


def _jamba(reader: Reading) -> None:
    values, fields = reader.values, reader.fields
    if values["num_experts"] <= 1:
        return rules.without_experts(fields)
    period, offset = values["expert_layer_period"], values["expert_layer_offset"]
    fields["experts.layers"] = [i % period == offset for i in range(fields["num_hidden_layers"])]


def _jamba_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return period and offset of layers with attention and with experts; num_experts 1 without experts."""
    keys = _period_and_offset("attn_layer", [kind.attends for kind in model.kind_of_layer])
    return keys | (_period_and_offset("expert_layer", model.moe_layers) if model.experts else {"num_experts": 1})


def _period_and_offset(name: str, layers: Sequence[bool]) -> dict[str, int]:
    which = [index for index, here in enumerate(layers) if here] or [len(layers)]
    period = which[1] - which[0] if len(which) > 1 else len(layers) + 1
    return {f"{name}_period": period, f"{name}_offset": which[0]}


def _granite(reader: Reading) -> None:
    """Set Granite 4's attention scale, and its MLP: the shared expert where there are experts, else a dense one.

    Position is "none" unless position_embedding_type is rope.
    """
    values, fields = reader.values, reader.fields
    fields["query_pre_attn_scalar"] = values["attention_multiplier"] ** -2
    fields["intermediate_size"] = 0
    if not values["num_local_experts"]:
        fields["intermediate_size"] = values["shared_intermediate_size"]
        rules.without_experts(fields)
    if values["position_embedding_type"] != "rope":
        fields["position"] = "none"


def _bailing(reader: Reading) -> None:
    """Make kda_lower_bound a particular if kda_safe_gate is set."""
    if reader.values["kda_safe_gate"]:
        reader.fields["particulars"] = [{"name": "kda_lower_bound", "value": reader.values["kda_lower_bound"]}]


def _bailing_keys(model: ModelDescriptor) -> dict[str, Any]:
    bounds = {one.name: one.value for one in model.particulars if one.name == "kda_lower_bound"}
    return {"kda_safe_gate": bool(bounds), **bounds}


def _nemotron(reader: Reading) -> None:
    """Set which layers are an MLP or experts alone, and the shared expert's width.

    By layer_types, else hybrid_override_pattern. Without a layer of experts their fields are deleted.
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
    """Return each layer's type, and the shared expert's width if it is not 0.

    A layer is attention, experts, an MLP or a state space alone.
    """
    alone = {Mlp.MOE: "moe", Mlp.DENSE: "mlp"}
    types = [FULL if kind.attends else alone.get(kind.mlp, LINEAR) for kind in model.kind_of_layer]
    width = model.experts.shared_expert_intermediate_size if model.experts else None
    return {"layer_types": types, **({"moe_shared_expert_intermediate_size": width} if width else {})}


def _lfm3(reader: Reading) -> None:
    if reader.fields.get("partial_rotary_factor", 1.0) != 1.0 and reader.fields.get("sliding_window"):
        reader.notes.append("layers with a window turn whole heads; all are taken to turn the part that the others "
                            "turn")  # fmt: skip


def _lfm2(reader: Reading) -> None:
    """Set intermediate_size to two thirds, times block_ffn_dim_multiplier, rounded up to block_multiple_of.

    Unchanged if block_auto_adjust_ff_dim is false; not rounded without a multiplier.
    """
    values = reader.values
    if not values["block_auto_adjust_ff_dim"]:
        return
    width = int(2 * reader.fields["intermediate_size"] / 3)
    if values["block_ffn_dim_multiplier"] is not None:
        multiple = values["block_multiple_of"]
        width = multiple * ceil(int(values["block_ffn_dim_multiplier"] * width) / multiple)
    reader.fields["intermediate_size"] = width


def _olmo(reader: Reading) -> None:
    reader.notes.append("layers with attention have their norms behind attention and MLP; all are taken to have them "
                        "before")  # fmt: skip


def _expand(key: str) -> Rule:
    """Return a rule that writes `key` (Mamba-2's inner width over hidden_size), and reads nothing.

    The key is left out unless it is a whole number above 0.
    """

    def write(model: ModelDescriptor) -> dict[str, Any]:
        sizes = [mixer.sizes for mixer in model.mixers if mixer.block == "mamba2"]
        factors = [one["mamba_num_heads"] * one["mamba_head_dim"] / model.hidden_size for one in sizes]
        return {key: int(factors[0])} if factors and factors[0] and factors[0].is_integer() else {}

    return Rule(lambda reader: None, key, write)


_QWEN: dict[str, Any] = {
    "constants": "qk_norm norm_zero_centered attention_gate=channel ",
    "defaults": "full_attention_interval=4",
    "only": "attn_output_gate output_gate_type=swish|silu ",
    "noted": {"mtp_num_hidden_layers": "multi-token-prediction layers (mtp_num_hidden_layers) are left out"},
    "ignored": "mamba_ssm_dtype mtp_use_dedicated_embeddings ",
    "layers": attending(lambda values, i, _: (i + 1) % values["full_attention_interval"] == 0),
    "blocks": {LINEAR: blocks.delta},
    "reads": "full_attention_interval",
}
# Its classes have one MLP for all layers, and its files still say that there is no other.
_QWEN_3_5 = _QWEN | {"only": _QWEN["only"] + "mlp_only_layers=[]|null"}
_QWEN_EXPERTS = _QWEN["constants"] + "experts.shared_expert_gate "
_SCANS: dict[str, Any] = {
    "constants": NO_DENSE + UNLIMITED + "position=none",
    "ignored": STARTS + "mixer_rms_eps intermediate_size",
    "kinds": "time_step_rank=COUNT",
    "layers": rules.all_linear,
    "rules": (Rule(_only_scans),),
}
_SCALED = tuple(scale(name, name) for name in ("embedding_multiplier", "residual_multiplier"))
_AUTO_HEADS = "mamba_d_head=COUNT "
_LFM2_IGNORED = """block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu
    block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init num_heads theta use_pos_enc"""
TYPES_ALIKE = "layers_block_type=layer_types "

ARCHITECTURES: dict[str, Architecture] = {
    "mamba": family(**_SCANS, blocks={LINEAR: blocks.mamba}),
    "falcon_mamba": family(**_SCANS, blocks={LINEAR: blocks.mamba}),
    "mamba2": family(**_SCANS | {"rules": (*_SCANS["rules"], _expand("expand"))}, blocks={LINEAR: blocks.mamba2},
        reads="time_step_rank"),
    "jamba": family("position=none experts.norm_topk_prob=false",
        names="intermediate_size=intermediate_size,experts.moe_intermediate_size", only="mamba_inner_layernorms",
        ignored=STARTS,
        layers=attending(lambda values, i, _: i % values["attn_layer_period"] == values["attn_layer_offset"]),
        blocks={LINEAR: blocks.jamba}, reads="attn_layer_period attn_layer_offset", kinds="mamba_dt_rank=COUNT",
        rules=(Rule(_jamba, "expert_layer_period expert_layer_offset", _jamba_keys),)),
    "bamba": family(ignored=STARTS, same_as=TYPES_ALIKE,
        layers=attending(lambda values, i, _: i in (values["attn_layer_indices"] or ())), blocks={LINEAR: blocks.bamba},
        reads="attn_layer_indices", kinds=_AUTO_HEADS + "attn_layer_indices=LAYERS", rules=(_expand("mamba_expand"),)),
    "granitemoehybrid": family("experts.norm_topk_prob",
        names=WIDTH
        + """num_local_experts=experts.num_experts num_experts_per_tok=experts.num_experts_per_tok
            shared_intermediate_size=experts.shared_expert_intermediate_size""",
        ignored=STARTS + "init_method normalization_function", layers=rules.all_linear, blocks={LINEAR: blocks.bamba},
        kinds=_AUTO_HEADS, may_be_zero="num_local_experts num_experts_per_tok",
        rules=(
            *_SCALED,
            scale("logits_multiplier", "logits_scaling", lambda value: 1 / value),
            Rule(
                _granite,
                "position_embedding_type num_local_experts num_experts_per_tok attention_multiplier",
                lambda model: {"attention_multiplier": rules.attention_scale_of(model)},
            ),
            _expand("mamba_expand"),
        )),
    "falcon_h1": family(
        noted=_notes("""attention_in_multiplier attention_out_multiplier key_multiplier mlp_multipliers
            ssm_in_multiplier ssm_multipliers ssm_out_multiplier"""),
        # expansion_factor and mlp_expansion_factor are how its own code derives mamba_d_ssm and intermediate_size.
        ignored=STARTS + "mamba_norm_before_gate mamba_use_mlp expansion_factor mlp_expansion_factor time_step_rank",
        same_as=TYPES_ALIKE, layers=rules.all_linear, blocks={LINEAR: blocks.falcon_h1}, reads="mamba_d_ssm",
        kinds=_AUTO_HEADS + "mamba_d_ssm=COUNT", rules=(_SCALED[0], scale("logits_multiplier", "lm_head_multiplier"))),
    "nemotron_h": family("position=none gated_mlp=false experts.scoring_func=sigmoid experts.e_score_correction_bias",
        defaults="num_hidden_layers=LAYERS hybrid_override_pattern=ME*- rms_norm_eps=1e-5",
        names="mlp_hidden_act=hidden_act num_nextn_predict_layers= moe_latent_size=experts.latent_size",
        only="attention_bias=false mamba_hidden_act=silu mamba_proj_bias=false",
        noted={"num_nextn_predict_layers": "layers of multi-token prediction are left out, as its class does"},
        ignored=STARTS
        + """expand mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_layers_block_type
            mtp_hybrid_override_pattern rms_norm_eps sliding_window rope_theta time_step_rank""",
        same_as=TYPES_ALIKE
        + """norm_eps=layer_norm_epsilon attention_head_dim=head_dim mamba_n_groups=n_groups
            mamba_d_conv=conv_kernel mamba_chunk_size=chunk_size mamba_conv_bias=use_conv_bias""",
        layers=_nemotron_layers, blocks={LINEAR: blocks.nemotron_h, "moe": blocks.alone, "mlp": blocks.alone},
        rules=(Rule(_nemotron, "hybrid_override_pattern moe_shared_expert_intermediate_size", _nemotron_keys),)),
    "qwen3_next": family(**_QWEN | {"constants": _QWEN_EXPERTS}),
    "qwen3_5_text": family(**_QWEN_3_5),
    "qwen3_5_moe_text": family(**_QWEN_3_5 | {"constants": _QWEN_EXPERTS + NO_DENSE + "experts.norm_topk_prob"}),
    "qwen4_exp_text": family(
        **_QWEN
        | {
            "constants": _QWEN_EXPERTS + NO_DENSE + "norm_before_sublayer=false final_norm=false streams.mixing=gated",
            "names": "hc_count=streams.count hc_lowrank=streams.rank",
            "only": "ple_layer_ids=null|[] indexer_kv_heads=1 output_gate_type=null|silu",
            # Embeddings of n-grams, which no layer has where ple_layer_ids lists none.
            "ignored": _QWEN["ignored"]
            + """heads_per_ngram make_ngram_vocab_size_divisible_by ngram_size ngram_vocab_size_base seed
                ple_conv_kernel_size ple_embed_dim split_ngram_parts number_of_conv_states""",
            "blocks": {LINEAR: blocks.delta, INDEXED: blocks.pooled, FULL: blocks.pooled},
            "kinds": " ".join(f"{key}=COUNT" for key in blocks.pooled.keys),
            "rules": (Rule(lambda reader: None, "", lambda model: {"indexer_kv_heads": 1}),),
        }),
    "lara_mini": family(NO_DENSE + "qk_norm",
        # Five layers over and over: two with a window, one without.
        layers=lambda values, layers: [(LINEAR, SLIDING, LINEAR, FULL, SLIDING)[i % 5] for i in range(layers)],
        blocks={LINEAR: blocks.delta}, rules=(rules.rope_with_window,)),
    "olmo_hybrid": family("qk_norm qk_norm_of=all_heads",
        ignored="""linear_a_log_max linear_a_log_min linear_dt_init_floor linear_dt_max linear_dt_min
            linear_allow_neg_eigval""",
        layers=attending(lambda values, i, layers: i % 4 == 3 or (layers < 4 and i == layers - 1)),
        blocks={LINEAR: blocks.olmo_hybrid}, kinds=" ".join(f"{key}=COUNT" for key in blocks.delta.keys[:-1]),
        rules=(Rule(_olmo),)),
    "kimi_linear": family(V3 + "position=none",
        defaults="linear_attn_config.full_attn_layers=null first_k_dense_replace=1",
        only=ROUTED_AS_V3
        + "mla_use_nope moe_router_activation_func=sigmoid use_grouped_topk num_nextn_predict_layers=0",
        ignored=LATENT_IGNORED + "rope_theta linear_attn_config.kda_layers",
        # The published file has a section for the sizes of its linear attention.
        same_as="""linear_attn_config.num_heads=linear_num_heads linear_attn_config.head_dim=linear_head_dim
            linear_attn_config.short_conv_kernel_size=linear_conv_kernel_dim""", layers=_kimi_layers,
        blocks={LINEAR: blocks.kimi}, reads="linear_attn_config.full_attn_layers",
        kinds="linear_attn_config.full_attn_layers=LAYERS"),
    "bailing_hybrid": family(V3 + "attention_gate=head",
        defaults="head_dim=128 linear_num_heads=null linear_head_dim=null linear_conv_kernel_dim=null",
        # Ling 2.5 and 2.6, of the same model_type, have lightning attention: linear_silu and group_norm_size say so.
        # A fraction of rope is one of head_dim, which heads of latent attention have a part for.
        only=ROUTED_AS_V3
        + BAILING
        + """rope_interleave linear_silu no_kda_lora group_norm_size=1 score_function=sigmoid use_qk_norm
            gated_attention_proj_granularity_type=head_wise moe_router_enable_expert_bias
            partial_rotary_factor=1.0|0.5 num_kv_heads_for_linear_attn=0""", ignored="qk_head_dim " + BAILING_IGNORED,
        same_as="num_mtp_layers=num_nextn_predict_layers",
        layers=attending(lambda values, i, _: (i + 1) % values["layer_group_size"] == 0),
        blocks={LINEAR: blocks.bailing},
        kinds="linear_num_heads=COUNT linear_head_dim=COUNT linear_conv_kernel_dim=COUNT kda_lower_bound=NUMBER",
        reads="layer_group_size",
        rules=(Rule(_bailing, "kda_safe_gate kda_lower_bound", _bailing_keys), shared_as_routed)),
    "lfm2": family("qk_norm", ignored=_LFM2_IGNORED,
        same_as="tie_embedding=tie_word_embeddings block_ff_dim=intermediate_size",
        layers=rules.by(lambda v, i, _: v["full_attn_idxs"] is not None and i not in v["full_attn_idxs"], "conv"),
        blocks={"conv": blocks.short_conv}, reads="full_attn_idxs", kinds="full_attn_idxs=LAYERS",
        rules=(
            Rule(
                _lfm2,
                "block_auto_adjust_ff_dim block_multiple_of block_ffn_dim_multiplier",
                lambda model: {"block_auto_adjust_ff_dim": False},
            ),
        )),
    "lfm3": family("qk_norm", names="use_sandwich_norm=norm_after_sublayer", only="attention_bias=false",
        layers=lambda values, layers: [{0: SLIDING, 2: FULL}.get(i % 4 if i else 1, "conv") for i in range(layers)],
        blocks={"conv": blocks.short_conv},
        rules=(
            link(
                "use_attention_gate",
                "attention_gate",
                lambda gated, reader: "head" if gated else None,
                lambda model: model.attention_gate == "head",
            ),
            Rule(_lfm3),
        )),
    "lfm2_moe": family("qk_norm experts.scoring_func=sigmoid",
        names="""num_dense_layers=experts.first_k_dense_replace use_expert_bias=experts.e_score_correction_bias""",
        ignored=_LFM2_IGNORED, same_as="tie_embedding=tie_word_embeddings", blocks={"conv": blocks.short_conv}),
    "minimax": family(NO_DENSE + "experts.norm_topk_prob", names=WIDTH,
        noted=_notes("""full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor
            mlp_alpha_factor mlp_beta_factor"""), layers=attending(lambda values, i, _: i % 2 == 0),
        blocks={LINEAR: blocks.lightning}),
    "recurrent_gemma": family(UNLIMITED + "attention_out_bias mlp_bias norm_zero_centered scale_embeddings",
        names="attention_bias=qkv_bias logits_soft_cap=final_logit_softcapping",
        ignored="w_init_variance_scale final_w_init_variance_scale",
        same_as=TYPES_ALIKE + "attention_window_size=sliding_window",
        # By the file's pattern, over and over.
        layers=rules.by(lambda v, i, _: v["block_types"][i % len(v["block_types"])] == "recurrent", LINEAR, SLIDING),
        blocks={LINEAR: blocks.rg_lru}, reads="block_types", kinds="lru_width=COUNT block_types=WORDS",
        rules=(rules.both_halves,)),
}  # fmt: skip
