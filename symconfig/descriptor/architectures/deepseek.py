"""DeepSeek's latent attention, indexer and router, and what has some of them: Kimi-K2, GLM-5, LongCat, MiniMax-M3.

Hyper-connections (DeepSeek-V4) are several residual streams that each sublayer reads and writes.
"""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures import rules
from symconfig.descriptor.architectures.architecture import (
    INDEXED,
    SLIDING,
    Architecture,
    Block,
    Reading,
    Rule,
    Values,
    family,
    link,
    named,
)
from symconfig.descriptor.architectures.dense import MINICPM
from symconfig.descriptor.architectures.rules import NO_DENSE, QKV_BIAS, SIGMOID
from symconfig.descriptor.model import ModelDescriptor

MLA = "attention=mla "
V3 = MLA + SIGMOID
LATENT_IGNORED = "head_dim qk_head_dim "
ROUTED_AS_V3 = "scoring_func=sigmoid moe_layer_freq=1 topk_method=noaux_tc "
# Which channels are pairs, the class fixes; which layer's choice those of multi-token prediction take, no cost has.
_IDLE = LATENT_IGNORED + "rope_interleave indexer_rope_interleave index_share_for_mtp_iteration "
_NO_BIAS = "mlp_bias= "


def _longcat(reader: Reading) -> None:
    """Double num_hidden_layers, for each layer of LongCat's class has attention and MLP twice; a null q_lora_rank is
    recorded as a problem instead.
    """
    if reader.values["q_lora_rank"] is None:
        return reader.problem("LongCat's queries are low-rank", "q_lora_rank", got="null", need="a whole number")
    reader.fields["num_hidden_layers"] *= 2


# Of low-rank queries, and of keys and values.
_LOW_RANK_SCALES = rules.particulars(
    {},
    {
        "mla_scale_q_lora": lambda values: (values["hidden_size"] / (values["q_lora_rank"] or 1)) ** 0.5,
        "mla_scale_kv_lora": lambda values: (values["hidden_size"] / values["kv_lora_rank"]) ** 0.5,
    },
)


# What the files of Ling say beside what their classes read. Angles follow from partial_rotary_factor, and windows are
# off.
_BAILING = """use_bias=false norm_head=false norm_softmax=false use_sliding_window=false embedding_dropout=0.0
    output_dropout=0.0 use_rmsnorm moe_router_enable_routed_scaling moe_router_enable_shared_expert """
_SHARED = "moe_shared_expert_intermediate_size"
_BAILING_IGNORED = f"rotary_dim max_window_layers mtp_loss_scaling_factor router_dtype sliding_window {_SHARED} "


def _shared_as_routed(reader: Reading) -> None:
    """Report a problem if the file states a width of shared experts other than the routed experts'; sets nothing."""
    given, routed = reader.data.get(_SHARED), reader.values["moe_intermediate_size"]
    if given not in (None, routed):
        reader.problem("shared experts are as wide as the others", _SHARED, got=given, need=str(routed))


def _experts_per_tok(chosen: Any, reader: Reading) -> int:
    """Return num_experts_per_tok; 6, DeepSeek-V2's, if it is null or 0, with a note appended to the reader for null."""
    if chosen is None:
        reader.notes.append("num_experts_per_tok is null, with which no token has experts: 6 is assumed, as of "
                            "DeepSeek-V2")  # fmt: skip
    return chosen or 6


_LETTERS = {"F": "full", "S": "shared"}


def _glm_indexers(reader: Reading) -> None:
    """Set indexer.layers, one bool per layer, and its key_of, from indexer_types: true for "full" (or F), an indexer of
    the layer's own, false for "shared" (or S); nothing if every layer has its own.

    Without that list (null or empty) index_topk_pattern counts, and without both index_topk_freq: full are the layers
    before index_skip_topk_offset (null: 0) and from it - 1 on every index_topk_freq-th (null or below 1: all). Other
    types, or not one per layer, are recorded as a problem.
    """
    values, layers = reader.values, reader.fields["num_hidden_layers"]
    step, offset = max(values["index_topk_freq"] or 1, 1), values["index_skip_topk_offset"] or 0
    usual = ["full" if max(index - offset + 1, 0) % step == 0 else "shared" for index in range(layers)]
    given: Any = values["indexer_types"] or values["index_topk_pattern"] or usual
    kinds = [_LETTERS.get(str(one), str(one)) for one in given] if isinstance(given, list | str) else []
    if len(kinds) != layers or not {"full", "shared"}.issuperset(kinds):
        return reader.problem("wrong value", "indexer_types", got=given, need=f"{layers} times full or shared")
    if "shared" in kinds:
        reader.fields["indexer.layers"] = [one == "full" for one in kinds]
        reader.key_of["indexer.layers"] = "indexer_types"


def _indexer_types(model: ModelDescriptor) -> dict[str, Any]:
    """Return indexer_types, of which all are full for a model without a list of its own indexers."""
    own = model.indexer.layers if model.indexer else None
    return {"indexer_types": ["full" if one else "shared" for one in own or (True,) * model.num_hidden_layers]}


_HEAVY, _CHOSEN = "heavily_compressed_attention", "compressed_sparse_attention"
_OF_RATIO = {0: SLIDING, 4: _CHOSEN, 128: _HEAVY}  # tokens of a compressed key
_RATE = "compress_rates."
_LOW_RANK = named("q_lora_rank o_groups o_lora_rank")
_COMPRESSED = {
    SLIDING: Block("shared_kv_attention", _LOW_RANK),
    _HEAVY: Block(_HEAVY, {**_LOW_RANK, "heavy_compress_rate": _RATE + _HEAVY}),
    _CHOSEN: Block(
        _CHOSEN, _LOW_RANK | named("index_n_heads index_head_dim index_topk") | {"compress_rate": _RATE + _CHOSEN}
    ),
}


def _deepseek_v4_layers(values: Values, layers: int) -> list[str]:
    """Return each layer's type by compress_ratios, "" for an unknown ratio; ratios beyond the layers are cut off.

    Without it: two heavily compressed layers, then heavily compressed and compressed sparse in turn.
    """
    if (ratios := values["compress_ratios"]) is not None:
        return [_OF_RATIO.get(ratio, "") for ratio in ratios][:layers]
    return [_CHOSEN if index > 1 and index % 2 else _HEAVY for index in range(layers)]


def _deepseek_v4(reader: Reading) -> None:
    """Set DeepSeek-V4's window, rope's fraction, experts of all layers, and two particulars.

    Heads that o_groups does not divide are recorded as a problem, and nothing is set. The window is of all layers,
    without a pattern. The fraction is qk_rope_head_dim / head_dim, unless the file states another. Particulars:
    hash_layers, the number of layers that hash tokens to experts (of mlp_layer_types, else num_hash_layers, default 3,
    at most all), and compress_rope_theta.
    """
    values, fields = reader.values, reader.fields
    groups, heads = values["o_groups"], fields["num_attention_heads"]
    if heads % groups:
        need = f"a divisor of {heads}"
        return reader.problem("heads do not divide among the groups", "o_groups", got=groups, need=need)
    if fields.pop("sliding_window_pattern", None) is not None or "sliding_window" not in fields:
        fields["sliding_window"] = values["sliding_window"]
    turned = values["qk_rope_head_dim"]
    if turned is not None and not {"partial_rotary_factor", "rope_parameters"} & reader.data.keys():
        fields["partial_rotary_factor"] = turned / fields["head_dim"]
    listed, hashed = values["mlp_layer_types"], values["num_hash_layers"]
    fields.pop("experts.layers", None)
    fields |= {"experts.first_k_dense_replace": 0, "experts.moe_layer_freq": 1}
    number = listed.count("hash_moe") if listed else min(fields["num_hidden_layers"], 3 if hashed is None else hashed)
    own = {"hash_layers": number, "compress_rope_theta": float(values["compress_rope_theta"])}
    fields["particulars"] = [{"name": name, "value": value} for name, value in own.items()]


def _deepseek_v4_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return layer_types, mlp_layer_types, partial_rotary_factor and compress_rope_theta (default 160000.0).

    A layer with another mixer than DeepSeek-V4's is heavily compressed. The first hash_layers (a particular, default 0)
    are "hash_moe", the others "moe".
    """
    called = {block.name: kind for kind, block in _COMPRESSED.items()}
    extra = {one.name: one.value for one in model.particulars}
    hashed = int(extra.get("hash_layers", 0))
    return {
        "compress_rope_theta": extra.get("compress_rope_theta", 160000.0),
        "layer_types": [called.get(kind.mixer, _HEAVY) for kind in model.kind_of_layer],
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (model.num_hidden_layers - hashed),
        "partial_rotary_factor": model.partial_rotary_factor,
    }


_DEEPSEEK_V3: dict[str, Any] = {
    "constants": V3,
    "defaults": "aux_loss_alpha=0.0",
    "only": ROUTED_AS_V3 + "rope_interleave",
    "ignored": LATENT_IGNORED,
    "same_as": "num_mtp_layers=num_nextn_predict_layers",
}
_SARVAM_MOE: dict[str, Any] = {
    "names": QKV_BIAS + "use_qk_norm=qk_norm ",
    "only": ROUTED_AS_V3,
    "same_as": "num_mtp_layers=num_nextn_predict_layers",
}

ARCHITECTURES: dict[str, Architecture] = {
    "deepseek_v2": family(MLA + "experts.norm_topk_prob=false", names=_NO_BIAS,
        defaults="aux_loss_alpha=0.0",  # a key of the published files that transformers' class has not
        only="""norm_topk_prob=false scoring_func=softmax moe_layer_freq=1
            topk_method=greedy|group_limited_greedy""", ignored=LATENT_IGNORED, groups_with="group_limited_greedy",
        rules=(link("num_experts_per_tok", "experts.num_experts_per_tok", _experts_per_tok,
            lambda model: model.experts and model.experts.num_experts_per_tok),)),
    "deepseek_v3": family(**_DEEPSEEK_V3),
    # Kimi-K2's files name a class of their own, whose code is DeepSeek's (its deploy_guidance.md says so).
    "kimi_k2": family(**_DEEPSEEK_V3, of_class="deepseek_v3"),
    "sarvam_mla": family(V3, only=ROUTED_AS_V3 + "rope_interleave", ignored=LATENT_IGNORED + "q_head_dim",
        same_as="num_mtp_layers=num_nextn_predict_layers"),
    "glm4_moe_lite": family(V3 + "experts.first_k_dense_replace=1",
        defaults="num_nextn_predict_layers=0 first_k_dense_replace=1", only=ROUTED_AS_V3, ignored=LATENT_IGNORED),
    "longcat_flash": family(MLA + "experts.norm_topk_prob=false experts.e_score_correction_bias experts.shortcut",
        names="""num_layers=num_hidden_layers
            ffn_hidden_size=intermediate_size,experts.shared_expert_intermediate_size
            expert_ffn_hidden_size=experts.moe_intermediate_size moe_topk=experts.num_experts_per_tok
            zero_expert_num=experts.zero_experts""",
        only="attention_method=MLA zero_expert_type=identity router_bias=false mla_scale_q_lora mla_scale_kv_lora",
        ignored=LATENT_IGNORED,
        rules=(Rule(_longcat, "", lambda model: {"num_layers": model.num_hidden_layers // 2}),
            rules.experts_at(lambda values, layers: [index % 2 == 0 for index in range(layers)]),
            _LOW_RANK_SCALES)),
    "minicpm3": family(MLA, ignored=LATENT_IGNORED,
        defaults="v_head_dim=HEAD_DIM", rules=MINICPM),
    "youtu": family(MLA, ignored=LATENT_IGNORED + "embedding_initializer_range",
        rules=(link("initializer_range", "initializer_range",
            lambda given, reader: 2 / (5 * reader.fields["hidden_size"]) ** 0.5 if given is None else given,
            lambda model: model.initializer_range),)),
    "glm4_moe": family(SIGMOID, **_SARVAM_MOE),
    "sarvam_moe": family(SIGMOID, **_SARVAM_MOE),
    "bailing_moe": family(
        **_SARVAM_MOE
        | {
            "names": _SARVAM_MOE["names"]
            + """score_function=experts.scoring_func
                moe_router_enable_expert_bias=experts.e_score_correction_bias""",
            "only": _BAILING,
        },
        # What its first release had, and its files do not say; those of Ling 2.0 say what they have instead.
        defaults="""score_function=softmax moe_router_enable_expert_bias=false use_qk_norm=false head_dim=HEAD_DIM
            first_k_dense_replace=0 n_shared_experts=0 n_group=null topk_group=null rope_theta=10000.0
            routed_scaling_factor=1.0""", ignored=_BAILING_IGNORED, rules=(Rule(_shared_as_routed),),
        of_class="sarvam_moe"),
    "solar_open": family(SIGMOID + NO_DENSE, names=QKV_BIAS, defaults="partial_rotary_factor=1.0",
        only=ROUTED_AS_V3 + "first_k_dense_replace=0 use_qk_norm=false"),
    "dots1": family(SIGMOID + "qk_norm",
        # Its published file gives the name of the choice where others have that of the scores.
        only=ROUTED_AS_V3 + "scoring_func=sigmoid|noaux_tc",
        layers=rules.by(lambda values, i, _: i >= values["max_window_layers"])),
    "deepseek_v32": family(V3, names=_NO_BIAS, defaults="num_nextn_predict_layers=0 aux_loss_alpha=0.0",
        only=ROUTED_AS_V3, ignored=_IDLE, same_as="num_experts=n_routed_experts", known_layers=(INDEXED,)),
    "glm_moe_dsa": family(V3, names=_NO_BIAS,
        defaults="""num_nextn_predict_layers=0 index_topk_freq=1 index_skip_topk_offset=2 index_topk_pattern=null""",
        only=ROUTED_AS_V3 + "moe_router_dtype=float32", ignored=_IDLE, same_as="num_experts=n_routed_experts",
        known_layers=(INDEXED,),
        rules=(Rule(_glm_indexers, "indexer_types index_topk_freq index_skip_topk_offset index_topk_pattern",
            _indexer_types),)),
    "deepseek_v4": family(NO_DENSE + "attention_sinks experts.e_score_correction_bias ",
        defaults=f"""compress_ratios=null num_hash_layers=null qk_rope_head_dim=null partial_rotary_factor=0.125
            {_RATE}{_HEAVY}=128 {_RATE}{_CHOSEN}=4""",
        names=_NO_BIAS + "hc_mult=streams.count hc_sinkhorn_iters=streams.iterations scoring_func=experts.scoring_func",
        only="""hc_eps=1e-6 attention_bias=false mlp_bias=false scoring_func=sqrtsoftplus topk_method=noaux_tc
            n_shared_experts=1""",
        ignored="num_nextn_predict_layers expert_dtype",  # layers that Transformers' class has not
        layers=_deepseek_v4_layers, known_layers=(), blocks=_COMPRESSED, reads="compress_ratios",
        types="compress_ratios=LAYERS num_hash_layers=COUNT qk_rope_head_dim=COUNT",
        rules=(Rule(_deepseek_v4, "compress_rope_theta num_hash_layers qk_rope_head_dim", _deepseek_v4_keys),
            rules.particulars({"swiglu_limit": None}))),
}  # fmt: skip
