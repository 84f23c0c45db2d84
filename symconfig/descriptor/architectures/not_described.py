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

_INKLING = "convolutions stand on keys, values and sublayers' results, and positions are relative and learned"

REFUSED: Mapping[str, str] = {
    "blt": "it reads bytes, and pools them to patches whose number depends on the text",
    "cpmant": "it reads its prompt in both directions, and all layers share a learned bias for each distance",
    "doge": "what a sublayer adds is weighed by channel, and attention masks keys by what their values give",
    "inkling2_text": _INKLING,
    "inkling_text": _INKLING,
    "gemma3n_text": _STREAMS,
    "gemma3n": _STREAMS,
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "hrm_text": "two stacks of layers run several times over for each token, the earlier turns without gradients",
    **dict.fromkeys(
        ("qwen4_exp", "qwen4_exp_text"),
        "it has gated streams, embeddings of n-grams in some layers, and an indexer before grouped-query attention",
    ),
    "rwkv": "its recurrence over keys and values (WKV) has no block",
    "xlstm": "its recurrence over matrices (mLSTM) has no block",
    **dict.fromkeys(
        ("zamba", "zamba2"),
        "many layers share one or two attention blocks, which are held once and read the embedding again",
    ),
}
