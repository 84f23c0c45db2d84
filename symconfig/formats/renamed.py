"""Megatron-LM's options under the names of a program that builds on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from symconfig.errors import Problem
from symconfig.formats.layer_pattern import layer_pattern
from symconfig.formats.links import destinations
from symconfig.formats.megatron_run import RUN
from symconfig.frameworks.megatron.flags import FlagTable, parsed

Refusal: TypeAlias = tuple[str, str]  # the plan's field, and why the program cannot express it
RUN_LINKED = frozenset(dest for links in RUN.values() for link in links for dest in destinations(link.option))
_LISTS = ("tuple_type", "moe_freq_type", "no_rope_freq_type", "la_freq_type")  # texts of lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A program's names for Megatron-LM's options, by destination.

    names: the program's names (often one), with its section before a dot. omitted: options that it does not need.
    refused: the reasons against options that it cannot express; any other is refused as missing. refusal: how a refusal
    begins. first: options of which only the first value is taken.
    """

    names: Mapping[str, tuple[str, ...]]
    omitted: Collection[str]
    refused: Mapping[str, Refusal]
    refusal: str
    first: Collection[str] = ()

    def write(self, options: Iterable[Sequence[str]], table: FlagTable) -> tuple[dict[str, Any], list[Problem]]:
        """Return (values by the program's names, problems) for Megatron-LM's options: sequences of a name and values.

        Options in `omitted` are skipped; others without a name give a problem. Raises KeyError for an unknown one.
        """
        fields: dict[str, Any] = {}
        problems: list[Problem] = []
        for option in options:
            name, joined, word = option[0].partition("=")
            dest = table.flags[name].dest
            if dest in self.names:
                value: Any = parsed(table.flags[name], [word] if joined else option[1:], name)
                if table.flags[name].type in _LISTS:
                    value = layer_pattern(f"({value})")
                value = list(value) if isinstance(value, tuple) else value
                fields |= dict.fromkeys(self.names[dest], value[0] if dest in self.first else value)
            elif dest not in self.omitted:
                field, why = self.refused.get(dest, (name, "it has no such argument"))
                problems.append(Problem(f"{self.refusal}: {why}", field=field, got=" ".join(option)))
        return fields, problems

    def keys(self) -> dict[str, str]:
        """Return Megatron-LM's destinations by the program's names, without sections; equal names are left out."""
        last = ((dest, path.rpartition(".")[2]) for dest, paths in self.names.items() for path in paths)
        return {name: dest for dest, name in last if name != dest}
