"""Every rule of both frameworks under its name, for the page of rules, for SARIF, and for those who ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.existing.rules import deepspeed, megatron
from symconfig.existing.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Group:
    """The rules about one framework."""

    framework: str
    rules: tuple[Rule[Any], ...]


GROUPS = (Group("Megatron-LM", megatron.RULES), Group("DeepSpeed", deepspeed.RULES))
SEVERITIES: Mapping[str, str] = {
    "error": "it does not start, fails in the first step, or trains something else",
    "warning": "it is slower, larger or other than it seems",
    "note": "worth knowing",
}


def rules() -> Iterator[Rule[Any]]:
    """Yield all rules, in the page's order."""
    for group in GROUPS:
        yield from group.rules


def named(name: str) -> Rule[Any] | None:
    """Return the rule of a name."""
    return next((rule for rule in rules() if rule.name == name), None)
