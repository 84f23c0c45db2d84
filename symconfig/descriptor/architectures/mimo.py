"""Xiaomi's MiMo-V2-Flash, whose layers with a window have twice the key/value heads of the others, and MiMo-7B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Kind, Reading, Rule, Values
from symconfig.descriptor.architectures.deepseek import ROUTED_AS_V3
from symconfig.descriptor.architectures.mixer_keys import Block, Size
from symconfig.descriptor.architectures.rules import SIGMOID, particulars, qwen2
from symconfig.descriptor.model import ModelDescriptor

_TIMES = 2  # as many key/value heads have layers with a window


def _layers(values: Values, layers: int) -> list[str]:
    """List the layers' types: the first layer, and then every sixth, have no window."""
    return [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(layers)]


_BOTH = ("head_dim", "v_head_dim")  # of all layers, too
_PUBLISHED = {
    **dict.fromkeys(("hybrid_layer_pattern", "moe_layer_freq"), Kind.LAYERS),
    **dict.fromkeys(
        ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"), Kind.COUNT
    ),
    "sliding_window_size": Kind.COUNT,
}
_WIDE = Block(
    "wide_attention",
    {
        "wide_key_value_heads": "num_key_value_heads",
        "wide_head_dim": "head_dim",
        "wide_value_dim": "v_head_dim",
        "wide_rotary_dim": Size(
            (), lambda values: int(values["head_dim"] * values["partial_rotary_factor"]), lambda model, turned: {}
        ),
    },
)


def _published(reader: Reading) -> None:
    """Check what the published file says of layers with a window and of experts, which the class takes for granted.

    Its window does not count the query itself.
    """
    values, number = reader.values, reader.fields["num_hidden_layers"]
    heads, keys = values["num_attention_heads"], values["num_key_value_heads"]
    granted = {
        "hybrid_layer_pattern": [int(kind == SLIDING) for kind in _layers(values, number)],
        "moe_layer_freq": [int(index > 0) for index in range(number)],
        "swa_num_attention_heads": heads,
        "swa_num_key_value_heads": _TIMES * keys,
        "swa_head_dim": values["head_dim"],
        "swa_v_head_dim": values["v_head_dim"],
    }
    for key, built in granted.items():
        if values[key] not in (None, built):
            reader.problem("is not what Transformers' class builds", key, got=values[key], need=str(built))
    if values["sliding_window_size"] is not None and "sliding_window" in reader.fields:
        reader.fields["sliding_window"] = values["sliding_window_size"] + 1


def _mimo(reader: Reading) -> None:
    """Read MiMo, whose first layer is dense. Each kind of layer may turn another part of its heads."""
    fields, number = reader.fields, reader.fields["num_hidden_layers"]
    fields["num_key_value_heads"] = _TIMES * reader.values["num_key_value_heads"]
    if not reader.values["mlp_layer_types"]:
        fields["experts.first_k_dense_replace"] = min(1, number)
    for mixer in fields.get("mixers", ()):
        mixer["sizes"]["wide_rotary_dim"] = int(fields["head_dim"] * fields["partial_rotary_factor"])
    sections = reader.data.get("rope_parameters")
    local = (sections.get(SLIDING) or {}) if isinstance(sections, Mapping) else {}
    fields["partial_rotary_factor"] = local.get("partial_rotary_factor", reader.values["partial_rotary_factor"])


def _keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the heads of layers without a window, and rope's sections, which the class reads alone."""
    sizes = next((one.sizes for one in model.mixers if one.block == _WIDE.name), {})
    local = model.partial_rotary_factor
    turned = sizes.get("wide_rotary_dim", model.rotary_dim)
    whole = local if turned == model.rotary_dim else turned / model.head_dim
    bases = {FULL: (model.rope_theta, whole), SLIDING: (model.rope_local_base_freq or model.rope_theta, local)}
    rope = {
        kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
        for kind, (base, share) in bases.items()
    }
    return {"num_key_value_heads": model.num_key_value_heads // _TIMES, "rope_parameters": rope}


ARCHITECTURES: dict[str, Architecture] = {
    "mimo_v2_flash": Architecture(
        constants={**SIGMOID, "attention_sinks": True},
        names={
            "head_dim": ("head_dim",),
            "attention_bias": ("qkv_bias",),
            "num_key_value_heads": (),
            "v_head_dim": ("v_head_dim",),
        },
        defaults=dict.fromkeys(_PUBLISHED),
        only={
            "scoring_func": ROUTED_AS_V3["scoring_func"],
            "topk_method": ROUTED_AS_V3["topk_method"],
            "n_shared_experts": (None, 0),
            "layernorm_epsilon": (1e-5,),
            "swa_rope_theta": (1e4,),
            "add_swa_attention_sink_bias": (True,),
        },
        ignored=("attention_chunk_size",),  # its window again
        layers=_layers,
        blocks={FULL: _WIDE},
        kinds={**_PUBLISHED, "routed_scaling_factor": Kind.NUMBER},
        rules=(
            Rule(_published, tuple(_PUBLISHED)),
            Rule(_mimo, (), _keys),
            particulars({"attention_value_scale": 1.0}),
        ),
    ),
    # MiMo-7B: Qwen 2 with a layer of multi-token prediction, and a name for the bias that Qwen 2 has without saying it.
    "mimo": Architecture(
        constants={"qkv_bias": True},
        defaults={"num_nextn_predict_layers": 0},
        only={"attention_bias": (True,)},
        layers=qwen2,
        of_class="qwen2",
    ),
}
