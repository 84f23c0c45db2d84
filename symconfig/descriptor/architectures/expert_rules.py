"""What classes with experts make of a few keys, where no table of names can hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symconfig.descriptor.architectures.architecture import Reading, Rule, Values
from symconfig.descriptor.config_rules import with_experts

# DeepSeek-V3's router, which many have taken over: sigmoid scores, and a bias for the choice only.
SIGMOID = {"experts.scoring_func": "sigmoid", "experts.e_score_correction_bias": True}
NO_DENSE = {"intermediate_size": 0}


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

    return Rule(read, tuple(off))


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

    return Rule(read, (number,))


def _turned_channels(reader: Reading) -> None:
    """Read rotary_dim, the channels of a head that rope turns, where the fraction is not given."""
    turned, fields = reader.values["rotary_dim"], reader.fields
    if turned is not None and "partial_rotary_factor" not in reader.data:
        if not isinstance(turned, int) or isinstance(turned, bool) or not 0 < turned <= fields["head_dim"]:
            return reader.problem("out of range", "rotary_dim", got=turned, need=f"1 to {fields['head_dim']}")
        fields["partial_rotary_factor"] = turned / fields["head_dim"]
        reader.key_of["partial_rotary_factor"] = "rotary_dim"


turned_channels = Rule(_turned_channels, ("rotary_dim",))
