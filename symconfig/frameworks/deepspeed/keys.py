"""A DeepSpeed JSON against all keys that DeepSpeed reads: it passes over some that it does not know, this does not.

The known keys are in keys.json, made from the release's source by tools/generate/keys.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.document import KeyPath, shorten
from symconfig.errors import nearest

Json = dict[str, Any]
AUTO = "auto"  # Transformers' Trainer fills the value in from its own arguments
MICRO, ACCUMULATION, TRAIN = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
ZERO = "zero_optimization"
FILE = Path(__file__).with_name("keys.json")
# What is passed over may be a program's own: only what is spelled nearly like a known key was meant for it.
ALIKE = 0.85
# removed, unknown: DeepSpeed refuses the key; ignored: it passes over it. loose: another type that DeepSpeed takes for
# the right one; name: it is not looked at before the optimizer or the schedule is made.
Kind = Literal["removed", "unknown", "ignored", "deprecated", "type", "loose", "choice", "name"]
# Whole numbers by meaning, for which the source gives no type.
_INTEGERS = words(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print sequence_parallel_size
    data_parallel_size autotp_size autoep_size expert_tensor_parallel_size number_checkpoints
    """
)
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "any": lambda v: True,
}
_NULL = (["any"], ["boolean"])  # null is the first kind's default; no model of pydantic's checks the second
_BOOLEAN_WORDS = frozenset(("true", "false", "on", "off", "yes", "no", "y", "n", "t", "f", "1", "0"))  # pydantic's


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key or value that is not as DeepSpeed has it. alike: the known word that is most like it."""

    kind: Kind
    path: KeyPath
    what: str
    got: str | None = None
    need: str | None = None
    alike: str | None = None


@cache
def release() -> str:
    """Return the DeepSpeed release that the keys are of."""
    return str(known()["release"])


@cache
def known() -> Json:
    """Return the whole table of keys.json."""
    data: Json = json.loads(FILE.read_text(encoding="utf-8"))
    return data


def mismatches(config: Any) -> Iterator[Mismatch]:
    """Yield every unknown key, wrong type and wrong choice. "auto" stands for any value."""
    if isinstance(config, dict):
        yield from _section(config, {"keys": known()["keys"]}, ())
    else:
        yield Mismatch("type", (), "is not a JSON object", type(config).__name__)


def _section(config: Json, node: Json, path: KeyPath) -> Iterator[Mismatch]:
    gone = known()["removed"].get(".".join(map(str, path)), ())
    for key, value in config.items():
        place = (*path, key)
        if key in gone:
            yield Mismatch("removed", place, f"DeepSpeed {release()} has removed this, and refuses to start with it")
        elif key not in node["keys"]:
            yield _unknown(key, node["keys"], place, bool(node.get("strict")))
        elif value == AUTO:
            continue
        elif place == ("optimizer", "params"):
            yield from _parameters(value, _of_adam(config), place)
        elif place == ("scheduler", "params"):
            yield from _parameters(value, node["keys"][key]["keys_by_type"].get(str(config.get("type"))), place)
        else:
            yield from _value(value, node["keys"][key], place, bool(node.get("strict")))


def _value(value: Any, node: Json, place: KeyPath, strict: bool) -> Iterator[Mismatch]:
    if "deprecated" in node:
        yield Mismatch("deprecated", place, "is deprecated", need=node["deprecated"] or None)
    if value is None and (node.get("null") or ("keys" not in node and node.get("type") in _NULL[: 1 if strict else 2])):
        return
    if "keys" in node:
        if isinstance(value, dict):
            yield from _section(value, node, place)
        else:
            yield Mismatch("type", place, "is not a section", shorten(value), "an object")
    elif "enum" in node:
        yield from _choice(value, node, place, strict)
    else:
        types = ["integer"] if place[-1] in _INTEGERS else node["type"]
        if not any(_CHECKS[name](value) for name in types):
            kind: Kind = "loose" if any(_taken_for(value, name, strict) for name in types) else "type"
            meant = str(int(value)) if isinstance(value, float) and value.is_integer() else None
            yield Mismatch(kind, place, "has the wrong type", shorten(repr(value)), " or ".join(types), meant)


def _choice(value: Any, node: Json, place: KeyPath, strict: bool) -> Iterator[Mismatch]:
    anyhow = [name.lower() for name in node.get("enum_any_case", ())]
    if (value in node["enum"] and not isinstance(value, bool)) or (isinstance(value, str) and value.lower() in anyhow):
        return
    choices = [*map(str, node["enum"]), *node.get("enum_any_case", ())]
    taken = strict and (str(value) in choices or (isinstance(value, bool) and int(value) in node["enum"]))
    kind: Kind = "loose" if taken else "choice" if strict else "name"
    yield Mismatch(
        kind, place, "is not one of the choices", shorten(repr(value)), ", ".join(choices), nearest(str(value), choices)
    )


def _taken_for(value: Any, kind: str, strict: bool) -> bool:
    """Tell whether DeepSpeed takes a value for one of this type: sections that are pydantic models read text as
    numbers, too.
    """
    if kind in ("integer", "number"):
        if isinstance(value, float):
            return value.is_integer()
        if isinstance(value, bool):
            return True
        return strict and isinstance(value, str) and _reads(value, int if kind == "integer" else float)
    return kind == "boolean" and (
        (isinstance(value, int) and value in (0, 1))
        or (strict and isinstance(value, str) and value.lower() in _BOOLEAN_WORDS)
    )


def _reads(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text[:100])
    except ValueError:
        return False
    return True


def _of_adam(optimizer: Json) -> list[str] | None:
    """Return the parameters of Adam and AdamW; of others none are known."""
    names: list[str] = known()["keys"]["optimizer"]["keys"]["params"]["keys_of_adam"]
    return names if str(optimizer.get("type", "")).lower() in ("adam", "adamw") else None


def _parameters(value: Any, names: list[str] | None, place: KeyPath) -> Iterator[Mismatch]:
    if not isinstance(value, dict):
        yield Mismatch("type", place, "is not a section", shorten(repr(value)), "an object")
    elif names is not None:
        yield from (_unknown(key, names, (*place, key), False) for key in value if key not in names)


def _unknown(key: str, names: Collection[str], place: KeyPath, strict: bool) -> Mismatch:
    what = f"DeepSpeed {release()} has no such key, and {'refuses it' if strict else 'would ignore it'}"
    return Mismatch(
        "unknown" if strict else "ignored", place, what, alike=nearest(key, names, 0.6 if strict else ALIKE, most=1)
    )
