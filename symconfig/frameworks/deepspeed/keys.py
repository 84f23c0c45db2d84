"""A DeepSpeed JSON against all keys that DeepSpeed reads: it passes over some that it does not know, this does not.

keys.json is a JSON Schema of them, made from the release's source by tools/generate/keys.py, which tells its own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from operator import gt, le, lt
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from symconfig.descriptor.document import KeyPath, shorten
from symconfig.errors import nearest
from symconfig.resources import json_data

Json = dict[str, Any]
AUTO = "auto"  # Transformers' Trainer fills the value in from its own arguments
MICRO, ACCUMULATION, TRAIN = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
ZERO = "zero_optimization"
FILE = Path(__file__).with_name("keys.json")
# What is passed over may be a program's own: only what is spelled nearly like a known key was meant for it.
ALIKE = 0.85
# removed, unknown, range: DeepSpeed refuses it; ignored: it passes over the key. loose: another type that DeepSpeed
# takes for the right one; name: it is not looked at before the optimizer or the schedule is made.
Kind = Literal["removed", "unknown", "ignored", "deprecated", "type", "range", "loose", "choice", "name"]
_TYPES = {"integer": int, "number": float, "boolean": bool, "string": str, "array": list, "object": dict}
_RANGES = {"minimum": (lt, "{} or more"), "exclusiveMinimum": (le, "above {}"), "maximum": (gt, "{} or less")}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key or value that DeepSpeed does not take as it is. alike: the most similar known word; None for none."""

    kind: Kind
    path: KeyPath
    what: str
    got: str | None = None
    need: str | None = None
    alike: str | None = None


def schema() -> Json:
    """Return the JSON Schema of keys.json; cached."""
    return json_data(FILE)


def release() -> str:
    """Return the DeepSpeed release that the keys are from, as 0.19.8."""
    return str(schema()["title"]).removeprefix("DeepSpeed ")


def mismatches(config: Any) -> Iterator[Mismatch]:
    """Yield every key and value of a DeepSpeed JSON that DeepSpeed refuses, ignores, converts or deprecates.

    "auto" stands for any value. A config that is no JSON object gives one mismatch.
    """
    if isinstance(config, dict):
        yield from _section(config, schema(), ())
    else:
        yield Mismatch("type", (), "is not a JSON object", type(config).__name__)


def _section(config: Json, node: Json, path: KeyPath) -> Iterator[Mismatch]:
    """Yield the mismatches of one JSON object and of its values, by its schema `node`; "auto" passes for any known key.

    A removed key gives `removed`; an unknown one `unknown` if the section is strict (additionalProperties false), else
    `ignored`. A section with x-names takes the keys that its neighbour `type` (an optimizer or schedule) has, any keys
    for an unknown type. path: of the object.
    """
    strict = node.get("additionalProperties") is False
    for key, value in config.items():
        place, known = (*path, key), node["properties"].get(key)
        if known is False:
            yield Mismatch("removed", place, f"DeepSpeed {release()} has removed this, and refuses to start with it")
        elif known is None:
            names = [name for name, rest in node["properties"].items() if rest is not False]
            alike = nearest(key, names, 0.6 if strict else ALIKE, most=1)
            what = f"DeepSpeed {release()} has no such key, and {'refuses it' if strict else 'would ignore it'}"
            yield Mismatch("unknown" if strict else "ignored", place, what, alike=alike)
        elif value == AUTO:
            continue
        elif "x-names" in known:
            named, kind = known["x-names"], str(config.get("type"))
            keys = named.get(kind, named.get(kind.lower(), value)) if isinstance(value, dict) else ()
            yield from _value(value, {"properties": {name: {} for name in keys}}, place, strict)
        else:
            yield from _value(value, known, place, strict)


def _value(value: Any, node: Json, place: KeyPath, strict: bool) -> Iterator[Mismatch]:
    """Yield the mismatches of one value, of a section those of its content: deprecated, type, range, or no choice.

    null passes where the schema allows it. A wrong type is `loose` where DeepSpeed converts the value, except text
    outside strict sections. strict: the section refuses unknown keys, as pydantic's models do.
    """
    if node.get("deprecated"):
        yield Mismatch("deprecated", place, "is deprecated", need=node.get("x-new-name"))
    if value is None and ("null" in node.get("type", ()) or None in node.get("enum", ())):
        return
    if "properties" in node:
        if isinstance(value, dict):
            yield from _section(value, node, place)
        else:
            yield Mismatch("type", place, "is not a section", shorten(value), "an object")
    elif "enum" in node:
        yield from _choice(value, node, place, strict)
    elif "type" in node:
        types = node["type"]
        kinds = [types] if isinstance(types, str) else [kind for kind in types if kind != "null"]
        exact = any(_is(value, kind) for kind in kinds)
        if not exact:
            loose = (strict or not isinstance(value, str)) and any(_is(value, kind, strict=False) for kind in kinds)
            meant = str(int(value)) if isinstance(value, float) and value.is_integer() else None
            wrong = "has the wrong type"
            yield Mismatch("loose" if loose else "type", place, wrong, shorten(repr(value)), " or ".join(kinds), meant)
        for word, (outside, need) in _RANGES.items():
            if exact and word in node and outside(value, node[word]):
                yield Mismatch("range", place, "is out of range", shorten(repr(value)), need.format(node[word]))


def _choice(value: Any, node: Json, place: KeyPath, strict: bool) -> Iterator[Mismatch]:
    """Yield a mismatch unless the value is one of the choices (those of x-any-case in any case).

    Its kind in a strict section is `loose` if DeepSpeed converts the value (its text or a bool's integer is a choice),
    else `choice`, which DeepSpeed refuses; outside of strict sections it is `name`.
    """
    names = [*map(str, filter(lambda each: each is not None, node["enum"])), *node.get("x-any-case", ())]
    anyhow = [name.lower() for name in node.get("x-any-case", ())]
    if (value in node["enum"] and not isinstance(value, bool)) or (isinstance(value, str) and value.lower() in anyhow):
        return
    taken = strict and (str(value) in names or (isinstance(value, bool) and int(value) in node["enum"]))
    kind: Kind = "loose" if taken else "choice" if strict else "name"
    alike = nearest(str(value), names)
    yield Mismatch(kind, place, "is not one of the choices", shorten(repr(value)), ", ".join(names), alike)


def _is(value: Any, kind: str, strict: bool = True) -> bool:
    """Return whether a value has a type of JSON Schema; without `strict`, whether pydantic converts it to that type."""
    try:
        _adapter(kind).validate_python(value, strict=strict)
    except ValidationError:
        return False
    return True


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[kind])
