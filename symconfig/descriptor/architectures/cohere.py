"""Cohere's Command-R: attention and MLP read one LayerNorm without a bias, and logits are scaled."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Reading, Rule
from symconfig.descriptor.architectures.rules import always, every, rope_with_window, scale

COHERE = {"norm": "layernorm", "norm_bias": False, "parallel_residual": True, "shared_input_norm": True}
logits = scale("logits_multiplier", "logit_scale")

# Of files published before transformers had the class; each says what the class does.
_PUBLISHED = {
    "position_embedding_type": ("rope_gptj",),
    "rotary_pct": (1.0,),
    "use_embedding_sharing": (True,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (True,),
    "use_qk_norm": (False,),
    "order_of_interleaved_layers": ("local_attn_first",),
    "layer_switch": (4,),
}


def _compass(reader: Reading) -> None:
    """Read a section for each type of layer, which is null where layers of this type have no rope."""
    section = reader.data.get("rope_parameters")
    if not isinstance(section, Mapping) or not section:
        return
    without = {kind for kind in (FULL, SLIDING) if kind in section and section[kind] is None}
    window = reader.fields.get("sliding_window_pattern")
    if (without and window is None) or len(without) > 1:
        reader.fields["position"] = "none"
    elif without and window is not None:
        reader.fields["rope_layers"] = [on != (SLIDING in without) for on in window]


ARCHITECTURES: dict[str, Architecture] = {
    "cohere": Architecture(
        constants={**COHERE, "qk_norm_of": "each_head"},
        names={"use_qk_norm": ("qk_norm",)},
        ignored=("model_max_length",),
        rules=(logits,),
    ),
    "cohere2": Architecture(
        constants=COHERE,
        defaults={"sliding_window_pattern": 4},
        only=_PUBLISHED,
        ignored=("model_max_length", "head_dim", "_sliding_window_pattern"),
        layers=every(4),
        rules=(logits, rope_with_window),
    ),
    "cohere_compass_text": Architecture(
        constants=COHERE,
        defaults={"rope_theta": 10000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None},
        ignored=("head_dim", "pooling"),
        layers=always(FULL),
        rules=(logits, Rule(_compass)),
    ),
}
