"""The modules of Transformers' classes and the weights of the graph that each holds, by tools/generate/modules.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
FILE = Path(__file__).parent / "modules.json"
# A module -> the graph's weights that it may hold, by their stems, in equal shares with others that list them; a
# parameter of no module -> their whole names.
Rows = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Modules of one class in order of registration: before the layers, in layers that hold different weights, behind
    the layers. prefix: of the layers' names. vectors: modules whose own tensor has one dim, as norms have.
    """

    first: Rows
    prefix: str
    layers: tuple[Rows, ...]
    last: Rows
    vectors: frozenset[str] = frozenset()

    def layer(self, weights: Set[str]) -> Rows:
        """Return the modules of a layer that holds these weights; of one that is not known, those of the nearest."""
        stems = {stem_of(name) for name in weights}
        whole = weights | {part for stem in stems for part in _FUSED.get(stem, (stem,))}
        return max(self.layers, key=lambda rows: -len(whole ^ _parts(rows)), default={})


def _parts(rows: Rows) -> set[str]:
    every = {stem for stems in rows.values() for stem in stems}
    return (every | {stem_of(stem) for stem in every}) - {*_FUSED}


def stem_of(name: str) -> str:
    """Return a weight's name without what tells the tensors of one module apart."""
    return name.removesuffix(".lora_A").removesuffix(".lora_B").removesuffix(".weight").removesuffix(".bias")


@cache
def _file() -> Mapping[str, Modules]:
    return {kind: _modules(row) for kind, row in json.loads(FILE.read_text(encoding="utf-8")).items()}


def _modules(row: Mapping[str, Any]) -> Modules:
    return Modules(
        first=_rows(row["first"]),
        prefix=row["prefix"],
        layers=tuple(map(_rows, row["layers"])),
        last=_rows(row["last"]),
        vectors=frozenset(row["vectors"]),
    )


def modules_of(kind: str) -> Modules | None:
    """Return the modules of a family's class; None: they are not known."""
    return _file().get(kind)


def _rows(rows: Mapping[str, list[str]]) -> Rows:
    """Return rows with the name that an adapter on a whole fused layer has in the graph."""
    return {module: (*_fused(stems), *stems) for module, stems in rows.items()}


def _fused(stems: list[str]) -> tuple[str, ...]:
    return tuple(whole for whole, parts in _FUSED.items() if set(parts) <= set(stems))
