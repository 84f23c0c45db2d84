"""Count what one token takes of an engine: its keys and values, the activations around products, its attention."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from symconfig.descriptor.layers import Mlp, Pairs
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention
from symconfig.solve.lengths import Array

ELEMENT_BYTES = 2.0


def cached_bytes(model: ModelDescriptor, tp: int, tokens: Array) -> Array:
    """Return the KV cache bytes per GPU of one context of `tokens` tokens (elementwise); layers with a window keep
    at most that.
    """
    whole, windowed = _caching_layers(model)
    seen = whole * tokens + windowed * (
        tokens if model.sliding_window is None else np.minimum(tokens, model.sliding_window)
    )
    result: Array = seen * ELEMENT_BYTES * _channels(model, tp)
    return result


@lru_cache(maxsize=64)
def _caching_layers(model: ModelDescriptor) -> tuple[int, int]:
    """Return (layers that cache all tokens, layers that cache a sliding window); layers that share another's KV
    cache count in neither.
    """
    own = [kind.window for kind in model.kind_of_layer if kind.attends and kind.pairs is not Pairs.BORROWED]
    return own.count(False), own.count(True)


def _channels(model: ModelDescriptor, tp: int) -> float:
    """Return the elements that one layer caches of a token per GPU; MLA's latent is not divided by tp."""
    if model.attention is Attention.MLA and model.latent is not None:
        return float(model.latent.kv_lora_rank + model.latent.qk_rope_head_dim)  # the same on every GPU
    heads = max(1.0, model.num_key_value_heads / tp)
    return heads * (model.head_dim + (model.v_head_dim or model.head_dim))


@lru_cache(maxsize=64)
def moved(model: ModelDescriptor) -> tuple[float, float]:
    """Return (elements on every GPU, elements divided by tp) that kernels between matrix products read and write for
    one token in all layers.
    """
    whole = cut = 0.0
    for kind in model.kind_of_layer:
        whole += 2 * 4 * model.hidden_size  # two norms: the stream and what is added to it, their sum and its norm
        cut += 2 * (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim  # turned, kept
        inner = float(model.intermediate_size if kind.mlp is Mlp.DENSE else 0)
        if kind.mlp is Mlp.MOE and (experts := model.experts) is not None:
            inner = (
                experts.num_experts_per_tok * experts.moe_intermediate_size + experts.shared_expert_intermediate_size
            )
            whole += (experts.num_experts_per_tok + 1) * model.hidden_size  # experts' results, and their sum
        cut += (3 if model.gated_mlp else 2) * inner
    return whole, cut


def scored_flops(model: ModelDescriptor, length: float) -> float:
    """Return the FLOPs of attention scores and values of one prompt token in all layers, averaged over a causal
    prompt of `length`.
    """
    window = min(length / 2, model.sliding_window or np.inf)
    keys = sum(window if kind.window else length / 2 for kind in model.kind_of_layer if kind.attends)
    return 2.0 * model.num_attention_heads * (model.head_dim + (model.v_head_dim or model.head_dim)) * keys
