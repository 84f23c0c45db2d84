"""Reads the rope section of a `config.json`: base, share of a head, and scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, INDEXED, SLIDING, Reading
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


def read_rope(reader: Reading) -> None:
    """Set rope_theta, partial_rotary_factor and rope_scaling by the model's rope section; nothing for a model without
    rope.

    Latent attention takes no partial factor. Rope on part of a head is recorded as a problem where no key of the family
    sets it. Keys of another rope_type are left out with a note.
    """
    fields = reader.fields
    if fields.get("position", "rope") != "rope":
        return
    key = "rope_scaling" if reader.data.get("rope_scaling") else "rope_parameters"
    raw = _section(reader, key)
    latent = fields.get("attention") == "mla"  # whose heads have a part for rope, of which a fraction says nothing
    for field in ("rope_theta",) if latent else ("rope_theta", "partial_rotary_factor"):
        if raw.get(field) is not None:
            fields[field] = raw[field]
    if "partial_rotary_factor" not in reader.key_of and fields.get("partial_rotary_factor", 1.0) != 1.0:
        what, got = "rope on part of a head is not supported here", fields["partial_rotary_factor"]
        reader.problem(what, key, "partial_rotary_factor", got=got, need="1.0")
    scaling = _rope_scaling(raw, fields["max_position_embeddings"], reader.values)
    if scaling is not None:
        kind = scaling["rope_type"]
        needed, optional = ROPE_FIELDS.get(str(kind), ((), tuple(scaling)))
        known = ("rope_type", "factor", *needed, *optional)
        if idle := [name for name in scaling if name not in known]:  # Transformers' function for it reads no more
            reader.notes.append(f"what {key} has for other types than {kind} is left out: {', '.join(idle)}")
        fields["rope_scaling"] = {name: value for name, value in scaling.items() if name in known}
        reader.key_of["rope_scaling"] = key


def _section(reader: Reading, key: str) -> Mapping[str, Any]:
    """Return the rope section that the file has as `key`, else the class's own; of several only the part `main`, or
    that of layers without a window (`_rope_by_layer_type`).

    {} after a problem: no object. Unknown keys with a value are recorded as problems, but for YaRN's usual
    attention_factor; keys without effect are noted.
    """
    stated = reader.data.get(key) or {}
    raw = stated or reader.values.get("rope_scaling") or {}
    if not isinstance(raw, Mapping):
        reader.problem("wrong value", key, got=repr(raw), need="an object")
        return {}
    if isinstance(raw.get("main"), Mapping):  # beside a section of compressed keys (DeepSeek-V4)
        raw = raw["main"]
    if "rope_local_base_freq" in reader.fields and {FULL, SLIDING, INDEXED}.intersection(raw):
        raw = _rope_by_layer_type(reader, key, raw)
    reader.notes.extend(note for name, note in _ROPE_IDLE.items() if note is not None and stated.get(name))
    for name in (name for name, value in raw.items() if value is not None and name not in {*_ROPE_KEYS, *_ROPE_IDLE}):
        if name != "attention_factor" or not _is_usual_factor(raw):
            reader.problem("this key is not known and may change the architecture", key, name, got=raw[name])
    return raw


def _rope_by_layer_type(reader: Reading, key: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a rope section for layers without a window; the other part sets rope_local_base_freq.

    raw: the value of `key`, with a part for each layer type. Without a rope_theta in the window's part, the field
    stays. Scaled rope on layers with a window is recorded as a problem; parts that are no objects are one too, and then
    {} is returned.
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
    """Return whether the section is YaRN with the attention_factor that Transformers derives where none is written.

    That is 0.1 ln(factor) + 1, at least 1. False for other types, with mscale, or if a number is missing. Source:
    transformers' modeling_rope_utils.py, _compute_yarn_parameters. Olmo 3 writes it out.
    """
    written, factor = raw["attention_factor"], raw.get("factor")
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (written, factor))
    if raw.get("rope_type", raw.get("type")) != "yarn" or not numbers or raw.get("mscale"):
        return False
    return math.isclose(written, 0.1 * math.log(max(float(factor or 1), 1.0)) + 1.0, rel_tol=1e-6)


def _rope_scaling(raw: Mapping[str, Any], longest: int, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return RopeScaling's fields of a rope section, with Transformers' defaults; None if rope is not scaled.

    Not scaled are no type, default, mrope and proportional. Phi-3's su and yarn (models with
    original_max_position_embeddings among `values`) become longrope, whose factor is longest / original by default.

    longest: the model's max_position_embeddings, the default of the original one for llama3, yarn and longrope.
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
