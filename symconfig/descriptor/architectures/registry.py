"""What each architecture's `config.json` means: keys with the defaults of transformers' config classes, as data.

Each file lists families that are kin, in a table `ARCHITECTURES`. Defaults are those of transformers' own classes
(`transformers.json`, written by tools/generate/families.py); `qwen` is the configuration_qwen.py beside the weights of
Qwen/Qwen-7B. A key that is in none of an architecture's tables is an error: it may change the model.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.keys import around, defaults, families, row_of, words
from symconfig.descriptor.architectures.multimodal import MULTIMODAL

FOLDER = str(Path(__file__).parent)
# Families that no descriptor can say, of transformers and of code beside weights, and why.
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


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return every readable architecture by model_type, cached: all tables, completed by their class's defaults.

    Multimodal models around a text model with a table are added; a table of the same model_type takes precedence.
    """
    modules = (importlib.import_module(f"{__package__}.{one.name}") for one in pkgutil.iter_modules([FOLDER]))
    tables: list[dict[str, Architecture]] = [getattr(module, "ARCHITECTURES", {}) for module in modules]
    complete = {kind: _complete(kind, one) for table in tables for kind, one in table.items()}
    return MappingProxyType(dict(_multimodal(complete)) | complete)


@cache
def refused() -> Mapping[str, str]:
    """Return, by model_type, why a Transformers family cannot be described; without those that `architectures` has.

    A multimodal family without a reason of its own in REFUSED has that of its text model.
    """
    outer: dict[str, tuple[str, str]] = {
        kind: row["text"] for kind, row in families().items() if row.get("text")
    } | around()
    of_text = {kind: REFUSED[inner] for kind, (_, inner) in outer.items() if inner in REFUSED}
    return MappingProxyType({kind: why for kind, why in {**of_text, **REFUSED}.items() if kind not in architectures()})


def _multimodal(known: Mapping[str, Architecture]) -> Iterator[tuple[str, Architecture]]:
    """Yield (model_type, table) of each multimodal family whose text model is among `known`; the tables have `text_of`
    only.

    Families of the recorded classes come first, then those around a text section unless they are in `known`, then
    MULTIMODAL's own; a model_type may come twice.
    """
    for kind, row in families().items():
        section, inner = row.get("text") or ("", "")
        if inner in known and kind != inner:
            yield kind, Architecture(text_of=(section, inner))
    for kind, (section, inner) in around().items():
        if inner in known and kind not in known:
            yield kind, Architecture(text_of=(section, inner))
    for kind, table in MULTIMODAL.items():
        if table.text in known:
            yield kind, Architecture(text_of=("text_config", table.text))


def _complete(kind: str, table: Architecture) -> Architecture:
    """Return the table with its class's defaults, types and aliases, and in `reads` the keys of its blocks and rules.

    The table's own entries take precedence. Aliases in defaults and types are replaced by the key that is read, and
    keys that are sections are left out. Without a class in transformers.json only `reads` is extended.
    """
    of_blocks = chain.from_iterable(block.keys for block in table.blocks.values())
    of_rules = chain.from_iterable(rule.keys.split() for rule in table.rules)
    table = replace(table, reads=(*table.reads, *of_blocks, *of_rules))
    row = row_of(table.of_class or kind)
    if row is None:
        return table
    keys = defaults(row) | dict(table.defaults)
    other = dict(table.same_as)
    _rename(keys, other)
    for name, key in row["aliases"].items():
        if name in keys and key not in keys:
            name, key = key, name
        if key in keys and name not in keys:
            other.setdefault(name, key)
    _rename(keys, other)
    kinds = dict(row["types"])
    _rename(kinds, other)
    keys = {key: value for key, value in keys.items() if key not in table.sections}
    return replace(table, defaults=keys, same_as=other, types={**kinds, **table.types})


def _rename(keys: dict[str, Any], other: Mapping[str, str]) -> None:
    for name, key in other.items():
        if name in keys:
            keys.setdefault(key, keys[name])
            del keys[name]
