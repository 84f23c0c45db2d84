"""All rules: from an operator's name, without its overload, to what records it in the program."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.graph.program.torch_source.call import Rule
from symconfig.graph.program.torch_source.rules import pointwise, reductions, shapes, statements, windows

RULES: Mapping[str, Rule] = {
    name: rule for room in (pointwise, statements, reductions, shapes, windows) for name, rule in room.RULES.items()
}
