"""dots.3 (Dots 3 Note): latent attention with gates by head, over keys that an indexer chooses or in a window."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import INDEXED, SLIDING, Architecture, Reading, Rule, Values
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, ROUTED_AS_V3, V3, lengthened
from symconfig.descriptor.architectures.mixer_keys import Block
from symconfig.descriptor.architectures.rules import particulars, sizes_by_layer
from symconfig.descriptor.model import ModelDescriptor

# Sizes of layers with a window as per_layer_config spells them, with the class's defaults; swa_ stands before them in
# the published files.
_SIZES = {
    "num_attention_heads": ("window_heads", 64),
    "q_lora_rank": ("window_q_lora_rank", 1024),
    "kv_lora_rank": ("window_kv_lora_rank", 1024),
    "qk_nope_head_dim": ("window_qk_nope_head_dim", 192),
    "qk_rope_head_dim": ("window_qk_rope_head_dim", 64),
    "v_head_dim": ("window_v_head_dim", 128),
}
_BLOCK = Block("window_latent_attention", {name: f"swa_{key}" for key, (name, _) in _SIZES.items()})
_SWA = {f"swa_{key}": size for key, (_, size) in _SIZES.items()}
_IDLE = ("num_key_value_heads", "head_dim")  # as many as heads; the sum of both parts of a query


def _layers(values: Values, layers: int) -> list[str]:
    return [INDEXED if i < 2 or i % 4 == 1 else SLIDING for i in range(layers)]


def _per_layer(reader: Reading) -> None:
    """Read per_layer_config, sizes by layer's number: those of the layers with a window, all alike."""
    need = f"one {', '.join(_SIZES)} for every layer with a window"
    mixer, stated = sizes_by_layer(reader, (*_SIZES, *_IDLE), need)
    if stated:
        mixer["sizes"] = mixer["sizes"] | {_SIZES[key][0]: size for key, size in stated.items() if key in _SIZES}


def _shared(reader: Reading) -> None:
    values = reader.values
    width = values["shared_experts_intermediate_size"] * (values["n_shared_experts"] or 0)
    reader.fields["experts.shared_expert_intermediate_size"] = width


def _keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return what heads of layers with a window are together, the shared expert's width, and rope's sections."""
    sizes = next((one.sizes for one in model.mixers if one.block == _BLOCK.name), None)
    keys: dict[str, Any] = {"head_dim": 4 * model.rotary_dim}  # of which the class takes rope's part as a fraction
    if sizes is not None:
        keys["swa_num_key_value_heads"] = sizes["window_heads"]
        keys["swa_head_dim"] = sizes["window_qk_nope_head_dim"] + sizes["window_qk_rope_head_dim"]
    if model.experts is not None:
        width = model.experts.shared_expert_intermediate_size
        keys |= {"n_shared_experts": 1, "shared_experts_intermediate_size": width}
    bases = {INDEXED: model.rope_theta, SLIDING: model.rope_local_base_freq or model.rope_theta}
    kinds = {SLIDING if kind.mixer == _BLOCK.name else INDEXED for kind in model.kind_of_layer}
    sections = {kind: {"rope_type": "default", "rope_theta": bases[kind]} for kind in sorted(kinds)}
    return keys | {"rope_parameters": sections}


ARCHITECTURES: dict[str, Architecture] = {
    "dots3_note_text": Architecture(
        constants={**V3, "attention_gate": "head", "latent.rope_key_norm": True},
        names={"mlp_bias": ()},
        defaults={
            "first_k_dense_replace": 1, "rope_theta": 8e7, "rope_local_base_freq": 5e4, "sliding_window": 512,
            "per_layer_config": None, **_SWA,
        },
        only={**ROUTED_AS_V3, "use_dsa": (True,), "use_sliding_window": (True,)},
        ignored=(*LATENT_IGNORED, *(f"swa_{name}" for name in _IDLE)),
        same_as={
            "moe_shared_expert_intermediate_size": "shared_experts_intermediate_size",
            "sliding_window_size": "sliding_window",
            "swa_rope_theta": "rope_local_base_freq",
        },
        known_layers=(INDEXED,),
        layers=_layers,
        blocks={SLIDING: _BLOCK},
        rules=(
            Rule(_per_layer, ("per_layer_config",)),
            Rule(_shared, ("shared_experts_intermediate_size",), _keys),
            particulars({}, {"q_lora_scale": lengthened("q_lora_rank"), "kv_lora_scale": lengthened("kv_lora_rank")}),
        ),
    ),
}  # fmt: skip
