"""What modules Transformers' classes are made of, and which weights of the graph each holds: by docs/modules.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "modules.json"
Rows = Mapping[str, tuple[str, ...]]  # a module -> the graph's weights that it may hold, by their stems


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Of one class, in order of registration: before the layers, in a layer by its kind, behind the layers. prefix: of
    the layers' names. vectors: modules whose own tensor has one dim, as norms have."""

    first: Rows
    prefix: str
    layers: Mapping[str, Rows]
    last: Rows
    vectors: frozenset[str] = frozenset()

    def layer(self, kind: str) -> Rows:
        """Return the modules of a layer of a kind; of one that is not known, those that any has."""
        if kind in self.layers:
            return self.layers[kind]
        return {module: stems for rows in self.layers.values() for module, stems in rows.items()}


@cache
def _file() -> Mapping[str, Modules]:
    return {kind: _modules(row) for kind, row in json.loads(FILE.read_text(encoding="utf-8")).items()}


def _modules(row: Mapping[str, Any]) -> Modules:
    return Modules(
        first=_rows(row["first"]),
        prefix=row["prefix"],
        layers={kind: _rows(rows) for kind, rows in row["layers"].items()},
        last=_rows(row["last"]),
        vectors=frozenset(row["vectors"]),
    )


def modules_of(kind: str) -> Modules | None:
    """Return the modules of a family's class; None: they are not known."""
    return _file().get(kind)


def _rows(rows: Mapping[str, list[str]]) -> Rows:
    return {module: tuple(stems) for module, stems in rows.items()}
