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
_LATENT = "its latent attention has norms, gates or sizes that no other has"
_LOOP = "its layers run several times for each token with one set of weights"
_RECURRENCE = "its layers are a recurrence with gates of its own"
_SHARED = "many of its layers call one attention block and one MLP, whose weights they share"
_STREAMS = "its residual streams are mixed in a way of its own"

REFUSED: Mapping[str, str] = {
    **NO_DECODER,
    **dict.fromkeys(("axk1", "axk2", "dots3_note_text"), _LATENT),
    "bailing_hybrid": "its linear attention's decays and gates come from projections of their own",
    "bitnet": "norms stand within its sublayers, and its weights have three values",
    "diffllama": "its attention is the difference of two",
    "doge": "its values make the mask of its attention, and its stream has learned scales",
    **dict.fromkeys(("dory", "hrm_text"), _LOOP),
    **dict.fromkeys(("gemma3n_text", "hy_v4", "qwen4_exp_text"), _STREAMS),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), "each of its layers has a rope base of its own"),
    **dict.fromkeys(("ctrl", "xglm"), "its positions are a fixed table that is added to the embedding"),
    "laguna": "its attention is gated by a softplus, and layers turn different shares of a head",
    "lfm3": "layers with a window turn whole heads, and the others a part",
    "olmo_hybrid": "layers with attention have their norms behind each sublayer, and the others before",
    "cohere_compass_text": "it gives one vector for a text, and no next token",
    "dbrx": "its file has experts and attention in sections of their own, and it clamps queries, keys and values",
    "flint": "attention multiplies in fp32, and its window layers stand in an order of their own",
    "gpt_neo": "its file lists local and global layers by counts",
    "minimax_m3_vl_text": "each head of its indexer chooses runs of keys",
    "gpt_neox_japanese": "its last layer has a bias that no other has",
    "jetmoe": "its attention is a mixture of experts",
    "mimo_v2_flash": "its layers with a window have twice the heads of keys of the others",
    "minimax": "its layers have lightning attention, which runs block after block",
    "modernbert-decoder": "its first layer lacks a norm, and a projection stands before its head",
    "openai-gpt": "its stream is normed after each sum",
    "persimmon": "its norms of queries and keys have biases",
    **dict.fromkeys(("recurrent_gemma", "rwkv", "xlstm"), _RECURRENCE),
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba"), "its state space is Mamba's first, without heads"),
    **dict.fromkeys(("zamba", "zamba2"), _SHARED),
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
