"""A model's structure in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.layers import NO_MIXER
from symconfig.descriptor.model import Attention, ModelDescriptor, Norm, Position

_POSITIONS = {
    Position.ROPE: "rope",
    Position.LEARNED: "learned positions",
    Position.ALIBI: "ALiBi",
    Position.NONE: "no positions",
}
_BLOCKS = {
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "gated_delta_net": "gated delta net",
    "kimi_delta_attention": "Kimi delta attention",
    "short_conv": "short convolution",
    "lightning_attention": "lightning attention",
    "mlstm": "mLSTM",
    "wkv": "WKV",
    "shared_kv_attention": "attention with one head of keys that are values",
    "heavily_compressed_attention": "the same and heavily compressed keys",
    "compressed_sparse_attention": "the same and chosen compressed keys",
}


def structure(model: ModelDescriptor) -> str:
    """Return what mixes tokens, how positions are told, what follows and where norms stand."""
    return "; ".join(part for part in (*_mixing(model), _position(model), *_following(model), *_norms(model)) if part)


def _mixing(model: ModelDescriptor) -> Iterator[str]:
    layers = model.num_hidden_layers
    attending = sum(kind.attends for kind in model.kind_of_layer)
    if attending:
        yield _attention(model) + _share(attending, layers)
    for mixer in model.mixers:
        if mixer.block != NO_MIXER:
            name = _BLOCKS.get(mixer.block, mixer.block.replace("_", " "))
            has = layers if mixer.layers is None else sum(mixer.layers)
            yield name + (" beside it" if mixer.beside_attention else "") + _share(has, layers)
    if (shared := model.shared_block) is not None:
        held = "one block" if shared.blocks == 1 else f"{shared.blocks} blocks"
        yield f"attention and an MLP, held as {held}" + _share(sum(shared.layers), layers)
    if model.num_kv_shared_layers:
        yield "keys and values of earlier layers" + _share(model.num_kv_shared_layers, layers)
    if windows := sum(model.sliding_layers):
        yield ("chunks" if model.chunked_attention else "window") + _share(windows, layers)
    if model.indexer is not None:
        yield "sparse by an indexer"
    if model.attention_gate is not None:
        yield "its result gated"


def _attention(model: ModelDescriptor) -> str:
    if model.attention is Attention.MLA:
        return "latent attention"
    if model.num_key_value_heads == 1 and model.num_attention_heads > 1:
        return "multi-query attention"
    grouped = model.num_key_value_heads < model.num_attention_heads
    return "grouped-query attention" if grouped else "multi-head attention"


def _share(some: int, layers: int) -> str:
    return "" if some == layers else f" in {some} of {layers} layers"


def _position(model: ModelDescriptor) -> str:
    if not any(kind.attends for kind in model.kind_of_layer):
        return ""
    if model.position is not Position.ROPE:
        return _POSITIONS.get(model.position, f"{model.position} positions")
    part = f" on {model.partial_rotary_factor:.0%} of a head" if model.partial_rotary_factor < 1 else ""
    scaled = f" ({model.rope_scaling.rope_type})" if model.rope_scaling else ""
    some = model.rope_layers
    return f"rope{part}{scaled}" + ("" if some is None else _share(sum(some), len(some)))


def _following(model: ModelDescriptor) -> Iterator[str]:
    if (experts := model.experts) is not None:
        shared = " and a shared one" if experts.shared_expert_intermediate_size else ""
        chosen = f"{experts.num_experts_per_tok} of {experts.num_experts} experts{shared}"
        yield chosen + _share(sum(model.moe_layers), model.num_hidden_layers)
    if any(model.dense_layers):
        yield "gated MLP" if model.gated_mlp else "plain MLP"


def _norms(model: ModelDescriptor) -> Iterator[str]:
    if model.norm is Norm.LAYERNORM:
        yield "layernorm"
    if model.parallel_residual:
        yield "attention and MLP in parallel"
    if model.norm_after_sublayer:
        yield "norms around sublayers" if model.norm_before_sublayer else "norms after sublayers"
    if model.qk_norm:
        yield "norms of queries and keys"
    if model.streams is not None:
        yield f"{model.streams.count} residual streams"
    if model.hypersphere:
        yield "learned scales on a normed stream"
    if model.layer_inputs is not None:
        yield "an embedding for each layer"
    if model.loop is not None:
        yield f"{max(model.loop.held) + 1} layers that run {model.num_hidden_layers} times together"
    if not model.first_input_norm:
        yield "no norm in the first layer"
    if model.norm_gate_rank is not None:
        yield "norms gated"
    if model.head_projection:
        yield "a projection before the head"
    if model.num_nextn_predict_layers:
        yield "multi-token prediction"
