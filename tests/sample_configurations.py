"""Configurations of which a test names only what it is about."""

from __future__ import annotations

from typing import Any

from symconfig.cost.table import Choice
from symconfig.solve.prospect import Setup, recomputing


def configuration(*, zero: int = 0, modules: frozenset[str] = frozenset(), **fields: Any) -> Setup:
    """Return a configuration. modules: recomputed ones; {"layer"}: full recompute."""
    return Setup(**{"zero_stage": zero, **recomputing(Choice(modules)), **fields})
