"""Rules of an audit that other packages add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from symconfig.descriptor.plugins import Plugin, plugins
from symconfig.existing.rules.catalogue import rules
from symconfig.existing.rules.facts import NotKnown
from symconfig.existing.rules.rule import Rule, Rules

About = Literal["MEGATRON", "DEEPSPEED"]  # the name that a plug-in's module gives its rules of a framework


@cache
def plugged(about: About) -> tuple[Rule[Any], ...]:
    """Return the rules of a framework that plug-ins have. Raises InputError for a plug-in that is wrong."""
    by_name: dict[str, Rule[Any]] = {}
    for plugin in plugins("rules").values():
        for rule in _of(plugin, about):
            if rule.name in by_name or any(rule.name == own.name for own in rules()):
                raise plugin.wrong(f"there is another rule of the name {rule.name}")
            by_name[rule.name] = rule
    return tuple(by_name.values())


def _of(plugin: Plugin, about: About) -> Iterator[Rule[Any]]:
    if not any(hasattr(plugin.module(), name) for name in ("MEGATRON", "DEEPSPEED")):
        raise plugin.wrong(f"{plugin.entry.value} has neither MEGATRON nor DEEPSPEED")
    if hasattr(plugin.module(), about):
        for rule in plugin.attribute(about, Rules).entered:
            yield replace(rule, check=plugin.guarded(rule.check, NotKnown))
