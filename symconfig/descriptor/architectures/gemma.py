"""Google's Gemma."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.layer_rules import alternate, every

_GEMMA2 = {"norm_zero_centered": True, "norm_after_sublayer": True, "scale_embeddings": True}
_ONLY = {"use_bidirectional_attention": (None, False)}
_WINDOW = {"sliding_window_size": "sliding_window"}  # of files that were published before transformers had the class

ARCHITECTURES: dict[str, Architecture] = {
    "gemma2": Architecture(constants=_GEMMA2, only=_ONLY, layers=alternate, ignored=("hidden_act",), same_as=_WINDOW),
    "gemma3_text": Architecture(
        constants={**_GEMMA2, "qk_norm": True},
        defaults={"sliding_window_pattern": 6},
        only=_ONLY,
        layers=every(6),
        ignored=("hidden_act", "_sliding_window_pattern"),
    ),
}
