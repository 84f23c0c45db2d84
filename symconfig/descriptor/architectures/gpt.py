"""GPT-2, GPT-NeoX, gpt-oss, and families with LayerNorms and rope: StarCoder2, Phi, StableLM, Nemotron, GPT-J."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import FULL, Architecture, Reading, Rule
from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.architectures.llama import EXPERTS_ALIKE, MIXTRAL_NAMES
from symconfig.descriptor.architectures.mixer_keys import Block
from symconfig.descriptor.architectures.rules import all_sliding, alternate, rotary_channels

BIASED = {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True, "gated_mlp": False, "norm": "layernorm"}
GPT2_IGNORED = words("""
    n_ctx summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
""")

_LAST = "attention_with_a_bias"


def _japanese(reader: Reading) -> None:
    """Read the MLP's width, a multiple of the model's."""
    fields = reader.fields
    fields["intermediate_size"] = int(fields["hidden_size"] * reader.values["intermediate_multiple_size"])


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
    "gpt_oss": Architecture(
        constants={
            "intermediate_size": 0,
            "hidden_act": "clamped_swiglu",
            "attention_sinks": True,
            "experts.norm_topk_prob": True,
            "experts.softmax_after_topk": True,
            "experts.router_bias": True,
            "experts.expert_bias": True,
        },
        names=MIXTRAL_NAMES,
        only={"hidden_act": ("silu",), "swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)},
        ignored=("initial_context_length",),
        same_as={**EXPERTS_ALIKE, "experts_per_token": "num_experts_per_tok"},
        layers=alternate,
    ),
    "gpt2": Architecture(
        constants={**BIASED, "position": "learned"},
        only={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
        noted={
            "embd_pdrop": "embd_pdrop (dropout of the embeddings) is taken to be resid_pdrop",
            "reorder_and_upcast_attn": "reorder_and_upcast_attn is not modelled",
        },
        ignored=GPT2_IGNORED,
        rules=(Rule(lambda reader: None, (), lambda model: {"embd_pdrop": model.hidden_dropout}),),
    ),
    "gpt_neox_japanese": Architecture(
        constants={"gated_mlp": False, "norm": "layernorm"},
        defaults={"rotary_pct": 1.0, "rotary_emb_base": 10000.0},
        ignored=("head_dim",),
        same_as={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        layers=lambda values, layers: [FULL] * (layers - 1) + [_LAST],
        blocks={_LAST: Block("wide_attention", switches={"out_bias": ""})},
        rules=(
            Rule(
                _japanese,
                ("intermediate_multiple_size",),
                lambda model: {"intermediate_multiple_size": model.intermediate_size // model.hidden_size},
            ),
        ),
    ),
    "gpt_neox": Architecture(
        constants={"mlp_bias": True, "gated_mlp": False, "norm": "layernorm"},
        defaults={"rotary_pct": 0.25, "rotary_emb_base": 10000.0},
        ignored=("classifier_dropout", "head_dim", "attention_probs_dropout_prob", "hidden_dropout_prob"),
        same_as={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    ),
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
