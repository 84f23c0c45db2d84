"""Families with several residual streams that each sublayer reads and writes (hyper-connections)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import INDEXED, SLIDING, Architecture, Kind, Reading, Rule, Values
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, V3
from symconfig.descriptor.architectures.mixer_keys import Block, Size, named
from symconfig.descriptor.architectures.rules import indexer_types, particulars
from symconfig.descriptor.model import ModelDescriptor


def _hunyuan_choices(reader: Reading) -> None:
    """Choose the layers with an indexer, where the file does not list them.

    They are the first and every fourth from the second on.
    """
    layers, listed = reader.fields["num_hidden_layers"], reader.values["indexer_types"]
    if listed is None:
        listed = ["full" if index == 0 or (index - 1) % 4 == 0 else "shared" for index in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers or not {"full", "shared"}.issuperset(map(str, listed)):
        return reader.problem("wrong value", "indexer_types", got=listed, need=f"{layers} times full or shared")
    if "shared" in listed:
        reader.fields["indexer.layers"] = [one == "full" for one in listed]
    return None


_HEAVY, _CHOSEN = "heavily_compressed_attention", "compressed_sparse_attention"
_RATES = {_HEAVY: 128, _CHOSEN: 4}  # tokens of a compressed key
_OF_RATIO = {0: SLIDING, 4: _CHOSEN, 128: _HEAVY}
_HASHED = 3  # first layers that choose experts by the token's id


def _deepseek_layers(values: Values, layers: int) -> list[str]:
    """List the layers' types: two heavily compressed ones, then both kinds in turn; or by compress_ratios."""
    if (ratios := values["compress_ratios"]) is not None:
        return [_OF_RATIO.get(ratio, "") for ratio in ratios][:layers]
    return [_CHOSEN if index > 1 and index % 2 else _HEAVY for index in range(layers)]


def _rate(kind: str) -> Size:
    """Return how many tokens become one compressed key, which a section says; its rule writes both of them."""

    def of(values: Values) -> Any:
        return (values["compress_rates"] or {}).get(kind, _RATES[kind])

    return Size(("compress_rates",), of, lambda model, size: {})


_LOW_RANK = named("q_lora_rank o_groups o_lora_rank")
_BLOCKS = {
    SLIDING: Block("shared_kv_attention", _LOW_RANK),
    _HEAVY: Block(_HEAVY, {**_LOW_RANK, "heavy_compress_rate": _rate(_HEAVY)}),
    _CHOSEN: Block(
        _CHOSEN,
        {**_LOW_RANK, **named("index_n_heads index_head_dim index_topk"), "compress_rate": _rate(_CHOSEN)},
    ),
}


def _deepseek(reader: Reading) -> None:
    """Read DeepSeek-V4: every layer has the window; rope turns a fraction or a number of channels.

    First choices are fixed.
    """
    values, fields = reader.values, reader.fields
    groups, heads, rates = values["o_groups"], fields["num_attention_heads"], values["compress_rates"] or {}
    if any(name not in _RATES or type(rate) is not int or rate < 1 for name, rate in rates.items()):
        return reader.problem(
            "wrong value", "compress_rates", got=repr(rates), need=f"a whole number for {_HEAVY} or {_CHOSEN}"
        )
    if heads % groups:
        return reader.problem(
            "heads do not divide among the groups", "o_groups", got=groups, need=f"a divisor of {heads}"
        )
    if fields.pop("sliding_window_pattern", None) is not None or "sliding_window" not in fields:
        fields["sliding_window"] = values["sliding_window"]
    turned, named = values["qk_rope_head_dim"], ("partial_rotary_factor", "rope_parameters")
    if turned is not None and not any(key in reader.data for key in named):
        fields["partial_rotary_factor"] = turned / fields["head_dim"]
    listed, hashed = values["mlp_layer_types"], values["num_hash_layers"]
    layers = fields["num_hidden_layers"]
    fields.pop("experts.layers", None)
    fields |= {"experts.first_k_dense_replace": 0, "experts.moe_layer_freq": 1}
    number = listed.count("hash_moe") if listed else min(layers, _HASHED if hashed is None else hashed)
    own = {"hash_layers": number, "compress_rope_theta": float(values["compress_rope_theta"])}
    fields["particulars"] = [{"name": name, "value": value} for name, value in own.items()]
    return None


def _deepseek_keys(model: ModelDescriptor) -> Mapping[str, Any]:
    called = {block.name: kind for kind, block in _BLOCKS.items()}
    extra = {one.name: one.value for one in model.particulars}
    sizes = {name: size for mixer in model.mixers for name, size in mixer.sizes.items()}
    hashed = int(extra.get("hash_layers", 0))
    return {
        "compress_rates": {
            _HEAVY: sizes.get("heavy_compress_rate", _RATES[_HEAVY]),
            _CHOSEN: sizes.get("compress_rate", _RATES[_CHOSEN]),
        },
        "compress_rope_theta": extra.get("compress_rope_theta", 160000.0),
        "layer_types": [called.get(kind.mixer, _HEAVY) for kind in model.kind_of_layer],
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (model.num_hidden_layers - hashed),
        "partial_rotary_factor": model.partial_rotary_factor,
    }


ARCHITECTURES: dict[str, Architecture] = {
    "hy_v4": Architecture(
        constants={
            **V3,
            "attention_gate": "channel",
            "attention_sinks": True,
            "experts.first_k_dense_replace": 1,
            "streams.mixing": "injected",
        },
        names={"hc_mult": ("streams.count",)},
        only={"hc_magnitude": (2.0,), "hc_eps": (1e-6,), "attention_bias": (False,)},
        ignored=(*LATENT_IGNORED, "learnable_sink_init"),
        known_layers=(INDEXED,),
        rules=(Rule(_hunyuan_choices, ("indexer_types",), indexer_types), particulars({"swiglu_limit": None})),
    ),
    "deepseek_v4": Architecture(
        constants={
            "intermediate_size": 0,
            "attention_sinks": True,
            "experts.e_score_correction_bias": True,
            "streams.mixing": "hyper",
        },
        defaults={"compress_ratios": None, "num_hash_layers": None, "qk_rope_head_dim": None,
                  "partial_rotary_factor": 0.125},
        names={
            "hc_mult": ("streams.count",),
            "hc_sinkhorn_iters": ("streams.iterations",),
            "scoring_func": ("experts.scoring_func",),
            "mlp_bias": (),
            "moe_intermediate_size": ("experts.moe_intermediate_size",),
        },
        only={"hc_eps": (1e-6,), "attention_bias": (False,), "mlp_bias": (False,), "scoring_func": ("sqrtsoftplus",),
              "topk_method": ("noaux_tc",), "n_shared_experts": (1,)},
        ignored=("num_nextn_predict_layers", "expert_dtype"),  # layers that Transformers' class has not
        same_as={"intermediate_size": "moe_intermediate_size"},
        layers=_deepseek_layers,
        known_layers=(),
        blocks=_BLOCKS,
        reads=("compress_ratios",),
        kinds={"compress_ratios": Kind.LAYERS, "compress_rates": Kind.SECTION, "num_hash_layers": Kind.COUNT,
               "qk_rope_head_dim": Kind.COUNT},
        rules=(Rule(_deepseek, ("compress_rope_theta", "num_hash_layers", "qk_rope_head_dim"), _deepseek_keys),
               particulars({"swiglu_limit": None})),
    ),
}  # fmt: skip
