"""Models with experts on all layers, or all but a few: MiniMax-M2, Ernie 4.5, OLMoE, Hunyuan, Aria, DBRX, Granite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, Architecture, Reading, Rule, Values
from symconfig.descriptor.architectures.granite import granite, rope_bases
from symconfig.descriptor.architectures.keys import COMMON_IGNORED, words
from symconfig.descriptor.architectures.llama import HUNYUAN, HUNYUAN_IGNORED
from symconfig.descriptor.architectures.mixer_keys import Block
from symconfig.descriptor.architectures.rules import (
    NO_DENSE,
    OWN_PREDICTION,
    SIGMOID,
    all_sliding,
    always,
    but_first_of,
    experts_at,
    heads_fill_hidden,
    particulars,
    shared_experts,
    turned_channels,
)
from symconfig.descriptor.model import ModelDescriptor

_EXPERTS = ("experts.moe_intermediate_size",)
WIDTH = {"intermediate_size": _EXPERTS}
_ALL_HEADS = {"qk_norm": True, "qk_norm_of": "all_heads"}
_GRANITE = {**NO_DENSE, "experts.norm_topk_prob": False, "experts.softmax_after_topk": True}
_SHARED_WIDTH = "experts.shared_expert_intermediate_size"


def _minimax(reader: Reading) -> None:
    """Refuse layers of linear attention.

    MiniMax-Text-01 has them, and attn_type_list could name them, but they are not this class's.
    """
    listed = reader.values["attn_type_list"]
    if listed is not None and (not isinstance(listed, list) or any(one != 1 for one in listed)):
        reader.problem(
            "MiniMax-M2's layers all have full attention", "attn_type_list", got=listed, need="1 for each layer"
        )


def _hunyuan_keys(model: ModelDescriptor) -> Mapping[str, Any]:
    sparse = model.experts
    return {} if sparse is None else {"moe_topk": sparse.num_experts_per_tok, "num_experts": sparse.num_experts}


def _hunyuan(reader: Reading) -> None:
    """Read numbers that may be lists with an entry for each layer; then all must be alike.

    Published files also say what the class takes for granted: experts and a shared one, each as wide as the MLP.
    """
    for key, field in (("moe_topk", "experts.num_experts_per_tok"), ("num_experts", "experts.num_experts")):
        value = reader.values[key]
        alike = set(map(str, value)) if isinstance(value, list) else {value}
        if len(alike) != 1:
            reader.problem("layers with different experts are not described", key, got=value, need="one number")
            continue
        reader.fields[field] = value[0] if isinstance(value, list) else value
        reader.key_of[field] = key
    for key, built in (("moe_intermediate_size", reader.values["intermediate_size"]), ("num_shared_expert", 1)):
        value = reader.data.get(key)
        if any(one not in (None, built) for one in (value if isinstance(value, list) else [value])):
            reader.problem("is not what Transformers' class builds", key, got=value, need=str(built))


_DBRX_HEADS = {"kv_n_heads": 1, "clip_qkv": None, "attn_pdrop": 0.0, "rope_theta": None}
_DBRX_EXPERTS = {
    "ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1, "moe_loss_weight": 0.01, "moe_jitter_eps": None,
    "moe_normalize_expert_weights": 1.0, "ffn_act_fn": None, "hidden_size": None,
}  # fmt: skip


def _section(reader: Reading, name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section of DBRX's file with the defaults of its class."""
    given = reader.values[name] or {}
    if not isinstance(given, Mapping):
        reader.problem("wrong value", name, got=given, need="an object")
        given = {}
    for key in (key for key in given if key not in defaults and key not in COMMON_IGNORED and given[key]):
        reader.problem("this key is not known and may change the architecture", name, key, got=given[key])
    return {**defaults, **given}


def _dbrx(reader: Reading) -> None:
    """Read the sections for attention and experts."""
    heads, sparse = _section(reader, "attn_config", _DBRX_HEADS), _section(reader, "ffn_config", _DBRX_EXPERTS)
    power, activation = sparse["moe_normalize_expert_weights"], (sparse["ffn_act_fn"] or {}).get("name", "silu")
    if power not in (None, 1):
        reader.problem("not supported", "ffn_config", "moe_normalize_expert_weights", got=power, need="1.0 or null")
    if activation != "silu":
        reader.problem("not supported", "ffn_config", "ffn_act_fn", got=activation, need="silu")
    fields = reader.fields
    fields["num_key_value_heads"] = heads["kv_n_heads"]
    fields["attention_dropout"] = float(heads["attn_pdrop"])
    fields["experts.num_experts"] = sparse["moe_num_experts"]
    fields["experts.num_experts_per_tok"] = sparse["moe_top_k"]
    fields["experts.moe_intermediate_size"] = sparse["ffn_hidden_size"]
    fields["experts.norm_topk_prob"] = power is not None
    fields["experts.router_aux_loss_coef"] = sparse["moe_loss_weight"]
    if heads["rope_theta"] is not None:
        fields["rope_theta"] = float(heads["rope_theta"])
    if heads["clip_qkv"] is not None:
        fields["particulars"] = [{"name": "clip_qkv", "value": heads["clip_qkv"]}]


def _dbrx_sections(model: ModelDescriptor) -> Mapping[str, Any]:
    """Return the sections that describe a descriptor's model. The class wants rope's base in one of them, too."""
    sparse, extra = model.experts, {one.name: one.value for one in model.particulars}
    assert sparse is not None
    return {
        "attn_config": {
            "kv_n_heads": model.num_key_value_heads,
            "clip_qkv": extra.get("clip_qkv"),
            "attn_pdrop": model.attention_dropout,
            "rope_theta": model.rope_theta,
        },
        "ffn_config": {
            "ffn_hidden_size": sparse.moe_intermediate_size,
            "moe_num_experts": sparse.num_experts,
            "moe_top_k": sparse.num_experts_per_tok,
            "moe_loss_weight": sparse.router_aux_loss_coef,
            "moe_normalize_expert_weights": 1.0 if sparse.norm_topk_prob else None,
        },
    }


def _ernie(values: Values, layers: int) -> list[bool]:
    """Mark every n-th layer between two, both included; the last one is the model's by default."""
    first, last, step = (values[f"moe_layer_{name}"] for name in ("start_index", "end_index", "interval"))
    last = layers if last in (-1, None) else last
    return [(index + 1) % (step or 1) == 0 and first <= index <= last for index in range(layers)]


def _jetmoe(reader: Reading) -> None:
    """Read JetMoE: each choice of a token has a query for every head of keys, whatever the file says."""
    fields = reader.fields
    fields["num_attention_heads"] = fields["num_key_value_heads"] * fields["experts.num_experts_per_tok"]


def _ernie_layers(model: ModelDescriptor) -> Mapping[str, Any]:
    """Return the first and the last layer with experts, and how far they are apart."""
    which = [index for index, moe in enumerate(model.moe_layers) if moe] or [model.num_hidden_layers]
    apart = which[1] - which[0] if len(which) > 1 and not (which[0] + 1) % (which[1] - which[0]) else 1
    return {"moe_layer_start_index": which[0], "moe_layer_end_index": which[-1], "moe_layer_interval": apart}


ARCHITECTURES: dict[str, Architecture] = {
    "minimax_m2": Architecture(
        constants={**NO_DENSE, **SIGMOID, **_ALL_HEADS, "experts.norm_topk_prob": True},
        names=WIDTH,
        defaults={"rotary_dim": None, "attn_type_list": None, "partial_rotary_factor": 1.0},
        only={
            "scoring_func": ("sigmoid",),
            "use_routing_bias": (True,),
            "use_qk_norm": (True,),
            "qk_norm_type": ("per_layer",),
            "shared_intermediate_size": (0,),
            "shared_moe_mode": ("sigmoid",),
        },
        noted=OWN_PREDICTION,
        ignored=words("""use_mtp mtp_transformer_layers mlp_intermediate_size layernorm_full_attention_beta
            layernorm_linear_attention_beta layernorm_mlp_beta"""),
        rules=(Rule(_minimax, ("attn_type_list",)), turned_channels),
    ),
    "olmoe": Architecture(
        constants={**NO_DENSE, **_ALL_HEADS},
        names=WIDTH,
        rules=(heads_fill_hidden, particulars({"clip_qkv": None})),
    ),
    "flex_olmo": Architecture(
        constants={**NO_DENSE, **_ALL_HEADS, "norm_before_sublayer": False, "norm_after_sublayer": True}, names=WIDTH
    ),
    "phimoe": Architecture(
        constants={**NO_DENSE, "norm": "layernorm", "experts.norm_topk_prob": False},
        names={**WIDTH, "rms_norm_eps": ("norm_eps",)},
        only={"hidden_dropout": (0.0,)},
        noted={"input_jitter_noise": "input_jitter_noise is not modelled: it changes no shape and no cost"},
        ignored=("original_max_position_embeddings",),  # rope_scaling says it, too
        layers=all_sliding,
        rules=(particulars({}, {"router": lambda values: "sparsemixer"}),),
    ),
    "hunyuan_v1_moe": Architecture(
        constants={**NO_DENSE, "qk_norm": True, "experts.norm_topk_prob": True},
        names={"intermediate_size": (*_EXPERTS, _SHARED_WIDTH)},
        only={
            **HUNYUAN,
            "moe_layer_num_skipped": (0,),
            "routed_scaling_factor": (1.0,),
            **dict.fromkeys(("use_mixed_mlp_moe", "norm_topk_prob"), (True,)),
        },
        same_as={"attention_head_dim": "head_dim"},
        # The first two are what the rule checks, the others of images.
        ignored=HUNYUAN_IGNORED
        | words("""moe_intermediate_size num_shared_expert im_start_id im_end_id im_newline_id
            mask_init_id num_media_embeds text_start_id text_end_id image_token_id video_start_id video_end_id
            vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_token"""),
        rules=(Rule(_hunyuan, ("moe_topk", "num_experts"), _hunyuan_keys),),
    ),
    "aria_text": Architecture(
        constants={**NO_DENSE, "experts.norm_topk_prob": False, "experts.softmax_after_topk": True},
        names={
            **WIDTH,
            "moe_num_experts": ("experts.num_experts",),
            "moe_topk": ("experts.num_experts_per_tok",),
            "mlp_bias": (),
        },
        rules=(shared_experts("moe_num_shared_experts"),),
    ),
    "dbrx": Architecture(
        constants={**NO_DENSE, "norm": "layernorm", "norm_bias": False, "norm_eps": 1e-5, "hidden_act": "silu"},
        defaults={"attn_config": None, "ffn_config": None},
        same_as={
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings",
        },
        noted={"emb_pdrop": "emb_pdrop (dropout of the embeddings) is not modelled"},
        ignored=("num_key_value_heads",),  # of attn_config again
        rules=(Rule(_dbrx, ("attn_config", "ffn_config"), _dbrx_sections),),
    ),
    "granitemoe": Architecture(constants=_GRANITE, names=WIDTH, rules=granite),
    "granitemoeshared": Architecture(
        constants=_GRANITE,
        names={**WIDTH, "shared_intermediate_size": (_SHARED_WIDTH,)},
        rules=granite,
    ),
    "granitemoe_swa": Architecture(
        constants={**_GRANITE, "attention_sinks": True},
        names={**WIDTH, "shared_intermediate_size": (_SHARED_WIDTH,)},
        layers=but_first_of(4),
        rules=(*granite, rope_bases),
    ),
    "ernie4_5_moe": Architecture(
        constants={"experts.e_score_correction_bias": True, "experts.norm_topk_prob": True},
        only={
            "use_bias": (False,),
            "moe_gate": ("topk",),
            "moe_gate_act": (None, "softmax"),
            "moe_use_aux_free": (True,),
        },
        names={
            "moe_num_experts": ("experts.num_experts",),
            "moe_k": ("experts.num_experts_per_tok",),
        },
        noted={
            "num_nextn_predict_layers": "layers of multi-token prediction are left out: their place is not described"
        },
        ignored=("moe_norm_min", "moe_capacity"),  # Transformers' class drops no token
        rules=(
            shared_experts("moe_num_shared_experts"),
            replace(
                experts_at(_ernie),
                keys=("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
                write=_ernie_layers,
            ),
        ),
    ),
    "jetmoe": Architecture(
        constants={
            **NO_DENSE,
            "experts.norm_topk_prob": False,
            "experts.softmax_after_topk": True,
            "experts.result_bias": True,
        },
        names={**WIDTH, "aux_loss_coef": ("experts.router_aux_loss_coef",)},
        same_as={"head_dim": "kv_channels"},
        ignored=("num_attention_heads",),
        layers=always(FULL),
        blocks={FULL: Block("mixture_attention")},
        rules=(Rule(_jetmoe),),
    ),
    "hy_v3": Architecture(
        constants={**SIGMOID, "qk_norm": True, "experts.norm_topk_prob": True, "experts.first_k_dense_replace": 1},
        names={"router_scaling_factor": ("experts.routed_scaling_factor",), "mlp_bias": ()},
        defaults={"num_nextn_predict_layers": 0},
        only={
            "first_k_dense_replace": (1,),
            **dict.fromkeys(
                ("qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"), (True,)
            ),
        },
        same_as={"expert_hidden_dim": "moe_intermediate_size"},
        # In which precision some of it is computed.
        ignored=words("""enable_moe_fp32_combine enable_lm_head_fp32 enable_attention_fp32_softmax use_grouped_mm"""),
        rules=(shared_experts("num_shared_experts"),),
    ),
}
