"""Models with sparse attention over the keys that an indexer chooses: DeepSeek-V3.2, GLM-5, MiniMax-M3."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, INDEXED, Architecture, Kind, Reading, Rule, Values
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, ROUTED_AS_V3, V3
from symconfig.descriptor.architectures.hybrid_blocks import POOLED_ATTENTION
from symconfig.descriptor.architectures.mixer_keys import Block, Size
from symconfig.descriptor.architectures.rules import OWN_PREDICTION, SIGMOID, indexer_types
from symconfig.descriptor.config_rules import with_experts

# Which channels are pairs, the class fixes; which layer's choice those of multi-token prediction take, no cost has.
_IDLE = (*LATENT_IGNORED, "rope_interleave", "indexer_rope_interleave", "index_share_for_mtp_iteration")
_LETTERS = {"F": "full", "S": "shared"}


def _shared_choices(reader: Reading) -> None:
    """Read indexer_types, which names each layer full or shared; older files have a pattern, or step and offset."""
    values, layers = reader.values, reader.fields["num_hidden_layers"]
    listed: Any = values["indexer_types"] or values["index_topk_pattern"]
    if listed is None:
        step, offset = max(values["index_topk_freq"] or 1, 1), values["index_skip_topk_offset"] or 0
        listed = ["full" if max(index - offset + 1, 0) % step == 0 else "shared" for index in range(layers)]
    kinds = [_LETTERS.get(str(one), str(one)) for one in listed] if isinstance(listed, list | str) else []
    if len(kinds) != layers or not {"full", "shared"}.issuperset(kinds):
        return reader.problem("wrong value", "indexer_types", got=listed, need=f"{layers} times full or shared")
    if "shared" in kinds:
        reader.fields["indexer.layers"] = [one == "full" for one in kinds]
        reader.key_of["indexer.layers"] = "indexer_types"


_BLOCKS = "minimax_m3_sparse"


def _of_section(key: str, within: str) -> Size:
    """Return a size of MiniMax-M3's indexer, which its published file has in a section of its own."""
    return Size(
        (key, "sparse_attention_config"),
        lambda values: (values["sparse_attention_config"] or {}).get(within, values[key]),
    )


_RUN, _RUNS = (
    _of_section("index_block_size", "sparse_block_size"),
    _of_section("index_topk_blocks", "sparse_topk_blocks"),
)
# An indexer that chooses blocks of keys. Its budget is in keys.
_BLOCKS_OF_KEYS = Block(
    POOLED_ATTENTION,
    {
        "indexer_n_heads": _of_section("index_n_heads", "sparse_num_index_heads"),
        "indexer_head_dim": _of_section("index_head_dim", "sparse_index_dim"),
        "indexer_budget": Size(
            _RUNS.keys,
            lambda values: _RUN.of(values) * _RUNS.of(values),
            lambda model, keys: {_RUNS.keys[0]: keys // model.mixer(POOLED_ATTENTION).sizes["compress_rate"]},
        ),
        "compress_rate": _RUN,
    },
    {"scores_by_token": ""},
)


def _minimax_m3_layers(values: Values, layers: int) -> list[str]:
    """List the layers' types: a 1 for each sparse layer in the published file's section; none without it."""
    listed = (values["sparse_attention_config"] or {}).get("sparse_attention_freq") or [0] * layers
    return [_BLOCKS if one else FULL for one in listed]


def _minimax_m3(reader: Reading) -> None:
    """Read MiniMax-M3: published files have a 1 for each layer with experts, and lists as long as there are layers."""
    layers, freq = reader.fields["num_hidden_layers"], reader.values["moe_layer_freq"]
    section = (reader.values["sparse_attention_config"] or {}).get("sparse_attention_freq")
    for key, listed in (("moe_layer_freq", freq), ("sparse_attention_config", section)):
        if listed is not None and (not isinstance(listed, list) or len(listed) != layers):
            return reader.problem("wrong value", key, got=repr(listed), need=f"{layers} times 0 or 1")
    if freq is not None and reader.values["mlp_layer_types"] is None:
        with_experts(reader.fields, map(bool, freq))


ARCHITECTURES: dict[str, Architecture] = {
    "minimax_m3_vl_text": Architecture(
        constants={
            **SIGMOID,
            "hidden_act": "clamped_swiglu",
            "qk_norm": True,
            "norm_zero_centered": True,
            "experts.norm_topk_prob": True,
        },
        defaults={"partial_rotary_factor": 1.0, "sparse_attention_config": None, "moe_layer_freq": None},
        names={
            "dense_intermediate_size": ("intermediate_size",),
            "intermediate_size": ("experts.moe_intermediate_size",),
            "shared_intermediate_size": ("experts.shared_expert_intermediate_size",),
        },
        only={
            "hidden_act": ("silu", "swigluoai"),
            "swiglu_limit": (7.0,),
            "swiglu_alpha": (1.702,),
            "n_shared_experts": (1,),
            "scoring_func": ("sigmoid",),
            "qk_norm_type": ("per_head",),
            **dict.fromkeys(("use_gemma_norm", "use_qk_norm", "use_routing_bias"), (True,)),
        },
        noted=OWN_PREDICTION,
        # Its angles follow from partial_rotary_factor, and its own block is read whatever its score.
        ignored=("rotary_dim", "index_local_blocks"),
        layers=_minimax_m3_layers,
        blocks={_BLOCKS: _BLOCKS_OF_KEYS},
        kinds={"sparse_attention_config": Kind.SECTION, "moe_layer_freq": Kind.LAYERS},
        rules=(Rule(_minimax_m3, ("moe_layer_freq",)),),
    ),
    "deepseek_v32": Architecture(
        constants=V3,
        names={"mlp_bias": ()},
        defaults={"num_nextn_predict_layers": 0, "aux_loss_alpha": 0.0},
        only=ROUTED_AS_V3,
        ignored=_IDLE,
        same_as={"num_experts": "n_routed_experts"},
        known_layers=(INDEXED,),
    ),
    "glm_moe_dsa": Architecture(
        constants=V3,
        names={"mlp_bias": ()},
        defaults={
            "num_nextn_predict_layers": 0,
            "index_topk_freq": 1,
            "index_skip_topk_offset": 2,
            "index_topk_pattern": None,
        },
        only={**ROUTED_AS_V3, "moe_router_dtype": ("float32",)},
        ignored=_IDLE,
        same_as={"num_experts": "n_routed_experts"},
        known_layers=(INDEXED,),
        rules=(
            Rule(
                _shared_choices,
                ("indexer_types", "index_topk_freq", "index_skip_topk_offset", "index_topk_pattern"),
                indexer_types,
            ),
        ),
    ),
}

ARCHITECTURES["axk2"] = Architecture(
    constants={**V3, "attention_gate": "channel", "latent.queries_of_both": True},
    names={"gated_norm_rank": ("norm_gate_rank",)},
    defaults={"num_nextn_predict_layers": 0, "first_k_dense_replace": 1},
    only=ROUTED_AS_V3,
    ignored=_IDLE,
    known_layers=(INDEXED,),
)
