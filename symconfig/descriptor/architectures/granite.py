"""IBM's Granite and what has its multipliers: embedding, attention, what a sublayer adds, and logits."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture, Kind, Reading, Rule
from symconfig.descriptor.architectures.deepseek import MINICPM
from symconfig.descriptor.architectures.rules import attention_scale, but_first_of, scale
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

_SCALES = (
    scale("embedding_multiplier", "embedding_multiplier"),
    scale("residual_multiplier", "residual_multiplier"),
    attention_scale(),
)
granite = (*_SCALES, scale("logits_multiplier", "logits_scaling", lambda value: 1 / value))


def _rope_bases(reader: Reading) -> None:
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


def _bases(model: ModelDescriptor) -> dict[str, Any]:
    """Return a base of rope for each layer, 0 where there is none."""
    if model.position is not Position.ROPE:
        return {"layer_rope_theta": [0] * model.num_hidden_layers}
    local = model.rope_local_base_freq or model.rope_theta
    turns = model.rope_layers or (True,) * model.num_hidden_layers
    each = zip(turns, model.sliding_layers, strict=True)
    bases = [(local if window else model.rope_theta) if on else 0 for on, window in each]
    return {"layer_rope_theta": bases}


rope_bases = Rule(_rope_bases, ("layer_rope_theta",), _bases)


_MINICPM = ("scale_emb", "scale_depth", "dim_model_base")

ARCHITECTURES: dict[str, Architecture] = {
    "granite": Architecture(rules=granite),
    # MiniCPM and MiniCPM 4, whose code lies beside the weights: attention is sparse only where a file says so.
    "minicpm": Architecture(
        defaults={**dict.fromkeys(_MINICPM, 1), "sparse_config": None, "tie_word_embeddings": True},
        only={"sparse_config": (None,)},
        ignored=("mup_denominator",),  # of heads that draft tokens
        kinds=dict.fromkeys(_MINICPM, Kind.NUMBER),
        rules=MINICPM,
        of_class="granite",
    ),
    "granite_swa": Architecture(
        constants={"attention_sinks": True},
        layers=but_first_of(4),
        rules=(*granite, rope_bases),
    ),
    "hyperclovax": Architecture(
        names={"use_post_norm": ("norm_after_sublayer",)},
        rules=(*_SCALES, scale("logits_multiplier", "logits_scaling")),
    ),
}
