"""Families that mix tokens by state spaces, linear attention or convolutions, in all of their layers or in some.

What their own blocks are is in graph/blocks; here are only their sizes and switches, as each class spells them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from symconfig.descriptor.architectures.architecture import (
    FULL,
    LINEAR,
    OLDER_TYPES,
    SLIDING,
    Architecture,
    Derived,
    Kind,
    Reading,
    Values,
)
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, V3
from symconfig.descriptor.layers import NO_MIXER, Mlp

if TYPE_CHECKING:
    from symconfig.descriptor.model import ModelDescriptor

Block = Callable[[Values], Mapping[str, Any]]
# How a class starts, and how it steps at inference: neither changes a shape or a cost.
STARTS = (
    "time_step_floor", "time_step_max", "time_step_min", "time_step_scale", "time_step_init_scheme", "time_step_limit",
    "rescale_prenorm_residual", "residual_in_fp32", "use_mamba_kernels", "use_mambapy", "use_associative_scan",
    "num_logits_to_keep", "mamba_dt_min", "mamba_dt_max", "mamba_dt_limit", "mamba_dt_init_floor",
)  # fmt: skip
# Positions of a class that states no number of them: a state space has none, RecurrentGemma's attention sees a window.
UNLIMITED = 1_048_576
SCALES = "is a factor of activations that changes no shape and no cost, and is left out"


def _switches(values: Values, **named: str) -> list[str]:
    """Names of a block's switches whose keys are set."""
    return [name for name, key in named.items() if values.get(key)]


def _rank(values: Values, key: str) -> int:
    """The width of the steps' projection; auto: a sixteenth of the stream."""
    given = values[key]
    return ceil(values["hidden_size"] / 16) if given == "auto" else int(given)


def _mamba(values: Values) -> dict[str, Any]:
    """Mamba and FalconMamba."""
    sizes = {
        "ssm_intermediate_size": int(values["expand"] * values["hidden_size"]),
        "ssm_state_size": values["state_size"],
        "time_step_rank": _rank(values, "time_step_rank"),
        "conv_kernel": values["conv_kernel"],
    }
    switches = _switches(values, conv_bias="use_conv_bias", proj_bias="use_bias")
    return {"block": "mamba", "sizes": sizes, "switches": switches}


def _jamba(values: Values) -> dict[str, Any]:
    sizes = {
        "ssm_intermediate_size": values["mamba_expand"] * values["hidden_size"],
        "ssm_state_size": values["mamba_d_state"],
        "time_step_rank": _rank(values, "mamba_dt_rank"),
        "conv_kernel": values["mamba_d_conv"],
    }
    switches = [*_switches(values, conv_bias="mamba_conv_bias", proj_bias="mamba_proj_bias"), "dt_b_c_norms"]
    return {"block": "mamba", "sizes": sizes, "switches": switches}


def _mamba2(values: Values) -> dict[str, Any]:
    """Mamba-2 itself."""
    sizes = {
        "mamba_num_heads": values["num_heads"],
        "mamba_head_dim": values["head_dim"],
        "n_groups": values["n_groups"],
        "ssm_state_size": values["state_size"],
        "conv_kernel": values["conv_kernel"],
        "chunk_size": values["chunk_size"],
    }
    switches = _switches(values, conv_bias="use_conv_bias", proj_bias="use_bias", out_proj_bias="use_bias")
    return {"block": "mamba2", "sizes": sizes, "switches": [*switches, "gated_norm"]}


def _bamba(values: Values, out_bias: str = "mamba_proj_bias", norm: bool = True) -> dict[str, Any]:
    """Bamba, Granite 4 and, with keys of its own, Falcon-H1."""
    inner = values.get("mamba_d_ssm") or int(values["mamba_expand"] * values["hidden_size"])
    heads, width = values["mamba_n_heads"], values["mamba_d_head"]
    sizes = {
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads if width == "auto" else width,
        "n_groups": values["mamba_n_groups"],
        "ssm_state_size": values["mamba_d_state"],
        "conv_kernel": values["mamba_d_conv"],
        "chunk_size": values["mamba_chunk_size"],
    }
    switches = _switches(values, conv_bias="mamba_conv_bias", proj_bias="mamba_proj_bias", out_proj_bias=out_bias)
    return {"block": "mamba2", "sizes": sizes, "switches": [*switches, *(["gated_norm"] if norm else [])]}


def _falcon_h1(values: Values) -> dict[str, Any]:
    block = _bamba(values, "projectors_bias", bool(values["mamba_rms_norm"]))
    return {**block, "beside_attention": True}


def _nemotron_h(values: Values) -> dict[str, Any]:
    names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "chunk_size")
    switches = _switches(values, conv_bias="use_conv_bias", proj_bias="use_bias", out_proj_bias="use_bias")
    return {
        "block": "mamba2",
        "sizes": {name: values[name] for name in names},
        "switches": [*switches, "gated_norm"],
    }


DELTA = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip


def _delta(values: Values) -> dict[str, Any]:
    return {"block": "gated_delta_net", "sizes": {name: values[name] for name in DELTA}}


def _olmo_hybrid(values: Values) -> dict[str, Any]:
    """Sizes that are not given follow from attention's (OlmoHybridConfig)."""
    keys = values["linear_num_key_heads"] or values["num_attention_heads"]
    width = values["linear_key_head_dim"] or int(0.75 * values["hidden_size"] / keys)
    given = dict(values) | {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values["linear_num_value_heads"] or values["num_attention_heads"],
        "linear_key_head_dim": width,
        "linear_value_head_dim": values["linear_value_head_dim"] or 2 * width,
    }
    return _delta(given)


def _kimi(values: Values) -> dict[str, Any]:
    """Published files have a section for these sizes."""
    section = values["linear_attn_config"] or {}
    return {
        "block": "kimi_delta_attention",
        "sizes": {
            "linear_num_heads": section.get("num_heads", values["linear_num_heads"]),
            "linear_head_dim": section.get("head_dim", values["linear_head_dim"]),
            "linear_conv_kernel_dim": section.get("short_conv_kernel_size", values["linear_conv_kernel_dim"]),
        },
    }


def _short_conv(values: Values) -> dict[str, Any]:
    switches = _switches(values, conv_bias="conv_bias")
    return {"block": "short_conv", "sizes": {"conv_L_cache": values["conv_L_cache"]}, "switches": switches}


def _alone(values: Values) -> dict[str, Any]:
    return {"block": NO_MIXER}


def _all_linear(values: Values, layers: int) -> list[str]:
    return [LINEAR] * layers


def _by(attends: Callable[[Values, int, int], bool]) -> Callable[[Values, int], Sequence[str]]:
    """Make the rule of layers that attend, by their place and how many there are; all others have the block."""
    return lambda values, layers: [FULL if attends(values, i, layers) else LINEAR for i in range(layers)]


def _kimi_layers(values: Values, layers: int) -> list[str]:
    listed = (values["linear_attn_config"] or {}).get("full_attn_layers")
    attends = (
        {i - 1 for i in listed if type(i) is int}
        if isinstance(listed, list)
        else {i for i in range(1, layers) if i % 4 == 0}
    )
    return [FULL if i in attends else LINEAR for i in range(layers)]


NEMOTRON_TYPES = {"M": LINEAR, "*": FULL, "E": "moe", "-": "mlp"}


def _nemotron_layers(values: Values, layers: int) -> list[str]:
    """One letter a layer."""
    return [NEMOTRON_TYPES.get(letter, letter) for letter in values["hybrid_override_pattern"]]


def _lfm2_layers(values: Values, layers: int) -> list[str]:
    attending = values["full_attn_idxs"]
    return [FULL if attending is None or i in attending else "conv" for i in range(layers)]


def _rg_lru(values: Values) -> dict[str, Any]:
    width = values["lru_width"] or values["hidden_size"]
    return {"block": "rg_lru", "sizes": {"lru_width": width, "conv1d_width": values["conv1d_width"]}}


def _recurrent_gemma_layers(values: Values, layers: int) -> list[str]:
    """The file's pattern, over and over."""
    pattern = values["block_types"]
    return [LINEAR if pattern[i % len(pattern)] == "recurrent" else SLIDING for i in range(layers)]


def _only_scans(reader: Reading) -> None:
    """A model of nothing but scans: its heads, or channels, are taken as the heads of the attention that it has not."""
    fields = reader.fields
    (mixer,) = fields["mixers"]
    sizes, number = mixer["sizes"], fields["num_hidden_layers"]
    heads = sizes.get("mamba_num_heads", sizes.get("ssm_intermediate_size"))
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    fields |= {"head_dim": sizes.get("mamba_head_dim", 1), "mlp_layers": [False] * number}


def _without_experts(reader: Reading) -> None:
    for name in [name for name in reader.fields if name.startswith("experts.")]:
        del reader.fields[name]


def _jamba_rule(reader: Reading) -> None:
    values, fields = reader.values, reader.fields
    if values["num_experts"] <= 1:
        return _without_experts(reader)
    period, offset = values["expert_layer_period"], values["expert_layer_offset"]
    fields["experts.layers"] = [i % period == offset for i in range(fields["num_hidden_layers"])]
    return None


def _factors(reader: Reading) -> None:
    """Factors of one are none."""
    for name in ("embedding_multiplier", "residual_multiplier"):
        if reader.fields.get(name) == 1.0:
            del reader.fields[name]


def _granite_rule(reader: Reading) -> None:
    """Each layer has an MLP, which is a shared expert where there are others. Scores have a factor of their own."""
    values, fields = reader.values, reader.fields
    _factors(reader)
    if values["logits_scaling"] != 1.0:
        fields["logits_multiplier"] = 1.0 / values["logits_scaling"]
    fields["query_pre_attn_scalar"] = values["attention_multiplier"] ** -2
    fields["intermediate_size"] = 0
    if not values["num_local_experts"]:
        fields["intermediate_size"] = values["shared_intermediate_size"]
        _without_experts(reader)
    if values["position_embedding_type"] != "rope":
        fields["position"] = "none"


def _falcon_rule(reader: Reading) -> None:
    _factors(reader)
    if reader.values["lm_head_multiplier"] != 1.0:
        reader.fields["logits_multiplier"] = reader.values["lm_head_multiplier"]


def _nemotron_rule(reader: Reading) -> None:
    """A layer has one of a scan, attention, an MLP or experts."""
    values, fields = reader.values, reader.fields
    listed = [
        OLDER_TYPES.get(kind, kind)
        for kind in values["layer_types"] or _nemotron_layers(values, fields["num_hidden_layers"])
    ]
    fields["mlp_layers"] = [kind in ("moe", "mlp") for kind in listed]
    moe = [kind == "moe" for kind in listed]
    if not any(moe):
        return _without_experts(reader)
    fields["experts.layers"] = moe
    fields["experts.shared_expert_intermediate_size"] = values["moe_shared_expert_intermediate_size"]
    return None


def _lfm2_rule(reader: Reading) -> None:
    """The MLP has two thirds of the stated width, times a factor, in whole multiples."""
    values = reader.values
    if not values["block_auto_adjust_ff_dim"]:
        return
    width = int(2 * reader.fields["intermediate_size"] / 3)
    if values["block_ffn_dim_multiplier"] is not None:
        multiple = values["block_multiple_of"]
        width = multiple * ceil(int(values["block_ffn_dim_multiplier"] * width) / multiple)
    reader.fields["intermediate_size"] = width


def _olmo_rule(reader: Reading) -> None:
    reader.note("layers with attention have their norms behind attention and MLP; all are taken to have them before")


def _nemotron_keys(model: ModelDescriptor) -> dict[str, Any]:
    alone = {Mlp.MOE: "moe", Mlp.DENSE: "mlp"}
    kinds = model.kind_of_layer
    return {"layer_types": [FULL if k.attends else alone.get(k.mlp, LINEAR) for k in kinds]}


def _expand(key: str) -> Callable[[ModelDescriptor], dict[str, Any]]:
    """Make the inverse of a class that wants its heads as wide together as the stream, times a factor."""

    def writes(model: ModelDescriptor) -> dict[str, Any]:
        blocks = [mixer.sizes for mixer in model.mixers if mixer.block == "mamba2"]
        factors = [sizes["mamba_num_heads"] * sizes["mamba_head_dim"] / model.hidden_size for sizes in blocks]
        factor = factors[0] if factors else 0.0
        return {key: int(factor)} if factor and factor.is_integer() else {}

    return writes


QWEN: dict[str, Any] = {
    "constants": {"qk_norm": True, "norm_zero_centered": True, "attention_gate": "channel"},
    "defaults": {"full_attention_interval": 4},
    "only": {"attn_output_gate": (True,)},
    "noted": {"mtp_num_hidden_layers": "multi-token-prediction layers (mtp_num_hidden_layers) are left out"},
    "ignored": ("mamba_ssm_dtype", "mtp_use_dedicated_embeddings"),
    "layers": _by(lambda values, i, layers: (i + 1) % values["full_attention_interval"] == 0),
    "blocks": {LINEAR: _delta},
    "reads": (*DELTA, "full_attention_interval"),
}
QWEN_EXPERTS = QWEN["constants"] | {"experts.shared_expert_gate": True}
SCANS: dict[str, Any] = {
    "constants": {"position": "none", "intermediate_size": 0, "max_position_embeddings": UNLIMITED},
    "ignored": (*STARTS, "mixer_rms_eps", "intermediate_size"),
    "kinds": {"time_step_rank": Kind.COUNT},
    "layers": _all_linear,
    "rule": _only_scans,
}
BAMBA = (
    "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand",
    "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias",
)  # fmt: skip
AUTO_HEADS = {"mamba_d_head": Kind.COUNT}
MAMBA = ("conv_kernel", "expand", "state_size", "time_step_rank", "use_bias", "use_conv_bias")
MAMBA2 = ("chunk_size", "conv_kernel", "expand", "head_dim", "n_groups", "num_heads", "state_size", "use_bias")
LFM2_IGNORED = (
    "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
    "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc",
)  # fmt: skip

TYPES_ALIKE = {"layers_block_type": "layer_types"}

ARCHITECTURES: dict[str, Architecture] = {
    "mamba": Architecture(**SCANS, blocks={LINEAR: _mamba}, reads=MAMBA),
    "falcon_mamba": Architecture(**SCANS, blocks={LINEAR: _mamba}, reads=MAMBA),
    "mamba2": Architecture(
        **SCANS,
        blocks={LINEAR: _mamba2},
        reads=(*MAMBA2, "use_conv_bias", "time_step_rank"),
        writes=_expand("expand"),
    ),
    "jamba": Architecture(
        constants={"position": "none", "experts.norm_topk_prob": False},
        names={"intermediate_size": ("intermediate_size", "experts.moe_intermediate_size")},
        ignored=STARTS,
        layers=_by(lambda values, i, layers: i % values["attn_layer_period"] == values["attn_layer_offset"]),
        blocks={LINEAR: _jamba},
        reads=("attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset", "mamba_d_state",
               "mamba_d_conv", "mamba_expand", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias"),
        kinds={"mamba_dt_rank": Kind.COUNT},
        rule=_jamba_rule,
    ),
    "bamba": Architecture(
        ignored=(*STARTS, "z_loss_coefficient"),
        same_as=TYPES_ALIKE,
        layers=_by(lambda values, i, layers: i in (values["attn_layer_indices"] or ())),
        blocks={LINEAR: _bamba},
        reads=(*BAMBA, "attn_layer_indices"),
        kinds={**AUTO_HEADS, "attn_layer_indices": Kind.LAYERS},
        writes=_expand("mamba_expand"),
    ),
    "granitemoehybrid": Architecture(
        constants={"experts.norm_topk_prob": True},
        names={"intermediate_size": ("experts.moe_intermediate_size",),
               "num_local_experts": ("experts.num_experts",), "num_experts_per_tok": ("experts.num_experts_per_tok",),
               "shared_intermediate_size": ("experts.shared_expert_intermediate_size",)},
        ignored=(*STARTS, "init_method", "normalization_function"),
        layers=_all_linear,
        blocks={LINEAR: _bamba},
        reads=(*BAMBA, "logits_scaling", "attention_multiplier", "position_embedding_type", "num_local_experts",
               "num_experts_per_tok"),
        kinds=AUTO_HEADS,
        may_be_zero=("num_local_experts", "num_experts_per_tok"),
        rule=_granite_rule,
        writes=_expand("mamba_expand"),
    ),
    "falcon_h1": Architecture(
        noted={name: f"{name} {SCALES}" for name in (
            "attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "mlp_multipliers",
            "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier")},
        ignored=(*STARTS, "mamba_norm_before_gate", "mamba_use_mlp"),
        same_as=TYPES_ALIKE,
        layers=_all_linear,
        blocks={LINEAR: _falcon_h1},
        reads=(*BAMBA, "mamba_d_ssm", "mamba_rms_norm", "projectors_bias", "lm_head_multiplier"),
        kinds={**AUTO_HEADS, "mamba_d_ssm": Kind.COUNT},
        rule=_falcon_rule,
    ),
    "nemotron_h": Architecture(
        constants={"position": "none", "gated_mlp": False, "experts.scoring_func": "sigmoid",
                   "experts.e_score_correction_bias": True},
        defaults={"num_hidden_layers": Derived.LAYERS, "hybrid_override_pattern": "ME*-", "rms_norm_eps": 1e-5},
        names={"mlp_hidden_act": ("hidden_act",), "rms_norm_eps": ()},
        only={"attention_bias": (False,), "mamba_hidden_act": ("silu",), "num_nextn_predict_layers": (0,),
              "mamba_proj_bias": (False,), "moe_latent_size": (None,)},
        ignored=(*STARTS, "expand", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "mtp_layers_block_type",
                 "rms_norm_eps", "sliding_window"),
        same_as={**TYPES_ALIKE, "mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel",
                 "mamba_chunk_size": "chunk_size", "mamba_conv_bias": "use_conv_bias"},
        layers=_nemotron_layers,
        blocks={LINEAR: _nemotron_h, "moe": _alone, "mlp": _alone},
        reads=("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "chunk_size",
               "use_bias", "use_conv_bias", "hybrid_override_pattern", "moe_shared_expert_intermediate_size"),
        rule=_nemotron_rule,
        writes=_nemotron_keys,
    ),
    "qwen3_next": Architecture(**QWEN | {"constants": QWEN_EXPERTS}),
    "qwen3_5_text": Architecture(**QWEN),
    "qwen3_5_moe_text": Architecture(
        **QWEN | {"constants": QWEN_EXPERTS | {"intermediate_size": 0, "experts.norm_topk_prob": True}}
    ),
    "olmo_hybrid": Architecture(
        constants={"qk_norm": True, "qk_norm_of": "all_heads"},
        ignored=("linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min",
                 "linear_allow_neg_eigval"),
        layers=_by(lambda values, i, layers: i % 4 == 3 or (layers < 4 and i == layers - 1)),
        blocks={LINEAR: _olmo_hybrid},
        reads=DELTA,
        kinds=dict.fromkeys(DELTA[:-1], Kind.COUNT),
        rule=_olmo_rule,
    ),
    "kimi_linear": Architecture(
        constants={**V3, "position": "none"},
        defaults={"linear_attn_config": None, "first_k_dense_replace": 1},
        only={"mla_use_nope": (True,)},
        ignored=LATENT_IGNORED,
        layers=_kimi_layers,
        blocks={LINEAR: _kimi},
        kinds={"linear_attn_config": Kind.SECTION},
        reads=("linear_attn_config", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"),
    ),
    "lfm2": Architecture(
        constants={"qk_norm": True},
        ignored=LFM2_IGNORED,
        same_as={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
        layers=_lfm2_layers,
        blocks={"conv": _short_conv},
        reads=("conv_L_cache", "conv_bias", "full_attn_idxs", "block_auto_adjust_ff_dim", "block_multiple_of",
               "block_ffn_dim_multiplier"),
        kinds={"full_attn_idxs": Kind.LAYERS},
        rule=_lfm2_rule,
    ),
    "lfm2_moe": Architecture(
        constants={"qk_norm": True, "experts.scoring_func": "sigmoid"},
        names={"num_dense_layers": ("experts.first_k_dense_replace",),
               "use_expert_bias": ("experts.e_score_correction_bias",)},
        ignored=LFM2_IGNORED,
        same_as={"tie_embedding": "tie_word_embeddings"},
        blocks={"conv": _short_conv},
        reads=("conv_L_cache", "conv_bias"),
    ),
    "minimax": Architecture(
        constants={"intermediate_size": 0, "experts.norm_topk_prob": True},
        names={"intermediate_size": ("experts.moe_intermediate_size",)},
        noted={name: f"{name} {SCALES}" for name in (
            "full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor",
            "mlp_alpha_factor", "mlp_beta_factor")},
        layers=_by(lambda values, i, layers: (i + 1) % 2 == 1),
        blocks={LINEAR: lambda values: {"block": "lightning_attention", "sizes": {"block_size": values["block_size"]}}},
        reads=("block_size",),
    ),
    "recurrent_gemma": Architecture(
        constants={"attention_out_bias": True, "mlp_bias": True, "norm_zero_centered": True, "scale_embeddings": True,
                   "max_position_embeddings": UNLIMITED},
        names={"attention_bias": ("qkv_bias",), "logits_soft_cap": ("final_logit_softcapping",)},
        ignored=("w_init_variance_scale", "final_w_init_variance_scale"),
        same_as={**TYPES_ALIKE, "attention_window_size": "sliding_window"},
        layers=_recurrent_gemma_layers,
        blocks={LINEAR: _rg_lru},
        reads=("block_types", "conv1d_width", "lru_width"),
        kinds={"lru_width": Kind.COUNT, "block_types": Kind.WORDS},
        gate_and_up_in_one=True,
    ),
}  # fmt: skip
