"""Families without rope: ALiBi (BLOOM, MPT, Falcon's first), learned tables (OPT, GPT), and fixed ones (XGLM, CTRL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture, Derived, Reading, Rule
from symconfig.descriptor.architectures.gpt import BIASED, EMBEDDING_DROPOUT, GPT2_IGNORED, LAYERNORM
from symconfig.descriptor.architectures.keys import COMMON_IGNORED
from symconfig.descriptor.architectures.rules import (
    attention_scale_of,
    four_times_hidden,
    one_or_all_heads,
    short,
)
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

_LEARNED = {**BIASED, "position": "learned"}
_SCALED = {"scale_embedding": ("scale_embeddings",)}  # by the root of the model's width
_FALCON = (
    "alibi", "multi_query", "new_decoder_architecture", "num_kv_heads", "num_ln_in_parallel_attn", "parallel_attn",
)  # fmt: skip
_LAYERDROP = {"layerdrop": "layerdrop leaves out whole layers at random, which is not modelled"}


def _falcon(reader: Reading) -> None:
    """Read Falcon, whose key/value heads differ by generation.

    It has one norm for both branches, two, or one after the other; rope or ALiBi.
    """
    values, fields = reader.values, reader.fields
    new, heads = values["new_decoder_architecture"], fields["num_attention_heads"]
    grouped = values["num_kv_heads"] if values["num_kv_heads"] is not None else heads
    if type(grouped) is not int or grouped < 1:
        return reader.problem("wrong value", "num_kv_heads", got=repr(grouped), need="a whole number")
    fields["num_key_value_heads"] = grouped if new else 1 if values["multi_query"] else heads
    norms = values["num_ln_in_parallel_attn"] or (2 if new else 1)
    if norms not in (1, 2):
        return reader.problem("wrong value", "num_ln_in_parallel_attn", got=repr(norms), need="1 or 2")
    parallel = bool(values["parallel_attn"] or new)
    if new and not values["parallel_attn"]:
        reader.problem("the new architecture's branches are parallel", "parallel_attn", got="false", need="true")
    fields["parallel_residual"] = parallel
    fields["shared_input_norm"] = parallel and not (new and norms == 2)
    if values["alibi"]:
        fields["position"] = "alibi"


def _bloom(reader: Reading) -> None:
    """Read BLOOM: ALiBi has no longest sequence; seq_length is what the model was trained with."""
    length = reader.values["seq_length"]
    if type(length) is not int or length < 1:
        return reader.problem("wrong value", "seq_length", got=repr(length), need="a whole number")
    reader.fields["max_position_embeddings"] = length


_MPT_ONLY: Mapping[str, tuple[Any, ...]] = {
    "attn_type": ("multihead_attention",),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "attn_uses_sequence_id": (False,),
    "alibi": (True,),  # its modules add ALiBi's bias in any case
}
_MPT_IDLE = ("attn_impl", "alibi_bias_max", "clip_qkv", "softmax_scale", "attn_pdrop", "model_type")


def _mpt(reader: Reading) -> None:
    """Read attn_config, which holds what of attention may differ.

    Only the dropout of what sublayers add is read from it.
    """
    section = reader.values["attn_config"]
    if section is None:
        return
    if not isinstance(section, Mapping):
        return reader.problem("wrong value", "attn_config", got=repr(section), need="an object")
    for key, value in section.items():
        if key in _MPT_ONLY and value not in _MPT_ONLY[key]:
            need = " or ".join(map(repr, _MPT_ONLY[key]))
            reader.problem("not supported for mpt", "attn_config", key, got=repr(value), need=need)
        elif key not in (*_MPT_ONLY, *_MPT_IDLE, *COMMON_IGNORED) and value not in (None, False):
            reader.problem("this key is not known and may change the architecture", "attn_config", key, got=repr(value))
    dropped, scale = section.get("attn_pdrop") or 0.0, section.get("softmax_scale")
    if not isinstance(dropped, int | float) or not isinstance(scale, int | float | None):
        return reader.problem("wrong value", "attn_config", got=repr(section), need="numbers")
    reader.fields["attention_dropout"] = reader.fields["hidden_dropout"] = float(dropped)
    if scale is not None and scale > 0:
        reader.fields["query_pre_attn_scalar"] = short(float(scale) ** -2)


def _opt(reader: Reading) -> None:
    """Read OPT: norms stand before sublayers, or after their sums; the embedding may not be narrower than the model."""
    values, fields = reader.values, reader.fields
    narrow = values["word_embed_proj_dim"]
    if narrow not in (None, fields["hidden_size"]):
        what = "an embedding narrower than the model is not supported"
        reader.problem(what, "word_embed_proj_dim", got=repr(narrow), need=str(fields["hidden_size"]))
    if not values["do_layer_norm_before"]:
        fields |= {"norm_before_sublayer": False, "norm_after_residual": True, "final_norm": False}
    if values["_remove_final_layer_norm"]:
        fields["final_norm"] = False


def _gpt_neo(reader: Reading) -> None:
    """Read attention_types, kinds with counts, as [[["global", "local"], 12]]; local layers have a window.

    Without it every other layer is local, the first one global.
    """
    layers, listed, window = reader.fields["num_hidden_layers"], reader.values["attention_types"], "window_size"
    local = [index % 2 == 1 for index in range(layers)]
    if listed is not None:
        try:
            local = [("global", "local").index(kind) == 1 for names, times in listed for kind in names * times]
        except (TypeError, ValueError):
            local = []
    if len(local) != layers:
        need = f"global or local for each of {layers} layers"
        return reader.problem("wrong value", "attention_types", got=repr(listed), need=need)
    if any(local):
        reader.fields["sliding_window"], reader.key_of["sliding_window"] = reader.values[window], window
        reader.fields |= {} if all(local) else {"sliding_window_pattern": local}


def _openai(reader: Reading) -> None:
    """Read GPT-1, whose "gelu" is the one by tanh (modeling_openai.py, ACT_FNS)."""
    if reader.fields.get("hidden_act") == "gelu":
        reader.fields["hidden_act"] = "gelu_tanh"


def _falcon_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return a model's generation: the first shares one norm, and one key and value or none between heads."""
    heads, kv = model.num_attention_heads, model.num_key_value_heads
    new = kv not in (1, heads) or (model.parallel_residual and not model.shared_input_norm)
    return {
        "alibi": model.position is Position.ALIBI,
        "multi_query": kv == 1,
        "new_decoder_architecture": new,
        "num_kv_heads": kv,
        "num_ln_in_parallel_attn": 1 if model.shared_input_norm else 2 if new else None,
        "parallel_attn": model.parallel_residual,
    }


def _mpt_keys(model: ModelDescriptor) -> dict[str, Any]:
    scale = attention_scale_of(model) if model.query_pre_attn_scalar else None
    dropped = model.hidden_dropout or 0  # the class takes no fraction where it is none
    return {"attn_config": {"attn_pdrop": dropped, "softmax_scale": scale}}


def _opt_keys(model: ModelDescriptor) -> dict[str, Any]:
    before = model.norm_before_sublayer
    return {
        "word_embed_proj_dim": model.hidden_size,
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and not model.final_norm,
    }


def _gpt_neo_keys(model: ModelDescriptor) -> dict[str, Any]:
    kinds = [["local" if window else "global"] for window in model.sliding_layers]
    own = {"window_size": model.sliding_window} if model.sliding_window else {}
    return {"attention_types": [[kind, 1] for kind in kinds], **own}


ARCHITECTURES: dict[str, Architecture] = {
    "falcon": Architecture(
        constants={**LAYERNORM, "gated_mlp": False},
        defaults={"ffn_hidden_size": Derived.FOUR_TIMES_HIDDEN},
        names={
            "activation": ("hidden_act",),
            "bias": ("qkv_bias", "attention_out_bias", "mlp_bias"),
            "ffn_hidden_size": ("intermediate_size",),
        },
        only={"apply_residual_connection_post_layernorm": (False,)},
        ignored=("ff_factor", "head_dim"),
        same_as={"n_embed": "hidden_size"},
        rules=(Rule(_falcon, _FALCON, _falcon_keys),),
    ),
    "bloom": Architecture(
        constants={**BIASED, "position": "alibi", "embedding_norm": True, "hidden_act": "gelu_tanh"},
        defaults={"seq_length": 2048},
        ignored=("slow_but_exact", "n_inner", "attention_softmax_in_fp32", "bias_dropout_fusion",
                 "masked_softmax_fusion",
                 "offset_alibi", "skip_bias_add", "skip_bias_add_qkv"),
        same_as={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        rules=(Rule(_bloom, ("seq_length",), lambda model: {"seq_length": model.max_position_embeddings}),
               four_times_hidden),
    ),
    "mpt": Architecture(
        constants={**LAYERNORM, "norm_bias": False, "gated_mlp": False, "position": "alibi", "hidden_act": "gelu"},
        defaults={"attn_config": None},
        names={"max_seq_len": ("max_position_embeddings",)},
        only={"no_bias": (True,), "logit_scale": (None,), "fc_type": ("torch",)},
        noted={"emb_pdrop": "emb_pdrop (dropout of the embeddings) is not modelled"},
        ignored=("expansion_ratio", "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "norm_type",
                 "resid_pdrop", "tokenizer_name", "verbose", "ffn_config", "use_pad_tok_in_ffn"),
        same_as={"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"},
        rules=(Rule(_mpt, ("attn_config",), _mpt_keys), four_times_hidden),
    ),
    "opt": Architecture(
        constants={**LAYERNORM, "gated_mlp": False, "position": "learned", "extra_positions": 2},
        names={
            "ffn_dim": ("intermediate_size",),
            "dropout": ("hidden_dropout",),
            "init_std": ("initializer_range",),
            "enable_bias": ("qkv_bias", "attention_out_bias", "mlp_bias"),
            "layer_norm_elementwise_affine": ("norm_weight",),
        },
        noted=_LAYERDROP,
        ignored=("activation_dropout",),
        rules=(Rule(_opt, ("word_embed_proj_dim", "do_layer_norm_before", "_remove_final_layer_norm"), _opt_keys),),
    ),
    "xglm": Architecture(
        constants={**BIASED, "position": "sinusoidal"},
        names={
            "ffn_dim": ("intermediate_size",),
            "dropout": ("hidden_dropout",),
            "init_std": ("initializer_range",),
            **_SCALED,
        },
        noted={**_LAYERDROP, "activation_dropout": "activation_dropout is not modelled"},
        same_as={"d_model": "hidden_size", "num_layers": "num_hidden_layers",
                 "attention_heads": "num_attention_heads"},
    ),
    "biogpt": Architecture(
        constants={**_LEARNED, "extra_positions": 2},
        names={"attention_probs_dropout_prob": ("attention_dropout",), "hidden_dropout_prob": ("hidden_dropout",),
               **_SCALED},
        noted={**_LAYERDROP, "activation_dropout": "activation_dropout is not modelled"},
    ),
    "ctrl": Architecture(
        constants={**BIASED, "position": "sinusoidal", "scale_embeddings": True, "lm_head_bias": True,
                   "hidden_act": "relu"},
        names={"dff": ("intermediate_size",)},
        noted=EMBEDDING_DROPOUT,
        ignored=GPT2_IGNORED,
    ),
    "openai-gpt": Architecture(
        constants={**_LEARNED, "norm_before_sublayer": False, "norm_after_residual": True, "final_norm": False},
        names={"afn": ("hidden_act",)},
        noted=EMBEDDING_DROPOUT,
        ignored=(*GPT2_IGNORED, "predict_special_tokens"),
        rules=(four_times_hidden,
               Rule(_openai, (), lambda model: {"afn": "gelu"} if model.hidden_act == "gelu_tanh" else {})),
    ),
    "gpt-sw3": Architecture(
        constants=_LEARNED,
        only={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
        noted=EMBEDDING_DROPOUT,
        ignored=(*GPT2_IGNORED, "reorder_and_upcast_attn"),
    ),
    "gpt_bigcode": Architecture(
        constants=_LEARNED,
        only={"scale_attn_weights": (True,)},
        noted=EMBEDDING_DROPOUT,
        ignored=(*GPT2_IGNORED, "num_key_value_heads", "attention_softmax_in_fp32", "inference_runner",
                 "scale_attention_softmax_in_fp32", "validate_runner_input", "pre_allocate_kv_cache",
                 "max_sequence_length", "max_batch_size"),
        rules=(one_or_all_heads,),
    ),
    "gpt_neo": Architecture(
        constants={**LAYERNORM, "gated_mlp": False, "attention_out_bias": True, "mlp_bias": True,
                   "position": "learned", "query_pre_attn_scalar": 1.0},
        defaults={"intermediate_size": Derived.FOUR_TIMES_HIDDEN},
        names={"resid_dropout": ("hidden_dropout",)},
        noted={"embed_dropout": "embed_dropout (dropout of the embeddings) is not modelled"},
        ignored=(*GPT2_IGNORED, "attention_layers", "classifier_dropout"),
        same_as={"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"},
        rules=(Rule(_gpt_neo, ("attention_types", "window_size"), _gpt_neo_keys),),
    ),
}  # fmt: skip
