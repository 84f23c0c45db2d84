"""Which layers of hybrid families have which block, and what else of their files no table holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from symconfig.descriptor.architectures.architecture import (
    FULL,
    LINEAR,
    OLDER_TYPES,
    SLIDING,
    Reading,
    Rule,
    Values,
)
from symconfig.descriptor.architectures.rules import always, attention_scale_of
from symconfig.descriptor.layers import Mlp

if TYPE_CHECKING:
    from symconfig.descriptor.model import ModelDescriptor


all_linear = always(LINEAR)


def by(attends: Callable[[Values, int, int], bool]) -> Callable[[Values, int], Sequence[str]]:
    """Make the rule of layers that attend, by their place and how many there are; all others have the block."""
    return lambda values, layers: [FULL if attends(values, i, layers) else LINEAR for i in range(layers)]


def kimi_layers(values: Values, layers: int) -> list[str]:
    listed = (values["linear_attn_config"] or {}).get("full_attn_layers")
    attends = (
        {i - 1 for i in listed if type(i) is int}
        if isinstance(listed, list)
        else {i for i in range(1, layers) if i % 4 == 0}
    )
    return [FULL if i in attends else LINEAR for i in range(layers)]


def lara_layers(values: Values, layers: int) -> list[str]:
    """List the layers' types, five layers over and over: two with a window, one without."""
    pattern = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)
    return [pattern[i % len(pattern)] for i in range(layers)]


NEMOTRON_TYPES = {"M": LINEAR, "*": FULL, "E": "moe", "-": "mlp"}


def nemotron_layers(values: Values, layers: int) -> list[str]:
    """List the layers' types, one letter a layer."""
    return [NEMOTRON_TYPES.get(letter, letter) for letter in values["hybrid_override_pattern"]]


def lfm2_layers(values: Values, layers: int) -> list[str]:
    attending = values["full_attn_idxs"]
    return [FULL if attending is None or i in attending else "conv" for i in range(layers)]


def recurrent_gemma_layers(values: Values, layers: int) -> list[str]:
    """List the layers' types by the file's pattern, over and over."""
    pattern = values["block_types"]
    return [LINEAR if pattern[i % len(pattern)] == "recurrent" else SLIDING for i in range(layers)]


def _only_scans(reader: Reading) -> None:
    """Read a model of nothing but scans.

    Its heads, or channels, are taken as the heads of the attention that it has not.
    """
    fields = reader.fields
    (mixer,) = fields["mixers"]
    sizes, number = mixer["sizes"], fields["num_hidden_layers"]
    heads = sizes.get("mamba_num_heads", sizes.get("ssm_intermediate_size"))
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    fields |= {"head_dim": sizes.get("mamba_head_dim", 1), "mlp_layers": [False] * number}


def _without_experts(reader: Reading) -> None:
    for name in [name for name in reader.fields if name.startswith("experts.")]:
        del reader.fields[name]


def _jamba(reader: Reading) -> None:
    values, fields = reader.values, reader.fields
    if values["num_experts"] <= 1:
        return _without_experts(reader)
    period, offset = values["expert_layer_period"], values["expert_layer_offset"]
    fields["experts.layers"] = [i % period == offset for i in range(fields["num_hidden_layers"])]
    return None


def _jamba_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return which layers attend and which have experts, each by a step and its first."""
    keys = _stepped("attn_layer", [kind.attends for kind in model.kind_of_layer])
    return keys | (_stepped("expert_layer", model.moe_layers) if model.experts else {"num_experts": 1})


def _stepped(name: str, layers: Sequence[bool]) -> dict[str, int]:
    which = [index for index, here in enumerate(layers) if here] or [len(layers)]
    period = which[1] - which[0] if len(which) > 1 else len(layers) + 1
    return {f"{name}_period": period, f"{name}_offset": which[0]}


def _granite(reader: Reading) -> None:
    """Read Granite 4: each layer has an MLP, which is a shared expert where there are others.

    Scores have a factor of their own.
    """
    values, fields = reader.values, reader.fields
    fields["query_pre_attn_scalar"] = values["attention_multiplier"] ** -2
    fields["intermediate_size"] = 0
    if not values["num_local_experts"]:
        fields["intermediate_size"] = values["shared_intermediate_size"]
        _without_experts(reader)
    if values["position_embedding_type"] != "rope":
        fields["position"] = "none"


def _bailing(reader: Reading) -> None:
    """Read the decays' bound, unless it is switched off: a number that changes results only."""
    if reader.values["kda_safe_gate"]:
        reader.fields["particulars"] = [{"name": "kda_lower_bound", "value": reader.values["kda_lower_bound"]}]


def _bailing_keys(model: ModelDescriptor) -> dict[str, Any]:
    bounds = [one.value for one in model.particulars if one.name == "kda_lower_bound"]
    return {"kda_safe_gate": bool(bounds), **({"kda_lower_bound": bounds[0]} if bounds else {})}


def _nemotron(reader: Reading) -> None:
    """Read Nemotron-H: a layer has one of a scan, attention, an MLP or experts."""
    values, fields = reader.values, reader.fields
    listed = [
        OLDER_TYPES.get(kind, kind)
        for kind in values["layer_types"] or nemotron_layers(values, fields["num_hidden_layers"])
    ]
    fields["mlp_layers"] = [kind in ("moe", "mlp") for kind in listed]
    moe = [kind == "moe" for kind in listed]
    if not any(moe):
        return _without_experts(reader)
    fields["experts.layers"] = moe
    fields["experts.shared_expert_intermediate_size"] = values["moe_shared_expert_intermediate_size"]
    return None


def lfm3_layers(values: Values, layers: int) -> list[str]:
    kinds = {0: SLIDING, 2: FULL}
    return [kinds.get(i % 4, "conv") if i else "conv" for i in range(layers)]


def _lfm3(reader: Reading) -> None:
    """Read a gate for each head, where it is not switched off."""
    if reader.values["use_attention_gate"]:
        reader.fields["attention_gate"] = "head"
    if reader.fields.get("partial_rotary_factor", 1.0) != 1.0 and reader.fields.get("sliding_window"):
        reader.note("layers with a window turn whole heads; all are taken to turn the part that the others turn")


def _lfm2(reader: Reading) -> None:
    """Read the MLP's width: two thirds of the stated one, times a factor, in whole multiples."""
    values = reader.values
    if not values["block_auto_adjust_ff_dim"]:
        return
    width = int(2 * reader.fields["intermediate_size"] / 3)
    if values["block_ffn_dim_multiplier"] is not None:
        multiple = values["block_multiple_of"]
        width = multiple * ceil(int(values["block_ffn_dim_multiplier"] * width) / multiple)
    reader.fields["intermediate_size"] = width


def _olmo(reader: Reading) -> None:
    reader.note("layers with attention have their norms behind attention and MLP; all are taken to have them before")


def _nemotron_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the type of each layer, of those without a mixer what they have alone; and the shared expert's width."""
    alone = {Mlp.MOE: "moe", Mlp.DENSE: "mlp"}
    types = [FULL if kind.attends else alone.get(kind.mlp, LINEAR) for kind in model.kind_of_layer]
    width = model.experts.shared_expert_intermediate_size if model.experts else None
    return {"layer_types": types, **({"moe_shared_expert_intermediate_size": width} if width else {})}


def expand(key: str) -> Rule:
    """Return the rule of a class that wants its heads as wide together as the stream, times a factor."""

    def write(model: ModelDescriptor) -> dict[str, Any]:
        sizes = [mixer.sizes for mixer in model.mixers if mixer.block == "mamba2"]
        factors = [one["mamba_num_heads"] * one["mamba_head_dim"] / model.hidden_size for one in sizes]
        factor = factors[0] if factors else 0.0
        return {key: int(factor)} if factor and factor.is_integer() else {}

    return Rule(lambda reader: None, (key,), write)


only_scans = Rule(_only_scans)
jamba = Rule(
    _jamba,
    ("expert_layer_period", "expert_layer_offset"),
    _jamba_keys,
)
granite = Rule(
    _granite,
    ("position_embedding_type", "num_local_experts", "num_experts_per_tok", "attention_multiplier"),
    lambda model: {"attention_multiplier": attention_scale_of(model)},
)

bailing = Rule(_bailing, ("kda_safe_gate", "kda_lower_bound"), _bailing_keys)
nemotron = Rule(_nemotron, ("hybrid_override_pattern", "moe_shared_expert_intermediate_size"), _nemotron_keys)
lfm3 = Rule(_lfm3, ("use_attention_gate",), lambda model: {"use_attention_gate": model.attention_gate == "head"})
lfm2 = Rule(
    _lfm2,
    ("block_auto_adjust_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier"),
    lambda model: {"block_auto_adjust_ff_dim": False},
)
olmo = Rule(_olmo)
