"""What templates are given: dictionaries, lists, text, numbers, booleans and None, so that no object can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from symconfig.errors import InputError


def plain(value: object, place: str = "") -> Any:
    """Return the value in plain types: of a dataclass its fields and properties by name, of a descriptor its fields.

    place: where the value is, for the error. Raises InputError for a value of another kind.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, place)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        names += [name for name, kind in vars(type(value)).items() if isinstance(kind, property)]
        return {name: plain(getattr(value, name), f"{place}.{name}") for name in names if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {plain(key, place): plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, place) for item in value]
    need = "mappings, lists, text, numbers, booleans and None, or dataclasses of them"
    raise InputError("templates are not given such a value", field=place, got=type(value).__name__, need=need)
