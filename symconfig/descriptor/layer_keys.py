"""The keys of `config.json` that say which layer is of which kind, from a descriptor: the inverse of `config_rules`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import CHUNKED, FULL, INDEXED, SLIDING, Architecture
from symconfig.descriptor.layers import Keys, Mlp
from symconfig.descriptor.model import ModelDescriptor

Json = dict[str, Any]
Pairs = Iterator[tuple[str, Any]]


def layer_keys(model: ModelDescriptor, architecture: Architecture, written: Mapping[str, Any]) -> Json:
    """Return windows, chunks, blocks and experts by layer. written: the keys that are there already."""
    values = {**architecture.defaults, **written}
    return dict(_windows(model, architecture, values)) | dict(_experts(model, architecture))


def _windows(model: ModelDescriptor, architecture: Architecture, values: Mapping[str, Any]) -> Pairs:
    defaults, windows = architecture.defaults, any(model.sliding_layers)
    width = "attention_chunk_size" if model.chunked_attention else "sliding_window"
    own: Json = {}
    unless = _usual(architecture, values, model.num_hidden_layers)
    if width in defaults and (windows or (defaults[width] is not None and unless != [FULL] * len(unless))):
        own[width] = model.sliding_window
    if "use_sliding_window" in defaults:
        own["use_sliding_window"] = windows
    yield from own.items()
    types = list(_types(model, architecture, values))
    usual = _usual(architecture, {**values, **own}, model.num_hidden_layers)
    if "layer_types" in defaults and (architecture.blocks or not types == usual == [FULL] * len(types)):
        yield "layer_types", types


def _types(model: ModelDescriptor, architecture: Architecture, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the type of each layer, as its class calls it."""
    called = {block.name: kind for kind, block in reversed(tuple(architecture.blocks.items()))}
    for kind in model.kind_of_layer:
        own = kind.beside or (None if kind.attends else kind.mixer)
        if own is not None and own in called:
            yield called[own]
        else:
            full = INDEXED if kind.keys is not Keys.ALL and INDEXED in architecture.known_layers else FULL
            yield (CHUNKED if model.chunked_attention else SLIDING) if kind.window else full


def _usual(architecture: Architecture, values: Mapping[str, Any], layers: int) -> list[str]:
    """Return the types that a file without a list of them means."""
    if isinstance(listed := architecture.defaults.get("layer_types"), list):
        return listed
    if values.get("use_sliding_window") is False and not architecture.blocks:
        return [FULL] * layers
    return [FULL] * layers if architecture.layers is None else list(architecture.layers(values, layers))


def _experts(model: ModelDescriptor, architecture: Architecture) -> Pairs:
    experts, defaults = model.experts, architecture.defaults
    if experts is None:
        return
    if "n_shared_experts" in defaults:
        yield "n_shared_experts", experts.shared_expert_intermediate_size // experts.moe_intermediate_size
    if architecture.groups_with is not None:
        yield "topk_method", architecture.groups_with if experts.n_group else "greedy"
    for key in ("n_group", "topk_group"):
        if key in defaults and getattr(experts, key) is None:
            yield key, 1  # the choice among all is that among one group
    kinds = [kind.mlp for kind in model.kind_of_layer]
    if "mlp_layer_types" in defaults:
        yield "mlp_layer_types", ["sparse" if one is Mlp.MOE else "dense" for one in kinds]
    elif "mlp_only_layers" in defaults:
        every = experts.moe_layer_freq
        dense = [index for index, one in enumerate(kinds) if one is not Mlp.MOE and (index + 1) % every == 0]
        yield "mlp_only_layers", dense
