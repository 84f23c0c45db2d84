"""IBM's Granite and what has its multipliers: embedding, attention, what a sublayer adds, and logits."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture, Reading
from symconfig.descriptor.architectures.layer_rules import but_first_of
from symconfig.descriptor.architectures.structure_rules import (
    attention_scale,
    attention_scale_of,
    rules,
    scale,
    where,
)
from symconfig.descriptor.model import ModelDescriptor, Position

MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
_SCALES = (
    scale("embedding_multiplier", "embedding_multiplier"),
    scale("residual_multiplier", "residual_multiplier"),
    attention_scale(),
)
granite = rules(*_SCALES, scale("logits_multiplier", "logits_scaling", lambda value: 1 / value))


def rope_bases(reader: Reading) -> None:
    """Read layer_rope_theta, a base for each layer; 0: no rope. Windows and the others may differ."""
    listed, fields = reader.values["layer_rope_theta"], reader.fields
    layers = fields["num_hidden_layers"]
    if listed is None:
        return
    if not isinstance(listed, list) or len(listed) != layers or any(type(one) not in (int, float) for one in listed):
        return reader.problem("wrong value", "layer_rope_theta", got=listed, need=f"{layers} numbers")
    window = fields.get("sliding_window_pattern") or [bool(fields.get("sliding_window"))] * layers
    local = {base for base, here in zip(listed, window, strict=True) if base and here}
    whole = {base for base, here in zip(listed, window, strict=True) if base and not here}
    if len(local) > 1 or len(whole) > 1:
        need = "one base for layers with a window, and one for the others"
        return reader.problem("not supported", "layer_rope_theta", got=sorted({*local, *whole}), need=need)
    if not local and not whole:
        fields["position"] = "none"
        return
    if not all(listed):
        fields["rope_layers"] = [bool(base) for base in listed]
    fields["rope_theta"] = float(next(iter(whole or local)))
    if local and whole and local != whole:
        fields["rope_local_base_freq"] = float(next(iter(local)))


def multipliers(model: ModelDescriptor) -> dict[str, Any]:
    """Return a model's multipliers as Granite's file has them."""
    return {
        "embedding_multiplier": model.embedding_multiplier or 1.0,
        "residual_multiplier": model.residual_multiplier or 1.0,
        "attention_multiplier": attention_scale_of(model),
        "logits_scaling": 1 / (model.logits_multiplier or 1.0),
    }


def bases(model: ModelDescriptor) -> dict[str, Any]:
    """Return a base of rope for each layer, 0 where there is none."""
    if model.position is not Position.ROPE:
        return {**multipliers(model), "layer_rope_theta": [0] * model.num_hidden_layers}
    local = model.rope_local_base_freq or model.rope_theta
    turns = model.rope_layers or (True,) * model.num_hidden_layers
    each = zip(turns, model.sliding_layers, strict=True)
    bases = [(local if window else model.rope_theta) if on else 0 for on, window in each]
    return {**multipliers(model), "layer_rope_theta": bases}


def _hyperclovax(model: ModelDescriptor) -> dict[str, Any]:
    """Return its multipliers; logits are multiplied, and norms behind sublayers are a switch."""
    own = {"logits_scaling": model.logits_multiplier or 1.0, "use_post_norm": model.norm_after_sublayer}
    return multipliers(model) | own


ARCHITECTURES: dict[str, Architecture] = {
    "granite": Architecture(reads=MULTIPLIERS, rule=granite, writes=multipliers),
    "granite_swa": Architecture(
        constants={"attention_sinks": True},
        layers=but_first_of(4),
        reads=(*MULTIPLIERS, "layer_rope_theta"),
        rule=rules(granite, rope_bases),
        writes=bases,
    ),
    "hyperclovax": Architecture(
        reads=(*MULTIPLIERS, "use_post_norm"),
        rule=rules(
            *_SCALES,
            scale("logits_multiplier", "logits_scaling"),
            where("use_post_norm", [("norm_after_sublayer", True)]),
        ),
        writes=_hyperclovax,
    ),
}
