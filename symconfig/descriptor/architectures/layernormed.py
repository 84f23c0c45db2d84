"""Families with LayerNorms and rope: StarCoder2, Phi, StableLM, Persimmon, Nemotron, Jais 2, GPT-J and its kin."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.gpt import BIASED, GPT2_IGNORED
from symconfig.descriptor.architectures.layer_rules import all_sliding
from symconfig.descriptor.architectures.structure_rules import rotary_channels

LAYERNORM = {"norm": "layernorm"}
PARALLEL = {"parallel_residual": True, "shared_input_norm": True}
EMBEDDING_DROPOUT = {
    name: f"{name} (dropout of the embeddings) is not modelled" for name in ("embd_pdrop", "embedding_dropout")
}
_GPTJ = {
    **LAYERNORM,
    **PARALLEL,
    "gated_mlp": False,
    "mlp_bias": True,
    "lm_head_bias": True,
}
_ROTARY = Architecture(
    constants=_GPTJ,
    only={"scale_attn_weights": (True,), "rotary": (True,)},
    noted=EMBEDDING_DROPOUT,
    ignored=GPT2_IGNORED,
    rules=(rotary_channels(),),
)

ARCHITECTURES: dict[str, Architecture] = {
    "starcoder2": Architecture(
        constants={**LAYERNORM, "gated_mlp": False},
        names={
            "use_bias": ("qkv_bias", "attention_out_bias", "mlp_bias"),
            "norm_epsilon": ("norm_eps",),
            "residual_dropout": ("hidden_dropout",),
        },
        only={"norm_type": ("layer_norm",), "mlp_type": ("default",), "scale_attn_weights": (True,)},
        noted=EMBEDDING_DROPOUT,
        ignored=(
            "activation_function",  # of GPTBigCode, which the first files still had; hidden_act is what is read
            "layer_norm_epsilon",
            "attention_softmax_in_fp32",
            "scale_attention_softmax_in_fp32",
        ),
        layers=all_sliding,
    ),
    "phi": Architecture(
        constants={**BIASED, **PARALLEL, "lm_head_bias": True},
        names={"qk_layernorm": ("qk_norm", "qk_norm_bias")},
        noted=EMBEDDING_DROPOUT,
    ),
    "persimmon": Architecture(
        constants=BIASED, names={"qk_layernorm": ("qk_norm", "qk_norm_bias")}, ignored=("head_dim",)
    ),
    "stablelm": Architecture(
        constants={**LAYERNORM, "qk_norm_of": "each_head"},
        names={
            "use_qkv_bias": ("qkv_bias",),
            "qk_layernorm": ("qk_norm",),
            "use_parallel_residual": ("parallel_residual", "shared_input_norm"),
        },
        only={"rotary_scaling_factor": (1.0,)},
        ignored=("head_dim",),
        same_as={"rope_pct": "partial_rotary_factor"},
    ),
    "nemotron": Architecture(constants={**LAYERNORM, "norm_zero_centered": True, "gated_mlp": False}),
    "jais2": Architecture(constants={**LAYERNORM, "gated_mlp": False}),
    "gptj": _ROTARY,
    "codegen": _ROTARY,
}
