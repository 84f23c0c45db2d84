"""What each architecture's `config.json` means: keys with the defaults of transformers' config classes, as data.

Each file lists families that are kin, in a table `ARCHITECTURES`. Defaults are those of transformers' own classes
(`transformers.json`, written by tools/generate/families.py); `qwen` is the configuration_qwen.py beside the weights of
Qwen/Qwen-7B. A key that is in none of an architecture's tables is an error: it may change the model.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.keys import around, defaults, row_of
from symconfig.descriptor.architectures.multimodal import MULTIMODAL
from symconfig.descriptor.document import load_yaml_strict

FOLDER = str(Path(__file__).parent)


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return every readable architecture by model_type, cached: all tables, completed by their class's defaults.

    Multimodal models around a text model with a table are added, with `text_of` only; a table of the same model_type
    takes precedence.
    """
    modules = (importlib.import_module(f"{__package__}.{one.name}") for one in pkgutil.iter_modules([FOLDER]))
    tables: list[dict[str, Architecture]] = [getattr(module, "ARCHITECTURES", {}) for module in modules]
    complete = {kind: _complete(kind, one) for table in tables for kind, one in table.items()}
    text_of = around() | {kind: ("text_config", table.text) for kind, table in MULTIMODAL.items() if table.text}
    outer = {kind: Architecture(text_of=(section, inner)) for kind, (section, inner) in text_of.items()
             if inner in complete and kind not in complete}  # fmt: skip
    return MappingProxyType(outer | complete)


def reasons(section: str) -> dict[str, str]:
    """Return why families cannot be described, by model_type. section: of refused.yaml, no_decoder or others."""
    stated = load_yaml_strict(Path(FOLDER) / "refused.yaml").data[section].items()
    return {kind: why for why, kinds in stated for kind in kinds.split()}


@cache
def refused() -> Mapping[str, str]:
    """Return, by model_type, why a family cannot be described (refused.yaml); without those that `architectures` has.

    A multimodal family without a reason of its own has that of its text model.
    """
    own = {**reasons("no_decoder"), **reasons("others")}
    of_text = {kind: own[inner] for kind, (_, inner) in around().items() if inner in own}
    return MappingProxyType({kind: why for kind, why in {**of_text, **own}.items() if kind not in architectures()})


def _complete(kind: str, table: Architecture) -> Architecture:
    """Return the table with its class's defaults, types and aliases, and in `reads` the keys of its blocks and rules.

    The table's own entries take precedence. Aliases in defaults and types are replaced by the key that is read, and
    keys that are sections are left out. Without a class in transformers.json only `reads` is extended.
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
