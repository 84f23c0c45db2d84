"""Llama, and what has its keys but for a few points: which layers have rope or a window, norms, an activation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Reading, Rule, Values
from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.architectures.mixer_keys import Block
from symconfig.descriptor.architectures.rules import (
    all_sliding,
    always,
    but_first_of,
    every,
    heads_fill_hidden,
    particulars,
    rope_by_layer,
    rope_with_window,
)

MIXTRAL_NAMES = {"intermediate_size": ("experts.moe_intermediate_size",)}
EXPERTS_ALIKE = {"num_experts": "num_local_experts"}


_ALL_BIASES = ("qkv_bias", "attention_out_bias", "mlp_bias")
_QKV = {"attention_bias": ("qkv_bias",)}


def smollm3(values: Values, layers: int) -> list[str]:
    """Give layers without rope the window, with use_sliding_window."""
    listed = values["no_rope_layers"] or [(i + 1) % (values["no_rope_layer_interval"] or 1) for i in range(layers)]
    return [FULL if turns else SLIDING for turns in listed] if isinstance(listed, list) else [FULL] * layers


def exaone4(values: Values, layers: int) -> list[str]:
    """Give all but every n-th layer the window, or by a word such as LLLG; none without a window."""
    pattern = values["sliding_window_pattern"]
    pattern = 4 if pattern is None else pattern
    if values["sliding_window"] is None or not pattern:
        return [FULL] * layers
    if isinstance(pattern, str):
        return [SLIDING if pattern[i % len(pattern)] == "L" else FULL for i in range(layers)]
    return [SLIDING if (i + 1) % pattern else FULL for i in range(layers)] if isinstance(pattern, int) else []


def _rope_if_window(reader: Reading) -> None:
    """Turn queries and keys only on layers with a window, where there is one."""
    if reader.values["sliding_window"] is not None:
        rope_with_window.read(reader)


def _exaone_pattern(reader: Reading) -> None:
    """Read sliding_window_pattern: a number, a word of L and G, or null."""
    pattern = reader.values["sliding_window_pattern"]
    word = isinstance(pattern, str) and bool(pattern) and set(pattern) <= {"L", "G"}
    if not (pattern is None or word or (type(pattern) is int and pattern >= 0)):
        need = "a whole number, or a word of L and G"
        return reader.problem("wrong value", "sliding_window_pattern", got=repr(pattern), need=need)
    _rope_if_window(reader)


rope_if_window = Rule(_rope_if_window)
exaone_pattern = Rule(_exaone_pattern, ("sliding_window_pattern",))


_BLOCK = "differential_attention"  # the difference of two (DiffLlama, arXiv 2410.05258)


def _diffllama(reader: Reading) -> None:
    """Read DiffLlama: heads are pairs, those of keys and values, too.

    Dropout of attention is refused as the class does.
    """
    fields = reader.fields
    for field in ("num_attention_heads", "num_key_value_heads"):
        heads = fields.get(field, fields["num_attention_heads"])
        if heads % 2:
            reader.problem("differential attention pairs heads", field, got=heads, need="an even number")
    if reader.values["attention_dropout"]:
        got = reader.values["attention_dropout"]
        reader.problem("differential attention has no dropout", "attention_dropout", got=got, need="0.0")
    fields["mixers"] = [{"block": _BLOCK}]


_OLMO2 = {
    "qk_norm": True,
    "qk_norm_of": "all_heads",
    "norm_before_sublayer": False,
    "norm_after_sublayer": True,
}

# What the files of Hunyuan say beside what its classes read: of keys that layers would share (use_cla), of tokens and a
# classifier.
HUNYUAN: dict[str, tuple[Any, ...]] = {
    "norm_type": ("rms", "hf_rms"),
    **dict.fromkeys(("use_qk_norm", "use_rotary_pos_emb"), (True,)),
}
HUNYUAN_IGNORED = words("cla_share_factor eod_token_id pad_id org_vocab_size class_num pool_type dense_list")

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(layers=all_sliding),
    "mixtral": Architecture(
        constants={"intermediate_size": 0, "experts.norm_topk_prob": True},
        names=MIXTRAL_NAMES,
        same_as=EXPERTS_ALIKE,
        layers=all_sliding,
    ),
    "phi3": Architecture(
        defaults={"partial_rotary_factor": 1.0},
        noted={"embd_pdrop": "embd_pdrop (dropout of the embeddings) is not modelled"},
        layers=all_sliding,
    ),
    "smollm3": Architecture(
        layers=smollm3,
        ignored=("max_window_layers",),
        rules=(rope_by_layer,),
    ),
    "arcee": Architecture(constants={"gated_mlp": False}),
    "apertus": Architecture(
        constants={"gated_mlp": False, "qk_norm": True},
        only={"qk_norm": (True,), "post_norm": (False,), "hidden_dropout": (0.0,)},
    ),
    # Its head may have rows for the first output_vocab_size tokens only, which no descriptor says.
    "apertus1p5_text": Architecture(
        constants={"gated_mlp": False, "qk_norm": True}, only={"output_vocab_size": (None,)}
    ),
    "exaone": Architecture(),  # Llama with other names of its keys
    "iquestcoder": Architecture(),
    "internlm3": Architecture(names={"attention_bias": ("qkv_bias",), "mlp_bias": ("attention_out_bias", "mlp_bias")}),
    "helium": Architecture(names=_QKV, rules=(heads_fill_hidden,)),
    "ministral": Architecture(layers=all_sliding),
    "ministral3": Architecture(layers=all_sliding, ignored=("layer_types",)),
    "cwm": Architecture(layers=but_first_of(4)),
    "seed_oss": Architecture(names={**_QKV, "residual_dropout": ("hidden_dropout",)}),
    "ernie4_5": Architecture(names={"use_bias": _ALL_BIASES}),
    "hunyuan_v1_dense": Architecture(
        constants={"qk_norm": True}, only=HUNYUAN, same_as={"attention_head_dim": "head_dim"}, ignored=HUNYUAN_IGNORED
    ),
    "doge": Architecture(
        constants={"qk_norm": True, "stream_scale": True},
        only={"is_moe": (False,)},
        ignored=("num_experts", "num_experts_per_tok", "norm_topk_prob", "router_aux_loss_coef"),
        layers=always(FULL),
        blocks={FULL: Block("dynamic_mask_attention")},
        rules=(
            replace(
                particulars({"sliding_window": None, "keep_window_size": None}),
                write=lambda model: {one.name: one.value for one in model.particulars},
            ),
        ),
    ),
    "exaone4": Architecture(
        constants={"qk_norm": True, "norm_before_sublayer": False, "norm_after_sublayer": True},
        layers=exaone4,
        defaults={"sliding_window_pattern": None},
        rules=(exaone_pattern,),
    ),
    "glm": Architecture(names=_QKV),
    "glm4": Architecture(constants={"norm_after_sublayer": True}, names=_QKV),
    "bitnet": Architecture(constants={"inner_norm": True}, rules=(heads_fill_hidden,)),
    "phi4_multimodal": Architecture(
        noted={
            "embd_pdrop": "embd_pdrop (dropout of the embeddings) is not modelled",
            "vision_config": "only the text model is described; the vision tower is left out",
            "audio_config": "only the text model is described; the audio tower is left out",
        },
        layers=all_sliding,
    ),
    "nanochat": Architecture(
        constants={
            "gated_mlp": False,
            "norm_weight": False,
            "embedding_norm": True,
            "qk_norm": True,
            "qk_norm_of": "unit",
        },
    ),
    "diffllama": Architecture(ignored=("lambda_std_dev",), rules=(Rule(_diffllama),)),
    "olmo": Architecture(
        constants={"norm": "layernorm", "norm_weight": False},
        noted={"clip_qkv": "clip_qkv clamps queries, keys and values, which changes no shape and no cost: left out"},
    ),
    "olmo2": Architecture(constants=_OLMO2),
    "olmo3": Architecture(constants=_OLMO2, layers=every(4)),
}
