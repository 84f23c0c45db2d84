"""Families that mix tokens by state spaces, linear attention or convolutions, in all of their layers or in some.

What their own blocks are is in graph/blocks; here are only their sizes and switches, as each class spells them.
"""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures import hybrid_blocks as blocks
from symconfig.descriptor.architectures import hybrid_rules as rules
from symconfig.descriptor.architectures.architecture import FULL, INDEXED, LINEAR, Architecture, Derived, Kind, Rule
from symconfig.descriptor.architectures.deepseek import (
    BAILING,
    BAILING_IGNORED,
    LATENT_IGNORED,
    ROUTED_AS_V3,
    V3,
    shared_as_routed,
)
from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.architectures.rules import rope_with_window, scale

# How a class starts, and how it steps at inference: neither changes a shape or a cost.
STARTS = words("""time_step_floor time_step_max time_step_min time_step_scale time_step_init_scheme time_step_limit
    rescale_prenorm_residual residual_in_fp32 use_mamba_kernels use_mambapy use_associative_scan num_logits_to_keep
    mamba_dt_min mamba_dt_max mamba_dt_limit mamba_dt_init_floor""")  # fmt: skip
# Positions of a class that states no number of them: a state space has none, RecurrentGemma's attention sees a window.
UNLIMITED = 1_048_576
SCALES = "is a factor of activations that changes no shape and no cost, and is left out"

QWEN: dict[str, Any] = {
    "constants": {"qk_norm": True, "norm_zero_centered": True, "attention_gate": "channel"},
    "defaults": {"full_attention_interval": 4},
    "only": {"attn_output_gate": (True,), "output_gate_type": ("swish", "silu")},
    "noted": {"mtp_num_hidden_layers": "multi-token-prediction layers (mtp_num_hidden_layers) are left out"},
    "ignored": ("mamba_ssm_dtype", "mtp_use_dedicated_embeddings"),
    "layers": rules.by(lambda values, i, layers: (i + 1) % values["full_attention_interval"] == 0),
    "blocks": {LINEAR: blocks.delta},
    "reads": ("full_attention_interval",),
}
# Its classes have one MLP for all layers, and its files still say that there is no other.
QWEN_3_5 = QWEN | {"only": QWEN["only"] | {"mlp_only_layers": ([], None)}}
QWEN_EXPERTS = QWEN["constants"] | {"experts.shared_expert_gate": True}
SCANS: dict[str, Any] = {
    "constants": {"position": "none", "intermediate_size": 0, "max_position_embeddings": UNLIMITED},
    "ignored": (*STARTS, "mixer_rms_eps", "intermediate_size"),
    "kinds": {"time_step_rank": Kind.COUNT},
    "layers": rules.all_linear,
    "rules": (rules.only_scans,),
}
# Of embeddings of n-grams, which no layer has where ple_layer_ids lists none.
NGRAMS = ("heads_per_ngram", "make_ngram_vocab_size_divisible_by", "ngram_size", "ngram_vocab_size_base",
          "ple_conv_kernel_size", "ple_embed_dim", "seed", "split_ngram_parts")  # fmt: skip
EMBEDDING, RESIDUAL = (scale(name, name) for name in ("embedding_multiplier", "residual_multiplier"))
AUTO_HEADS = {"mamba_d_head": Kind.COUNT}
LFM2_IGNORED = (
    "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
    "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc",
)  # fmt: skip

KDA = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
TYPES_ALIKE = {"layers_block_type": "layer_types"}

ARCHITECTURES: dict[str, Architecture] = {
    "mamba": Architecture(**SCANS, blocks={LINEAR: blocks.mamba}),
    "falcon_mamba": Architecture(**SCANS, blocks={LINEAR: blocks.mamba}),
    "mamba2": Architecture(
        **SCANS | {"rules": (rules.only_scans, rules.expand("expand"))},
        blocks={LINEAR: blocks.mamba2},
        reads=("time_step_rank",),
    ),
    "jamba": Architecture(
        constants={"position": "none", "experts.norm_topk_prob": False},
        names={"intermediate_size": ("intermediate_size", "experts.moe_intermediate_size")},
        only={"mamba_inner_layernorms": (True,)},
        ignored=STARTS,
        layers=rules.by(lambda values, i, layers: i % values["attn_layer_period"] == values["attn_layer_offset"]),
        blocks={LINEAR: blocks.jamba},
        reads=("attn_layer_period", "attn_layer_offset"),
        kinds={"mamba_dt_rank": Kind.COUNT},
        rules=(rules.jamba,),
    ),
    "bamba": Architecture(
        ignored=STARTS,
        same_as=TYPES_ALIKE,
        layers=rules.by(lambda values, i, layers: i in (values["attn_layer_indices"] or ())),
        blocks={LINEAR: blocks.bamba},
        reads=("attn_layer_indices",),
        kinds={**AUTO_HEADS, "attn_layer_indices": Kind.LAYERS},
        rules=(rules.expand("mamba_expand"),),
    ),
    "granitemoehybrid": Architecture(
        constants={"experts.norm_topk_prob": True},
        names={"intermediate_size": ("experts.moe_intermediate_size",),
               "num_local_experts": ("experts.num_experts",), "num_experts_per_tok": ("experts.num_experts_per_tok",),
               "shared_intermediate_size": ("experts.shared_expert_intermediate_size",)},
        ignored=(*STARTS, "init_method", "normalization_function"),
        layers=rules.all_linear,
        blocks={LINEAR: blocks.bamba},
        kinds=AUTO_HEADS,
        may_be_zero=("num_local_experts", "num_experts_per_tok"),
        rules=(EMBEDDING, RESIDUAL, scale("logits_multiplier", "logits_scaling", lambda value: 1 / value),
               rules.granite, rules.expand("mamba_expand")),
    ),
    "falcon_h1": Architecture(
        noted={name: f"{name} {SCALES}" for name in (
            "attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "mlp_multipliers",
            "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier")},
        # expansion_factor and mlp_expansion_factor are how its own code derives mamba_d_ssm and intermediate_size.
        ignored=(*STARTS, "mamba_norm_before_gate", "mamba_use_mlp", "expansion_factor", "mlp_expansion_factor",
                 "time_step_rank"),
        same_as=TYPES_ALIKE,
        layers=rules.all_linear,
        blocks={LINEAR: blocks.falcon_h1},
        reads=("mamba_d_ssm",),
        kinds={**AUTO_HEADS, "mamba_d_ssm": Kind.COUNT},
        rules=(EMBEDDING, scale("logits_multiplier", "lm_head_multiplier")),
    ),
    "nemotron_h": Architecture(
        constants={"position": "none", "gated_mlp": False, "experts.scoring_func": "sigmoid",
                   "experts.e_score_correction_bias": True},
        defaults={"num_hidden_layers": Derived.LAYERS, "hybrid_override_pattern": "ME*-", "rms_norm_eps": 1e-5},
        names={"mlp_hidden_act": ("hidden_act",), "rms_norm_eps": (), "num_nextn_predict_layers": (),
               "moe_latent_size": ("experts.latent_size",)},
        only={"attention_bias": (False,), "mamba_hidden_act": ("silu",),
              "mamba_proj_bias": (False,)},
        noted={"num_nextn_predict_layers": "layers of multi-token prediction are left out, as its class does"},
        ignored=(*STARTS, "expand", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "mtp_layers_block_type",
                 "mtp_hybrid_override_pattern", "rms_norm_eps", "sliding_window", "rope_theta", "time_step_rank"),
        same_as={**TYPES_ALIKE, "norm_eps": "layer_norm_epsilon", "attention_head_dim": "head_dim",
                 "mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_chunk_size": "chunk_size",
                 "mamba_conv_bias": "use_conv_bias"},
        layers=rules.nemotron_layers,
        blocks={LINEAR: blocks.nemotron_h, "moe": blocks.alone, "mlp": blocks.alone},
        rules=(rules.nemotron,),
    ),
    "qwen3_next": Architecture(**QWEN | {"constants": QWEN_EXPERTS}),
    "qwen3_5_text": Architecture(**QWEN_3_5),
    "qwen3_5_moe_text": Architecture(
        **QWEN_3_5 | {"constants": QWEN_EXPERTS | {"intermediate_size": 0, "experts.norm_topk_prob": True}}
    ),
    "qwen4_exp_text": Architecture(
        **QWEN
        | {
            "constants": QWEN_EXPERTS
            | {"intermediate_size": 0, "norm_before_sublayer": False, "final_norm": False, "streams.mixing": "gated"},
            "names": {"hc_count": ("streams.count",), "hc_lowrank": ("streams.rank",)},
            "only": {"ple_layer_ids": (None, []), "indexer_kv_heads": (1,), "output_gate_type": (None, "silu")},
            "ignored": (*QWEN["ignored"], *NGRAMS, "number_of_conv_states"),
            "blocks": {LINEAR: blocks.delta, INDEXED: blocks.pooled, FULL: blocks.pooled},
            "kinds": dict.fromkeys(blocks.pooled.keys, Kind.COUNT),
            "rules": (Rule(lambda reader: None, (), lambda model: {"indexer_kv_heads": 1}),),
        }
    ),
    "lara_mini": Architecture(
        constants={"qk_norm": True, "intermediate_size": 0},
        layers=rules.lara_layers,
        blocks={LINEAR: blocks.delta},
        rules=(rope_with_window,),
    ),
    "olmo_hybrid": Architecture(
        constants={"qk_norm": True, "qk_norm_of": "all_heads"},
        ignored=("linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min",
                 "linear_allow_neg_eigval"),
        layers=rules.by(lambda values, i, layers: i % 4 == 3 or (layers < 4 and i == layers - 1)),
        blocks={LINEAR: blocks.olmo_hybrid},
        kinds=dict.fromkeys(blocks.delta.keys[:-1], Kind.COUNT),
        rules=(rules.olmo,),
    ),
    "kimi_linear": Architecture(
        constants={**V3, "position": "none"},
        defaults={"linear_attn_config": None, "first_k_dense_replace": 1},
        only={"mla_use_nope": (True,), **ROUTED_AS_V3, "moe_router_activation_func": ("sigmoid",),
              "use_grouped_topk": (True,), "num_nextn_predict_layers": (0,)},
        ignored=(*LATENT_IGNORED, "rope_theta"),
        layers=rules.kimi_layers,
        blocks={LINEAR: blocks.kimi},
        kinds={"linear_attn_config": Kind.SECTION},
    ),
    "bailing_hybrid": Architecture(
        constants={**V3, "attention_gate": "head"},
        defaults={"head_dim": 128, **dict.fromkeys(KDA)},
        # Ling 2.5 and 2.6, of the same model_type, have lightning attention: linear_silu and group_norm_size say so.
        # A fraction of rope is one of head_dim, which heads of latent attention have a part for.
        only={"rope_interleave": (True,), **ROUTED_AS_V3, **BAILING, "linear_silu": (True,), "no_kda_lora": (True,),
              "group_norm_size": (1,), "gated_attention_proj_granularity_type": ("head_wise",), "use_qk_norm": (True,),
              "score_function": ("sigmoid",), "moe_router_enable_expert_bias": (True,),
              "partial_rotary_factor": (1.0, 0.5), "num_kv_heads_for_linear_attn": (0,)},
        ignored=("qk_head_dim", *BAILING_IGNORED),
        same_as={"num_mtp_layers": "num_nextn_predict_layers"},
        layers=rules.by(lambda values, i, layers: (i + 1) % values["layer_group_size"] == 0),
        blocks={LINEAR: blocks.bailing},
        kinds={**dict.fromkeys(KDA, Kind.COUNT), "kda_lower_bound": Kind.NUMBER},
        reads=("layer_group_size",),
        rules=(rules.bailing, shared_as_routed),
    ),
    "lfm2": Architecture(
        constants={"qk_norm": True},
        ignored=LFM2_IGNORED,
        same_as={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
        layers=rules.lfm2_layers,
        blocks={"conv": blocks.short_conv},
        reads=("full_attn_idxs",),
        kinds={"full_attn_idxs": Kind.LAYERS},
        rules=(rules.lfm2,),
    ),
    "lfm3": Architecture(
        constants={"qk_norm": True},
        names={"use_sandwich_norm": ("norm_after_sublayer",)},
        only={"attention_bias": (False,)},
        layers=rules.lfm3_layers,
        blocks={"conv": blocks.short_conv},
        rules=(rules.lfm3,),
    ),
    "lfm2_moe": Architecture(
        constants={"qk_norm": True, "experts.scoring_func": "sigmoid"},
        names={"num_dense_layers": ("experts.first_k_dense_replace",),
               "use_expert_bias": ("experts.e_score_correction_bias",)},
        ignored=LFM2_IGNORED,
        same_as={"tie_embedding": "tie_word_embeddings"},
        blocks={"conv": blocks.short_conv},
    ),
    "minimax": Architecture(
        constants={"intermediate_size": 0, "experts.norm_topk_prob": True},
        names={"intermediate_size": ("experts.moe_intermediate_size",)},
        noted={name: f"{name} {SCALES}" for name in (
            "full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor",
            "mlp_alpha_factor", "mlp_beta_factor")},
        layers=rules.by(lambda values, i, layers: (i + 1) % 2 == 1),
        blocks={LINEAR: blocks.lightning},
    ),
    "recurrent_gemma": Architecture(
        constants={"attention_out_bias": True, "mlp_bias": True, "norm_zero_centered": True, "scale_embeddings": True,
                   "max_position_embeddings": UNLIMITED},
        names={"attention_bias": ("qkv_bias",), "logits_soft_cap": ("final_logit_softcapping",)},
        ignored=("w_init_variance_scale", "final_w_init_variance_scale"),
        same_as={**TYPES_ALIKE, "attention_window_size": "sliding_window"},
        layers=rules.recurrent_gemma_layers,
        blocks={LINEAR: blocks.rg_lru},
        reads=("block_types",),
        kinds={"lru_width": Kind.COUNT, "block_types": Kind.WORDS},
        gate_and_up_in_one=True,
    ),
}  # fmt: skip
