"""Types of keys of `config.json`, as transformers' classes annotate them: int, list[int], float|list[float]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import Derived
from symconfig.descriptor.architectures.keys import FRACTIONS

_SPOKEN = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "an object",
    "list[int]": "a list of whole numbers",
    "list[float]": "a list of numbers",
    "list[str]": "a list of texts",
}
_OF_JSON: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "list": (list,), "dict": (dict,)
}  # fmt: skip


def type_of(key: str, default: object, annotated: str | None) -> str:
    """Return what a key must be: as its class says, else what its default is; empty: anything, where that is null."""
    if key in FRACTIONS:
        return "float"
    if annotated is not None:
        return "|".join(word for word in annotated.split("|") if word != "None")
    if default is None:
        return ""
    kind = "int" if isinstance(default, Derived) else type(default).__name__
    return "list" if kind == "tuple" else kind


def fits(value: Any, types: str) -> bool:
    """Tell whether a value is of one of these types. true is no number."""
    return any(_is(value, one) for one in types.split("|"))


def spoken(types: str) -> str:
    """Return the types as a person reads them."""
    return " or ".join(_SPOKEN.get(one, one) for one in types.split("|"))


def _is(value: Any, one: str) -> bool:
    outer, _, inner = one.partition("[")
    if not isinstance(value, _OF_JSON[outer]) or (isinstance(value, bool) and outer != "bool"):
        return False
    return not inner or (isinstance(value, list) and all(_is(item, inner.rstrip("]")) for item in value))
