"""What of a `config.json` no table of keys can hold: rope, the layers, and experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import CHUNKED, FULL, INDEXED, OLDER_TYPES, SLIDING, Reading
from symconfig.descriptor.architectures.rules import shared_experts, with_experts
from symconfig.descriptor.sections import ROPE_FIELDS, RopeScaling

_ROPE_KEYS = {*RopeScaling.model_fields, "type", "rope_theta", "partial_rotary_factor"}
_ROPE_IDLE = {
    "finetuned": None,
    "max_position_embeddings": None,  # of the file again
    "mrope_section": None,  # which channels turn by an image's rows and columns: no cost
    "mrope_interleaved": None,
    "alpha": "alpha of rope_scaling stretches rope's base, which changes no shape and no cost, and is left out",
    "llama_4_scaling_beta": "llama_4_scaling_beta scales queries by their position, which changes no shape and no cost",
}
# Rope on part of a head with the angles of a whole one, which changes no shape and no cost (modeling_rope_utils.py).
_PROPORTIONAL = "proportional"
_MOE_LAYERS = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}


def rope(reader: Reading) -> None:
    """Set rope_theta, partial_rotary_factor and rope_scaling from rope_scaling or rope_parameters.

    Does nothing for a model without rope. Unknown keys and types are problems; keys without effect are noted.
    """
    fields, data = reader.fields, reader.data
    if fields.get("position", "rope") != "rope":
        return
    key = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    raw = data.get(key) or reader.values.get("rope_scaling") or {}
    if not isinstance(raw, Mapping):
        return reader.problem("wrong value", key, got=repr(raw), need="an object")
    if isinstance(raw.get("main"), Mapping):  # beside a section of compressed keys (DeepSeek-V4)
        raw = raw["main"]
    if "rope_local_base_freq" in fields and {FULL, SLIDING, INDEXED}.intersection(raw):
        raw = _rope_by_layer_type(reader, key, raw)
    for sentence in (note for k, note in _ROPE_IDLE.items() if note is not None and (data.get(key) or {}).get(k)):
        reader.notes.append(sentence)
    for unknown in (k for k in raw if k not in _ROPE_KEYS and k not in _ROPE_IDLE and raw[k] is not None):
        if unknown == "attention_factor" and _is_usual_factor(raw):
            continue
        reader.problem("this key is not known and may change the architecture", key, unknown, got=raw[unknown])
    latent = fields.get("attention") == "mla"  # whose heads have a part for rope, of which a fraction says nothing
    for field in ("rope_theta",) if latent else ("rope_theta", "partial_rotary_factor"):
        if raw.get(field) is not None:
            fields[field] = raw[field]
    if "partial_rotary_factor" not in reader.key_of and fields.get("partial_rotary_factor", 1.0) != 1.0:
        what, got = "rope on part of a head is not supported here", fields["partial_rotary_factor"]
        reader.problem(what, key, "partial_rotary_factor", got=got, need="1.0")
    scaling = _rope_scaling(raw, fields["max_position_embeddings"], reader.values)
    if scaling is not None:
        if idle := _of_other_types(scaling):  # Transformers' function for this type does not read them
            kind = scaling["rope_type"]
            reader.notes.append(f"what {key} has for other types than {kind} is left out: {', '.join(idle)}")
            scaling = {name: value for name, value in scaling.items() if name not in idle}
        fields["rope_scaling"] = scaling
        reader.key_of["rope_scaling"] = key


def _rope_by_layer_type(reader: Reading, key: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rope section of layers without a window, and set rope_local_base_freq from that with one.

    Scaled rope on layers with a window, and sections that are no objects, are problems; for those the result is empty.
    """
    local, whole = raw.get(SLIDING) or {}, raw.get(FULL) or raw.get(INDEXED) or {}
    if not isinstance(local, Mapping) or not isinstance(whole, Mapping):
        reader.problem("wrong value", key, got=repr(raw), need="an object for each kind of layer")
        return {}
    base = local.get("rope_theta", reader.fields.get("rope_local_base_freq"))
    if base is not None:
        reader.fields["rope_local_base_freq"] = base
    if local.get("rope_type", "default") != "default":
        reader.problem("scaled rope on sliding-window layers is not supported", key, got=local["rope_type"])
    return whole


def _is_usual_factor(raw: Mapping[str, Any]) -> bool:
    """Return whether YaRN's attention_factor is the one that Transformers derives where none is written.

    Source: transformers' modeling_rope_utils.py, _compute_yarn_parameters. Olmo 3 writes it out.
    """
    written, factor = raw["attention_factor"], raw.get("factor")
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (written, factor))
    if raw.get("rope_type", raw.get("type")) != "yarn" or not numbers or raw.get("mscale"):
        return False
    return math.isclose(written, 0.1 * math.log(max(float(factor or 1), 1.0)) + 1.0, rel_tol=1e-6)


def _of_other_types(scaling: Mapping[str, Any]) -> list[str]:
    """Return the keys that rope of this type does not have; empty for an unknown type."""
    needed, optional = ROPE_FIELDS.get(str(scaling["rope_type"]), ((), tuple(scaling)))
    return [name for name in scaling if name not in ("rope_type", "factor", *needed, *optional)]


def _rope_scaling(raw: Mapping[str, Any], longest: int, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scaling with Transformers' defaults filled in; None if rope is not scaled.

    longest: the model's max_position_embeddings, the default of original_max_position_embeddings.
    """
    kind = raw.get("rope_type", raw.get("type")) or "default"
    phi3 = values.get("original_max_position_embeddings")
    if phi3 and kind in ("su", "yarn"):  # Phi-3's older spellings
        kind = "longrope"
    if kind in ("default", "mrope", _PROPORTIONAL):
        return None
    scaling = {name: raw[name] for name in RopeScaling.model_fields if raw.get(name) is not None} | {"rope_type": kind}
    if phi3:
        scaling["original_max_position_embeddings"] = phi3
    if kind in ("llama3", "yarn", "longrope"):
        scaling.setdefault("original_max_position_embeddings", longest)
    original = scaling.get("original_max_position_embeddings")
    if kind == "longrope" and isinstance(original, int) and original > 0:
        scaling.setdefault("factor", longest / original)
    return scaling


def layers(reader: Reading) -> None:
    """Set windows and mixers by each layer's type; nothing if neither file nor class gives types."""
    values, fields = reader.values, reader.fields
    types = _layer_types(reader)
    if types is None:
        return
    _windows(reader, types)
    mixers = []
    for kind, block in reader.architecture.blocks.items():
        mine = [one == kind for one in types]
        if any(mine):
            mixers.append({**block.mixer(values), **({} if all(mine) else {"layers": mine})})
    if mixers:
        fields["mixers"] = mixers


def _layer_types(reader: Reading) -> list[str] | None:
    """Return each layer's type: listed in the file, else as the class fills it in.

    None if all are full: no list and no rule, or windows are switched off; also, with a problem, for a wrong list.
    """
    values, number, rule = reader.values, reader.fields["num_hidden_layers"], reader.architecture.layers
    listed = values.get("layer_types")
    if values.get("use_sliding_window") is False and not reader.architecture.blocks:
        return None
    if listed is None:
        return None if rule is None else list(rule(values, number))
    known = (*reader.architecture.known_layers, *reader.architecture.blocks)
    if isinstance(listed, list):
        listed = [OLDER_TYPES.get(kind, kind) if isinstance(kind, str) else kind for kind in listed]
    if not isinstance(listed, list) or len(listed) != number or any(str(kind) not in known for kind in listed):
        need = f"{number} times " + " or ".join(repr(kind) for kind in known)
        reader.problem("wrong value", "layer_types", got=listed, need=need)
        return None
    return [str(kind) for kind in listed]


def _windows(reader: Reading, types: list[str]) -> None:
    """Set sliding_window, its pattern and chunked_attention by the layers' types.

    The window is deleted where no layer has it or no width is given; the pattern is left out if all layers have it.
    """
    fields, chunked = reader.fields, CHUNKED in types
    window = reader.values.get("attention_chunk_size" if chunked else "sliding_window")
    pattern = [kind in (SLIDING, CHUNKED) for kind in types]
    fields.pop("sliding_window", None)
    if not window or not any(pattern):
        return
    fields["sliding_window"] = window
    if chunked:
        fields["chunked_attention"] = True
    if not all(pattern):
        fields["sliding_window_pattern"] = pattern


def experts(reader: Reading) -> None:
    """Set shared experts, expert groups and the layers with experts; wrong lists of layers are problems."""
    values, fields, architecture = reader.values, reader.fields, reader.architecture
    if "n_shared_experts" in values and "experts.moe_intermediate_size" in fields:
        shared_experts("n_shared_experts").read(reader)
    if architecture.groups_with not in (None, reader.data.get("topk_method")):
        fields["experts.n_group"] = fields["experts.topk_group"] = None
    number = fields["num_hidden_layers"]
    listed, dense = values.get("mlp_layer_types"), values.get("mlp_only_layers")
    if listed:
        if not isinstance(listed, list) or len(listed) != number or any(str(one) not in _MOE_LAYERS for one in listed):
            return reader.problem("wrong value", "mlp_layer_types", got=listed, need=f"{number} times dense or sparse")
        with_experts(fields, [_MOE_LAYERS[one] for one in listed])
    elif dense:
        if not isinstance(dense, list) or not all(type(i) is int and 0 <= i < number for i in dense):
            return reader.problem("wrong value", "mlp_only_layers", got=dense, need=f"layers from 0 to {number - 1}")
        every = fields.get("experts.moe_layer_freq", 1)
        with_experts(fields, [i not in dense and (i + 1) % every == 0 for i in range(number)])
