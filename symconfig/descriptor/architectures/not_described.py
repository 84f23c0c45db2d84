"""Families that no descriptor can say, of transformers and of code beside weights: what has no field and no block."""

from __future__ import annotations

from collections.abc import Mapping

_DRAFTS = "it drafts tokens for another model, whose hidden states and keys it reads"
_INKLING = "convolutions stand on keys, values and sublayers' results, and positions are relative and learned"

REFUSED: Mapping[str, str] = {
    "blt": "it reads bytes, and pools them to patches whose number depends on the text",
    "cpmant": "it reads its prompt in both directions, and all layers share a learned bias for each distance",
    "inkling2_loop_text": f"{_INKLING}, and layers that run several times read what all blocks before them gave",
    "inkling2_text": f"{_INKLING}, and each layer reads what all blocks before it gave",
    "inkling_text": _INKLING,
    "kimi_k3": "each layer reads what blocks before it gave, and its experts stand behind a projection and a norm",
    "nemotron-nas": "a search has given each layer its own width and heads, or no attention at all",
    **dict.fromkeys(("step3p5", "step3p7"), "its layers with a window have more heads than the others"),
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
}
