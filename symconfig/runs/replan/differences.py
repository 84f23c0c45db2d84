"""Plain data beside plain data: every leaf that is not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """A field by its dotted path, and its two values; None where one of them has it not."""

    field: str
    before: Any
    after: Any

    @property
    def delta(self) -> float | None:
        """Return after - before of two numbers; None of anything else."""
        if not (_number(self.before) and _number(self.after)):
            return None
        return float(self.after) - float(self.before)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def differences(before: Any, after: Any) -> tuple[Difference, ...]:
    """List differences in the order of `before`, then what only `after` has.

    A list is one value: its places are no names.
    """
    one, other = dict(_leaves(before)), dict(_leaves(after))
    fields = dict.fromkeys((*one, *other))
    return tuple(
        Difference(field, one.get(field), other.get(field)) for field in fields if one.get(field) != other.get(field)
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves(item, f"{path}.{key}" if path else str(key))
