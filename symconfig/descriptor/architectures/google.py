"""Google's Gemma 1 and VaultGemma; Gemma 2 and 3 are in gemma.py."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.layer_rules import alternate

_GEMMA = {"norm_zero_centered": True, "scale_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}

ARCHITECTURES: dict[str, Architecture] = {
    "gemma": Architecture(
        constants=_GEMMA,
        # Files of the first release say gelu and mean its approximation (GemmaConfig.__post_init__).
        only={
            "hidden_act": ("gelu", "gelu_pytorch_tanh"),
            "hidden_activation": (None, "gelu_pytorch_tanh"),
            "use_bidirectional_attention": (None, False),
        },
        ignored=("hidden_act",),
    ),
    "vaultgemma": Architecture(
        constants={"norm_zero_centered": True, "scale_embeddings": True}, layers=alternate, ignored=("hidden_act",)
    ),
}
