"""Zyphra's Zamba: state spaces in every layer, before some of which attention and an MLP are called that all share."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures import hybrid_blocks as blocks
from symconfig.descriptor.architectures.architecture import (
    LINEAR,
    OLDER_TYPES,
    Architecture,
    Kind,
    Reading,
    Rule,
    Values,
)
from symconfig.descriptor.architectures.hybrid import STARTS
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

_CALLS = "hybrid"  # the type of a layer that calls the shared block
# Without it the classes tie no weight at all, and each layer has a block of its own (get_expanded_tied_weights_keys).
_TIED = {"tie_word_embeddings": (True,)}
# Layers of Zamba2's class that call it, where the file lists none: every sixth of the first 43, then three more.
_DEFAULT = frozenset((*range(6, 43, 6), 47, 51))


def _zamba_layers(values: Values, layers: int) -> list[str]:
    period, offset = values["attn_layer_period"], values["attn_layer_offset"]
    return [_CALLS if i == 2 or (i > 2 and (i - 3) % period == offset) else LINEAR for i in range(layers)]


def _listed(reader: Reading, rule: Any) -> list[bool]:
    """Return which layers call the shared block."""
    number = reader.fields["num_hidden_layers"]
    listed = reader.values["layers_block_type"]
    types = rule(reader.values, number) if listed is None else [OLDER_TYPES.get(one, one) for one in listed]
    if len(types) != number or not set(types) <= {_CALLS, LINEAR}:
        need = f"{number} times {LINEAR!r} or {_CALLS!r}"
        reader.problem("wrong value", "layers_block_type", got=listed, need=need)
    return [one == _CALLS for one in types]


def _shared(reader: Reading, calls: list[bool], mixer: dict[str, Any]) -> None:
    """Read the shared block: all layers have the state space and no MLP; heads are as wide as stream and embedding."""
    fields = reader.fields
    if 2 * fields["hidden_size"] % fields["num_attention_heads"]:
        need = "a divisor of twice hidden_size"
        return reader.problem("out of range", "num_attention_heads", got=fields["num_attention_heads"], need=need)
    if not any(calls):
        what = "no layer calls attention, so nothing says that there is any"
        return reader.problem(what, "layers_block_type", need=f"some layer of type {_CALLS}")
    fields["mixers"] = [mixer]
    fields["mlp_layers"] = [False] * fields["num_hidden_layers"]
    fields["shared_block"] = {"layers": calls}
    fields.setdefault("head_dim", 2 * fields["hidden_size"] // fields["num_attention_heads"])
    fields["query_pre_attn_scalar"] = fields["head_dim"] / 2
    return None


def _zamba(reader: Reading) -> None:
    own, fields = reader.values["attention_hidden_size"], reader.fields
    if own not in (None, 2 * fields["hidden_size"]):
        return reader.problem("out of range", "attention_hidden_size", got=own, need="twice hidden_size")
    if (width := reader.values["attention_head_dim"]) is not None:
        fields["head_dim"] = width
    return _shared(reader, _listed(reader, _zamba_layers), blocks.zamba.mixer(reader.values))


def _zamba2(reader: Reading) -> None:
    values, fields = reader.values, reader.fields
    calls = _listed(reader, lambda values, layers: [_CALLS if i in _DEFAULT else LINEAR for i in range(layers)])
    width = 2 * fields["hidden_size"] // fields["num_attention_heads"]
    if values["head_dim"] not in (None, width):
        return reader.problem("out of range", "head_dim", got=values["head_dim"], need=str(width))
    fields["head_dim"] = width
    fields["mlp_bias"] = values["add_bias_linear"]
    fields["intermediate_size"] = values["intermediate_size"] or 4 * fields["hidden_size"]
    if not values["use_mem_rope"]:
        fields["position"] = "none"
    if values["use_long_context"]:
        fields["max_position_embeddings"] = 16384
    _shared(reader, calls, blocks.zamba2.mixer(values))
    if shared := fields.get("shared_block"):
        rank = values["adapter_rank"]
        shared |= {"blocks": min(values["num_mem_blocks"], sum(calls)), "mlp_rank": rank}
        shared["attention_rank"] = rank if values["use_shared_attention_adapter"] else 0
    return None


def _types(model: ModelDescriptor) -> dict[str, Any]:
    shared = model.shared_block
    return {} if shared is None else {"layers_block_type": [_CALLS if calls else LINEAR for calls in shared.layers]}


def _zamba_keys(model: ModelDescriptor) -> dict[str, Any]:
    own = {"attention_head_dim": model.head_dim, "attention_hidden_size": 2 * model.hidden_size}
    return {**_types(model), **own, **blocks.zamba.write(model)}


def _zamba2_keys(model: ModelDescriptor) -> dict[str, Any]:
    shared = model.shared_block
    if shared is None:
        return {}
    return {
        **_types(model),
        **blocks.zamba2.write(model),
        "num_mem_blocks": shared.blocks,
        "adapter_rank": shared.mlp_rank,
        "use_shared_attention_adapter": shared.attention_rank > 0,
        "use_mem_rope": model.position is Position.ROPE,
        "add_bias_linear": model.mlp_bias,
        "intermediate_size": model.intermediate_size,
    }


ARCHITECTURES: dict[str, Architecture] = {
    "zamba": Architecture(
        constants={"position": "none"},
        only={"hidden_mamba_act": ("silu",), **_TIED},
        ignored=(*STARTS, "n_mamba_heads"),
        kinds={"mamba_dt_rank": Kind.COUNT, "layers_block_type": Kind.WORDS, "attention_head_dim": Kind.COUNT,
               "attention_hidden_size": Kind.COUNT},
        rules=(Rule(_zamba, ("attn_layer_period", "attn_layer_offset", "layers_block_type", "attention_head_dim",
                             "attention_hidden_size", *blocks.zamba.keys), _zamba_keys),),
    ),
    "zamba2": Architecture(
        defaults={"head_dim": None},
        only=_TIED,
        # The convolution has its bias, whatever the key says; the others the class writes, and works out again.
        ignored=(*STARTS, "use_mem_eff_path", "use_conv_bias", "hybrid_layer_ids", "kv_channels", "num_query_groups",
                 "attention_hidden_size", "mamba_headdim"),
        kinds={"layers_block_type": Kind.WORDS, "intermediate_size": Kind.COUNT, "head_dim": Kind.COUNT},
        rules=(Rule(_zamba2, ("layers_block_type", "head_dim", "num_mem_blocks", "adapter_rank", "use_mem_rope",
                              "use_shared_attention_adapter", "use_long_context", "intermediate_size",
                              *blocks.zamba2.keys), _zamba2_keys),),
    ),
}  # fmt: skip
