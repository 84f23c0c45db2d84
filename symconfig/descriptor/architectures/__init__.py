"""What each architecture's `config.json` means: keys with the defaults of transformers' config classes, as data.

Each file lists families that are kin, in a table `ARCHITECTURES`. Defaults are those of transformers' own classes
(`transformers.json`, written by tools/generate/families.py); `qwen` is the configuration_qwen.py beside the weights of
Qwen/Qwen-7B. A key that is in none of an architecture's tables is an error: it may change the model.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.class_defaults import around, defaults, families, row_of
from symconfig.descriptor.architectures.multimodal import MULTIMODAL
from symconfig.descriptor.architectures.not_described import REFUSED


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return every readable architecture by model_type, cached.

    These are all tables, and the multimodal models around their text models.
    """
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    tables: list[dict[str, Architecture]] = [getattr(module, "ARCHITECTURES", {}) for module in modules]
    complete = {kind: _complete(kind, one) for table in tables for kind, one in table.items()}
    return MappingProxyType(dict(_multimodal(complete)) | complete)


@cache
def refused() -> Mapping[str, str]:
    """Return, by model_type, why a Transformers family cannot be described; without those that `architectures` has.

    A multimodal family whose text model cannot be described has the reason of that one.
    """
    outer: dict[str, tuple[str, str]] = {
        kind: row["text"] for kind, row in families().items() if row.get("text")
    } | around()
    of_text = {kind: REFUSED[inner] for kind, (_, inner) in outer.items() if inner in REFUSED}
    return MappingProxyType({kind: why for kind, why in {**of_text, **REFUSED}.items() if kind not in architectures()})


def _multimodal(known: Mapping[str, Architecture]) -> Iterator[tuple[str, Architecture]]:
    """Yield (model_type, table) of each multimodal family whose text model is among `known`.

    The tables have `text_of` only.
    """
    for kind, row in families().items():
        section, inner = row.get("text") or ("", "")
        if inner in known and kind != inner:
            yield kind, Architecture(text_of=(section, inner))
    for kind, (section, inner) in around().items():
        if inner in known and kind not in known:
            yield kind, Architecture(text_of=(section, inner))
    for kind, table in MULTIMODAL.items():
        if table.text in known:
            yield kind, Architecture(text_of=("text_config", table.text))


def _complete(kind: str, table: Architecture) -> Architecture:
    """Return the table with its class's defaults, types and aliases, and in `reads` the keys of its blocks and rules.

    The table's own entries come first. Without a class in transformers.json only `reads` is extended.
    """
    of_blocks = chain.from_iterable(block.keys for block in table.blocks.values())
    of_rules = chain.from_iterable(rule.keys.split() for rule in table.rules)
    table = replace(table, reads=(*table.reads, *of_blocks, *of_rules))
    row = row_of(table.of_class or kind)
    if row is None:
        return table
    keys = defaults(row) | dict(table.defaults)
    other = dict(table.same_as)
    _rename(keys, other)
    for name, key in row["aliases"].items():
        if name in keys and key not in keys:
            name, key = key, name
        if key in keys and name not in keys:
            other.setdefault(name, key)
    _rename(keys, other)
    kinds = dict(row["types"])
    _rename(kinds, other)
    keys = {key: value for key, value in keys.items() if key not in table.sections}
    return replace(table, defaults=keys, same_as=other, types={**kinds, **table.types})


def _rename(keys: dict[str, Any], other: Mapping[str, str]) -> None:
    for name, key in other.items():
        if name in keys:
            keys.setdefault(key, keys[name])
            del keys[name]
