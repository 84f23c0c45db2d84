"""What several families' classes make of a few keys, in both directions, and of which type which layer is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from symconfig.descriptor.architectures.architecture import (
    FULL,
    LINEAR,
    SLIDING,
    LayerTypes,
    Reading,
    Rule,
    Values,
    link,
)
from symconfig.descriptor.meaning import leading_and_every
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

# Groups of what classes fix, for `family`. DeepSeek-V3's router, which many have taken over: sigmoid scores, and a bias
# for the choice only.
SIGMOID = "experts.scoring_func=sigmoid experts.e_score_correction_bias "
NO_DENSE = "intermediate_size=0 "
LAYERNORM = "norm=layernorm "
BIASED = "qkv_bias attention_out_bias mlp_bias gated_mlp=false norm=layernorm "
ALL_BIASES = "qkv_bias,attention_out_bias,mlp_bias"
# Where keys go, for `family`.
WIDTH = "intermediate_size=experts.moe_intermediate_size "
QKV_BIAS = "attention_bias=qkv_bias "
OWN_PREDICTION = {"num_mtp_modules": "MiniMax's own modules of multi-token prediction (num_mtp_modules) are left out"}

_MOST = 1e12  # beyond which no factor is meant


def _factor(value: Any) -> float:
    """Return the value as a float. Raises ValueError if it is no number between 1e-12 and 1e12."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 / _MOST < value < _MOST:
        raise ValueError(f"a number > 0, < {_MOST:g}")
    return float(value)


def short(value: float) -> float:
    """Return a number rounded to 12 significant digits, so that taking the inverse twice gives the same number."""
    return float(f"{value:.12g}")


def scale(field: str, key: str, of: Callable[[float], float] = lambda value: value) -> Rule:
    """Return a rule that sets `field` to `of` the key's value, to 12 digits; null and 1 leave it unset.

    Anything but a number between 1e-12 and 1e12 is recorded as a problem. `of` must be its own inverse: the key is
    written as `of` the field, or of 1.0 where that is unset or 0.
    """

    def read(value: Any, reader: Reading) -> float | None:
        return None if value in (None, 1) else short(of(_factor(value)))

    return link(key, field, read, lambda model: of(getattr(model, field) or 1.0), "out of range")


def attention_scale_of(model: ModelDescriptor) -> float:
    """Return the factor of the attention logits: query_pre_attn_scalar, else head_dim, to the power of -1/2."""
    return float((model.query_pre_attn_scalar or model.head_dim) ** -0.5)


def _attention_scale(value: Any, reader: Reading) -> float | None:
    """Return query_pre_attn_scalar = factor ** -2; None for null or where it equals head_dim. Raises ValueError."""
    scalar = None if value is None else short(_factor(value) ** -2)
    return None if scalar == reader.fields.get("head_dim") else scalar


def _rotated(turned: Any, reader: Reading) -> float | None:
    """Return `turned`, a number of a head's channels that rope rotates, divided by the head's width.

    The width is head_dim, else hidden_size / heads. None for null or where the file states a partial_rotary_factor that
    is read. Raises ValueError unless it is an integer from 1 to the width.
    """
    width = reader.fields.get("head_dim") or reader.fields["hidden_size"] // reader.fields["num_attention_heads"]
    if turned is None or {"partial_rotary_factor"} & reader.values.keys() & reader.data.keys():
        return None
    if type(turned) is not int or not 0 < turned <= width:
        raise ValueError(f"1 to {width}, the width of a head")
    return float(turned / width)


@Rule
def rope_with_window(reader: Reading) -> None:
    """Restrict rope to layers with a window: set position to "none" if no layer has one, else rope_layers to
    sliding_window_pattern; nothing if that is unset or empty (all layers have the window).
    """
    if "sliding_window" not in reader.fields:
        reader.fields["position"] = "none"
    elif pattern := reader.fields.get("sliding_window_pattern"):
        reader.fields["rope_layers"] = pattern


def _rotated_layers(values: Values, layers: int) -> Sequence[int]:
    """Return for each layer a number that is 0 if it has no rope.

    By no_rope_layers, if that lists each layer, else 0 for every no_rope_layer_interval-th layer (null or 0: each).
    """
    listed, every = values["no_rope_layers"], values["no_rope_layer_interval"] or 1
    if isinstance(listed, list) and len(listed) == layers:
        return listed
    return [(index + 1) % every for index in range(layers)]


def _rope_by_layer(reader: Reading) -> None:
    """Set rope_layers, a bool per layer, from no_rope_layers (1: the layer has rope), or position "none" if none has.

    If that list is null or empty, every no_rope_layer_interval-th layer has no rope. Sets nothing if all layers have
    rope. An interval that is no integer >= 1, or a list other than a 0 or 1 for each layer, is recorded as a problem.
    """
    layers, listed = reader.fields["num_hidden_layers"], reader.values["no_rope_layers"]
    every = reader.values["no_rope_layer_interval"]
    if listed is None or listed == []:
        if not isinstance(every, int) or every < 1:
            return reader.problem("out of range", "no_rope_layer_interval", got=repr(every), need="a whole number >= 1")
        listed = [min(turns, 1) for turns in _rotated_layers(reader.values, layers)]
    if not isinstance(listed, list) or len(listed) != layers or any(one not in (0, 1) for one in listed):
        return reader.problem("wrong value", "no_rope_layers", got=listed, need=f"{layers} times 0 or 1")
    if not any(listed):
        reader.fields["position"] = "none"
    elif not all(listed):
        reader.fields["rope_layers"] = [bool(one) for one in listed]


def _rope_layers_of(model: ModelDescriptor) -> dict[str, Any]:
    """Return no_rope_layers with a 1 for each layer with rope, else a 0."""
    turns = model.rope_layers or (model.position is Position.ROPE,) * model.num_hidden_layers
    return {"no_rope_layers": [int(one) for one in turns]}


@Rule
def four_times_hidden(reader: Reading) -> None:
    """Set intermediate_size to four times hidden_size, whatever the file says."""
    reader.fields["intermediate_size"] = 4 * reader.fields["hidden_size"]


@Rule
def heads_fill_hidden(reader: Reading) -> None:
    """Report a problem if the field head_dim is set and times the heads is not hidden_size; sets nothing."""
    fields = reader.fields
    heads, width = fields["num_attention_heads"], fields.get("head_dim")
    if width is not None and heads * width != fields["hidden_size"]:
        need = f"hidden_size / num_attention_heads, {fields['hidden_size'] / heads:g}"
        reader.problem("heads are not as wide together as the model", "head_dim", got=width, need=need)


def _both_halves(reader: Reading) -> None:
    """Halve intermediate_size, which in the file counts both halves of the gated MLP; odd values are recorded as a
    problem.
    """
    if reader.fields["intermediate_size"] % 2:
        reader.problem("is not even, but counts both halves of the gated MLP", "intermediate_size")
    reader.fields["intermediate_size"] //= 2


turned_channels = link("rotary_dim", "partial_rotary_factor", _rotated, lambda model: model.rotary_dim, "out of range")
one_or_all_heads = link(
    "multi_query",
    "num_key_value_heads",
    lambda one, reader: 1 if one else reader.fields["num_attention_heads"],
    lambda model: model.num_key_value_heads == 1,
)
attention_scale = link(
    "attention_multiplier", "query_pre_attn_scalar", _attention_scale, attention_scale_of, "out of range"
)  # a factor of the logits, whose inverse square is the scalar
rope_by_layer = Rule(_rope_by_layer, "no_rope_layers no_rope_layer_interval", _rope_layers_of)
both_halves = Rule(_both_halves, "", lambda model: {"intermediate_size": 2 * model.intermediate_size})


def particulars(
    off: Mapping[str, Any], fixed: Mapping[str, Callable[[Values], bool | float | str]] | None = None
) -> Rule:
    """Return a rule that appends keys without effect on shapes or costs to the descriptor's `particulars`.

    It writes each key of `off` with the model's value of that name, else the value in `off`; None is not written.

    Args:
        off: Keys, each with the value that switches it off; null does, too. Such keys are not listed. Names are the
            part of the key after its last dot.
        fixed: Functions that give what the class fixes, from the file's values; always listed, never written.
    """
    named = {key: key.rpartition(".")[2] for key in off}

    def read(reader: Reading) -> None:
        """Append the keys that are not switched off, and what the class fixes, to `particulars`; sets nothing if there
        are none.
        """
        given = {key: reader.values[key] for key in off}
        present = {named[key]: value for key, value in given.items() if value not in (None, off[key])}
        present |= {name: of(reader.values) for name, of in (fixed or {}).items()}
        if present:
            listed = [{"name": name, "value": value} for name, value in present.items()]
            reader.fields["particulars"] = [*reader.fields.get("particulars", ()), *listed]

    def write(model: ModelDescriptor) -> dict[str, Any]:
        stated = {one.name: one.value for one in model.particulars}
        return {key: value for key, idle in off.items() if (value := stated.get(named[key], idle)) is not None}

    return Rule(read, " ".join(off), write)


def with_experts(fields: dict[str, Any], moe: Iterable[bool]) -> None:
    """Set in `fields` which layers have experts, of one bool for each layer.

    As first_k_dense_replace and moe_layer_freq where those two can express it (no layer: the number of layers, 1), else
    as the list experts.layers.
    """
    which = tuple(moe)
    placed = leading_and_every(which) if any(which) else (len(which), 1)
    if placed is None:
        fields["experts.layers"] = which
    else:
        fields["experts.first_k_dense_replace"], fields["experts.moe_layer_freq"] = placed


def experts_at(
    which: Callable[[Values, int], Sequence[bool]],
    keys: str = "",
    write: Callable[[ModelDescriptor], Mapping[str, Any]] | None = None,
) -> Rule:
    """Return a rule that sets the layers with experts; keys, write: as of `Rule`.

    `which` returns one bool per layer, from the values and the number of layers.
    """

    def read(reader: Reading) -> None:
        with_experts(reader.fields, which(reader.values, reader.fields["num_hidden_layers"]))

    return Rule(read, keys, write)


def without_experts(fields: dict[str, Any]) -> None:
    """Delete all `experts.` fields in place."""
    for name in [name for name in fields if name.startswith("experts.")]:
        del fields[name]


def shared_experts(number: str) -> Rule:
    """Return a rule that reads `number`, the key of the number of shared experts, to
    experts.shared_expert_intermediate_size, their total width: each is as wide as a routed expert; null counts as 0.

    Anything but an integer >= 0 is recorded as a problem. The rule writes the width over that of a routed expert,
    rounded down; nothing for a model without experts.
    """

    def read(shared: Any, reader: Reading) -> int:
        shared = shared or 0
        if type(shared) is not int or shared < 0:
            raise ValueError("a whole number")
        return int(reader.fields["experts.moe_intermediate_size"] * shared)

    def write(model: ModelDescriptor) -> int | None:
        sparse = model.experts
        return None if sparse is None else sparse.shared_expert_intermediate_size // sparse.moe_intermediate_size

    return link(number, "experts.shared_expert_intermediate_size", read, write)


def by(where: Callable[[Values, int, int], Any], here: str = SLIDING, elsewhere: str = FULL) -> LayerTypes:
    """Return a function for each layer's type: `here` where `where` is true, else `elsewhere`.

    `where` gets the values, the layer's index and the number of layers.
    """
    return lambda values, layers: [here if where(values, i, layers) else elsewhere for i in range(layers)]


def by_rope(here: str, elsewhere: str) -> LayerTypes:
    """Return a function for each layer's type: `here` where the layer has rope, else `elsewhere`."""
    return lambda values, layers: [here if turns else elsewhere for turns in _rotated_layers(values, layers)]


def always(kind: str) -> LayerTypes:
    """Return a function that gives every layer the same type."""
    return lambda values, layers: [kind] * layers


def every(n: int, key: str = "sliding_window_pattern") -> LayerTypes:
    """Return a function that gives every n-th layer full attention, and all others a sliding window.

    The value of `key` replaces n unless it is absent, null or 0.
    """
    return by(lambda values, i, _: (i + 1) % (values.get(key) or n))


def attending(where: Callable[[Values, int, int], Any]) -> LayerTypes:
    """Return a function for each layer's type: full attention where `where` is true, else linear.

    `where` gets the values, the layer's index and the number of layers.
    """
    return by(where, FULL, LINEAR)


all_sliding, all_linear = always(SLIDING), always(LINEAR)
qwen2 = by(lambda values, i, _: values["use_sliding_window"] and i >= values["max_window_layers"])
