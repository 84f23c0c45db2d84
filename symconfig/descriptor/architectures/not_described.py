"""Families that no descriptor can say, of transformers and of code beside weights: what has no field and no block."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.descriptor.architectures.keys import words

_DRAFTS = "it drafts tokens for another model, whose hidden states and keys it reads"
_INKLING = "convolutions stand on keys, values and sublayers' results, and positions are relative and learned"

_ENCODER = "its layers are an encoder's, with norms behind each sum, and its head has layers of its own"
_TWO_STACKS = "its decoder reads an encoder by cross-attention"

# Registered in transformers for causal modelling, and no decoder of text alone.
NO_DECODER: Mapping[str, str] = {
    **dict.fromkeys(
        words(
            """bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta
            roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xmod"""
        ),
        _ENCODER,
    ),
    **dict.fromkeys(
        words(
            """bart bigbird_pegasus blenderbot blenderbot-small marian mbart mllama musicgen musicgen_melody mvp pegasus
            plbart prophetnet trocr whisper"""
        ),
        _TWO_STACKS,
    ),
    "emu3": "a quantiser inside it turns images to tokens",
    "git": "its tokens read those of images before them in both directions, in an encoder's layers",
    "moshi": "a second decoder reads its states, for the codes of each step",
    "reformer": "attention is by hashes of its queries, and layers are reversible",
    "xlnet": "two streams go through its layers, in orders that are permuted",
}
REFUSED: Mapping[str, str] = {
    **NO_DECODER,
    "beam": "the gate on attention has a bias for each head, and results of sublayers are added at scales by depth",
    "blt": "it reads bytes, and pools them to patches whose number depends on the text",
    "cpmant": "it reads its prompt in both directions, and all layers share a learned bias for each distance",
    "inkling2_loop_text": f"{_INKLING}, and layers that run several times read what all blocks before them gave",
    "inkling2_text": f"{_INKLING}, and each layer reads what all blocks before it gave",
    "inkling_text": _INKLING,
    "ernie4_5_vl_moe": "experts for text and for images are of two widths, side by side in one layer",
    "glm5_next": "its indexer chooses among pooled keys, and the streams of its hyper-connections end in their mean",
    "hy_v4_vl": "a convolution merges its tower's patches, behind a head that ends each row of an image",
    "kimi_k3": "each layer reads what blocks before it gave, and its experts stand behind a projection and a norm",
    "mistral_large4": "an indexer reads queries of no low rank, and layers share the latent keys of others",
    "muse_glimmer": "queries and keys go through a norm without weights and a fixed scale, and so do embeddings",
    "muse_spark": "learned gates mix each sublayer's result with the stream, and experts have a width of their own",
    "zaya": "convolutions stand on queries and keys, and each router reads what that of the layer before gave",
    "nemotron-nas": "a search has given each layer its own width and heads, or no attention at all",
    **dict.fromkeys(("step3p5", "step3p7"), "its layers with a window have more heads than the others"),
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
}
