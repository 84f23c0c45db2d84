"""What several families' classes make of a few keys, where no table of names can hold it: each fills in fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Reading, Rule, Values
from symconfig.descriptor.config_rules import with_experts
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

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


# DeepSeek-V3's router, which many have taken over: sigmoid scores, and a bias for the choice only.
SIGMOID = {"experts.scoring_func": "sigmoid", "experts.e_score_correction_bias": True}
NO_DENSE = {"intermediate_size": 0}
OWN_PREDICTION = {
    "num_mtp_modules": "MiniMax's own modules of multi-token prediction (num_mtp_modules) are left out",
}


def particulars(
    off: Mapping[str, Any], fixed: Mapping[str, Callable[[Values], bool | float | str]] | None = None
) -> Rule:
    """Return the rule for keys that change results, and neither shapes nor costs. off: each with the value that
    switches it off, beside null. fixed: what the class fixes, from the values."""

    def read(reader: Reading) -> None:
        present = {key: reader.values[key] for key, idle in off.items() if reader.values[key] not in (None, idle)}
        present |= {name: of(reader.values) for name, of in (fixed or {}).items()}
        if present:
            listed = [{"name": name, "value": value} for name, value in present.items()]
            reader.fields["particulars"] = [*reader.fields.get("particulars", ()), *listed]

    def write(model: ModelDescriptor) -> dict[str, Any]:
        stated = {one.name: one.value for one in model.particulars}
        return {key: value for key, idle in off.items() if (value := stated.get(key, idle)) is not None}

    return Rule(read, tuple(off), write)


def experts_at(which: Callable[[Values, int], Sequence[bool]]) -> Rule:
    """Return the rule for the layers that have experts, of the values and the number of layers."""

    return Rule(lambda reader: with_experts(reader.fields, which(reader.values, reader.fields["num_hidden_layers"])))


def shared_experts(number: str) -> Rule:
    """Return the rule for shared experts, each as wide as a routed one, by the key for their number."""

    def read(reader: Reading) -> None:
        width, shared = reader.fields["experts.moe_intermediate_size"], reader.values[number] or 0
        if not isinstance(shared, int) or isinstance(shared, bool) or shared < 0:
            return reader.problem("wrong value", number, got=shared, need="a whole number")
        reader.fields["experts.shared_expert_intermediate_size"] = width * shared
        reader.key_of["experts.shared_expert_intermediate_size"] = number

    def write(model: ModelDescriptor) -> dict[str, Any]:
        sparse = model.experts
        return (
            {} if sparse is None else {number: sparse.shared_expert_intermediate_size // sparse.moe_intermediate_size}
        )

    return Rule(read, (number,), write)


def _turned_channels(reader: Reading) -> None:
    """Read rotary_dim, the channels of a head that rope turns, where the fraction is not given."""
    turned, fields = reader.values["rotary_dim"], reader.fields
    if turned is not None and "partial_rotary_factor" not in reader.data:
        if not isinstance(turned, int) or isinstance(turned, bool) or not 0 < turned <= fields["head_dim"]:
            return reader.problem("out of range", "rotary_dim", got=turned, need=f"1 to {fields['head_dim']}")
        fields["partial_rotary_factor"] = turned / fields["head_dim"]
        reader.key_of["partial_rotary_factor"] = "rotary_dim"


turned_channels = Rule(_turned_channels, ("rotary_dim",))


def sizes_by_layer(reader: Reading, known: Collection[str], where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Read per_layer_config, sizes by layer's number: of the layers that the first mixer is on, all alike. A size that
    is not there is that of the other layers. Return that mixer and the sizes; nothing where there are none. where:
    which layers those are."""
    section = reader.values["per_layer_config"]
    mixer: dict[str, Any] = next(iter(reader.fields.get("mixers", ())), {})
    if section is None:
        return mixer, {}
    has = mixer.get("layers") or [bool(mixer)] * reader.fields["num_hidden_layers"]
    numbered = isinstance(section, Mapping) and all(str(index).isdecimal() for index in section)
    rows = {int(index): row for index, row in section.items()} if numbered else {-1: None}
    first: Any = next(iter(rows.values()), {})
    alike = rows == {index: first for index, here in enumerate(has) if here} or not rows
    numbers = isinstance(first, Mapping) and all(type(size) is int and size > 0 for size in first.values())
    if not alike or not numbers or not set(first) <= set(known):
        reader.problem("wrong value", "per_layer_config", got=repr(section), need=where)
        return mixer, {}
    own = {key: reader.values[key] for key in known if mixer and key in reader.values}
    return mixer, own | dict(first)


def _types(sliding: list[bool]) -> list[str]:
    return [SLIDING if one else FULL for one in sliding]


def always(kind: str) -> Callable[[Values, int], list[str]]:
    """Return the rule of layers that are all of one type."""
    return lambda values, layers: [kind] * layers


def all_sliding(values: Values, layers: int) -> list[str]:
    """Give every layer the window, where there is one."""
    return _types([True] * layers)


def qwen2(values: Values, layers: int) -> list[str]:
    """Give layers from max_window_layers on the window, with use_sliding_window."""
    return _types([bool(values["use_sliding_window"]) and i >= values["max_window_layers"] for i in range(layers)])


def qwen2_moe(values: Values, layers: int) -> list[str]:
    """Give every other layer before max_window_layers the window, with use_sliding_window."""
    on = bool(values["use_sliding_window"])
    return _types([on and i % 2 == 0 and i < values["max_window_layers"] for i in range(layers)])


def qwen3_moe(values: Values, layers: int) -> list[str]:
    """Give every layer the window, with use_sliding_window."""
    return _types([bool(values["use_sliding_window"])] * layers)


def alternate(values: Values, layers: int) -> list[str]:
    """Give every other layer the window, the first one first."""
    return every(2)(values, layers)


def every(n: int, key: str = "sliding_window_pattern") -> Callable[[Values, int], list[str]]:
    """Return the rule of all but every n-th layer; by a key of the file, where it has one."""

    def rule(values: Values, layers: int) -> list[str]:
        step = values.get(key) or n
        return _types([(i + 1) % step != 0 for i in range(layers)])

    return rule


def but_first_of(n: int) -> Callable[[Values, int], list[str]]:
    """Return the rule of all but the first of every n layers."""
    return lambda values, layers: _types([i % n != 0 for i in range(layers)])
