"""Families of transformers that no descriptor can say yet, each with the reason: what of it has no field and no block.

Any file of this folder may have a table REFUSED; a family that one of them reads is not refused.
"""

from __future__ import annotations

from collections.abc import Mapping

_DRAFTS = "it drafts tokens for another model, whose hidden states and keys it reads"
_STREAMS = (
    "it has four streams that are predicted and corrected at each layer (AltUp), a second low-rank path beside "
    "attention (LAuReL), an embedding for each layer, and layers that share keys and values"
)

REFUSED: Mapping[str, str] = {
    "blt": "it reads bytes, and pools them to patches whose number depends on the text",
    "cpmant": "it reads its prompt in both directions, and all layers share a learned bias for each distance",
    "gemma3n_text": _STREAMS,
    "gemma3n": _STREAMS,
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "hrm_text": "two stacks of layers run several times over for each token, the earlier turns without gradients",
}
