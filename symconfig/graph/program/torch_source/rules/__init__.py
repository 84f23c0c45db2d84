"""All rules: from an operator's name, without its overload, to what records it in the program."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.graph.program.torch_source.recorder import Rule
from symconfig.graph.program.torch_source.rules import arithmetic, shapes


def _named(tables: tuple[Mapping[str, Rule], ...]) -> dict[str, Rule]:
    return {f"aten.{name}": rule for table in tables for names, rule in table.items() for name in names.split()}


IN_PLACE: Mapping[str, Rule] = _named((shapes.IN_PLACE,))
RULES: Mapping[str, Rule] = {
    **_named((arithmetic.RULES, arithmetic.STATEMENTS, shapes.IN_PLACE, shapes.RULES, shapes.WINDOWS)),
    **{f"symconfig.{name}": rule for name, rule in arithmetic.EXPERTS.items()},
}
