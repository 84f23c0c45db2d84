"""Cohere's Command-R: attention and MLP read one LayerNorm without a bias, and logits are scaled."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.layer_rules import every
from symconfig.descriptor.architectures.structure_rules import rope_with_window, rules, scale
from symconfig.descriptor.model import ModelDescriptor

COHERE = {"norm": "layernorm", "norm_bias": False, "parallel_residual": True, "shared_input_norm": True}
logits = scale("logits_multiplier", "logit_scale")


def _keys(model: ModelDescriptor) -> dict[str, Any]:
    return {"logit_scale": model.logits_multiplier or 1.0}


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

ARCHITECTURES: dict[str, Architecture] = {
    "cohere": Architecture(
        constants={**COHERE, "qk_norm_of": "each_head"},
        names={"use_qk_norm": ("qk_norm",)},
        ignored=("model_max_length",),
        reads=("logit_scale",),
        rule=logits,
        writes=_keys,
    ),
    "cohere2": Architecture(
        constants=COHERE,
        defaults={"sliding_window_pattern": 4},
        only=_PUBLISHED,
        ignored=("model_max_length", "head_dim", "_sliding_window_pattern"),
        layers=every(4),
        reads=("logit_scale",),
        rule=rules(logits, rope_with_window),
        writes=_keys,
    ),
}
