"""What several families' classes make of a few keys, where no table of names can hold it: each fills in fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symconfig.descriptor.architectures.architecture import Reading, Rule
from symconfig.descriptor.model import ModelDescriptor, Position

_MOST = 1e12  # beyond which no factor is meant


def scale(field: str, key: str, of: Callable[[float], float] = lambda value: value) -> Rule:
    """Return the rule for a factor: of its key's value, and none where that is 1 or null. of: its own inverse."""

    def read(reader: Reading) -> None:
        value = reader.values[key]
        if value is None or value == 1:
            return
        if not _factor(value):
            return reader.problem("out of range", key, got=repr(value), need=f"a number > 0, < {_MOST:g}")
        reader.fields[field] = short(of(float(value)))
        reader.key_of[field] = key

    return Rule(read, (key,), lambda model: {key: of(getattr(model, field) or 1.0)})


def attention_scale(key: str = "attention_multiplier") -> Rule:
    """Return the rule for a factor of the attention logits: query_pre_attn_scalar is its inverse square."""

    def read(reader: Reading) -> None:
        value = reader.values[key]
        if value is None:
            return
        if not _factor(value):
            return reader.problem("out of range", key, got=repr(value), need=f"a number > 0, < {_MOST:g}")
        scalar = short(float(value) ** -2)
        if scalar != reader.fields.get("head_dim"):  # which is the usual one
            reader.fields["query_pre_attn_scalar"] = scalar
            reader.key_of["query_pre_attn_scalar"] = key

    return Rule(read, (key,), lambda model: {key: attention_scale_of(model)})


def _rope_with_window(reader: Reading) -> None:
    """Turn queries and keys only on layers with a window; where no layer has one, none does."""
    fields = reader.fields
    if "sliding_window" not in fields:
        fields["position"] = "none"
    elif fields.get("sliding_window_pattern"):
        fields["rope_layers"] = fields["sliding_window_pattern"]


def _rope_by_layer(reader: Reading) -> None:
    """Read no_rope_layers, a 1 for each layer with rope; without it, every n-th layer has none."""
    layers, listed = reader.fields["num_hidden_layers"], reader.values["no_rope_layers"]
    every = reader.values["no_rope_layer_interval"]
    if listed is None or listed == []:
        if not isinstance(every, int) or every < 1:
            return reader.problem("out of range", "no_rope_layer_interval", got=repr(every), need="a whole number >= 1")
        listed = [int((index + 1) % every != 0) for index in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers or any(one not in (0, 1) for one in listed):
        return reader.problem("wrong value", "no_rope_layers", got=listed, need=f"{layers} times 0 or 1")
    if not any(listed):
        reader.fields["position"] = "none"
    elif not all(listed):
        reader.fields["rope_layers"] = [bool(one) for one in listed]


def rotary_channels(key: str = "rotary_dim") -> Rule:
    """Return the rule for the number of a head's channels that rope turns; null: all."""

    def read(reader: Reading) -> None:
        turned, fields = reader.values[key], reader.fields
        width = fields["hidden_size"] // fields["num_attention_heads"]
        if turned is None:
            return
        if not isinstance(turned, int) or isinstance(turned, bool) or not 0 < turned <= width:
            return reader.problem("out of range", key, got=repr(turned), need=f"1 to {width}, the width of a head")
        fields["partial_rotary_factor"] = turned / width
        reader.key_of["partial_rotary_factor"] = key

    return Rule(read, (key,), lambda model: {key: model.rotary_dim})


def _one_or_all_heads(reader: Reading) -> None:
    """Read multi_query: one key and value for all heads, else one for each."""
    reader.fields["num_key_value_heads"] = 1 if reader.values["multi_query"] else reader.fields["num_attention_heads"]


def _four_times_hidden(reader: Reading) -> None:
    """Set the MLP's width to four times the model's, whatever the file says of it."""
    reader.fields["intermediate_size"] = 4 * reader.fields["hidden_size"]


def _heads_fill_hidden(reader: Reading) -> None:
    """Demand heads that are together as wide as the model: the output projection reads hidden_size channels."""
    fields = reader.fields
    heads, width = fields["num_attention_heads"], fields.get("head_dim")
    if width is not None and heads * width != fields["hidden_size"]:
        need = f"hidden_size / num_attention_heads, {fields['hidden_size'] / heads:g}"
        reader.problem("heads are not as wide together as the model", "head_dim", got=width, need=need)


def short(value: float) -> float:
    """Return a number without the last digits, so that its inverse's inverse is itself."""
    return float(f"{value:.12g}")


def attention_scale_of(model: ModelDescriptor) -> float:
    """Return the factor of a model's attention logits."""
    return float((model.query_pre_attn_scalar or model.head_dim) ** -0.5)


def _rope_layers_of(model: ModelDescriptor) -> dict[str, Any]:
    """Return a 1 for each layer with rope, as SmolLM3 has it."""
    turns = model.rope_layers or (model.position is Position.ROPE,) * model.num_hidden_layers
    return {"no_rope_layers": [int(one) for one in turns]}


def indexer_types(model: ModelDescriptor) -> dict[str, Any]:
    """Return which layers have an indexer of their own, and which share one."""
    own = model.indexer.layers if model.indexer else None
    return {"indexer_types": ["full" if one else "shared" for one in own or (True,) * model.num_hidden_layers]}


def _factor(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 / _MOST < value < _MOST


rope_with_window = Rule(_rope_with_window)
_BY_LAYER = ("no_rope_layers", "no_rope_layer_interval")
rope_by_layer = Rule(_rope_by_layer, _BY_LAYER, _rope_layers_of)
one_or_all_heads = Rule(
    _one_or_all_heads, ("multi_query",), lambda model: {"multi_query": model.num_key_value_heads == 1}
)
four_times_hidden = Rule(_four_times_hidden)
heads_fill_hidden = Rule(_heads_fill_hidden)
