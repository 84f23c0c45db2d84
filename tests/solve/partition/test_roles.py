"""What roles read off an operator's dims."""

from __future__ import annotations

from dataclasses import replace

from symconfig.graph import dims as d
from symconfig.graph.program.net import net
from symconfig.solve.partition.roles import Roles
from tests.solve.partition.programs import transformer


def test_slots_count_as_examples_but_not_where_they_lie_with_the_sequence() -> None:
    program = replace(transformer(1, experts=True), batch=frozenset({d.BATCH, d.SLOTS}))
    roles = Roles(net(program))
    splits = {
        node.name: [set(node.options[option].split.loops) for option in roles.examples(node)]  # type: ignore[union-attr]
        for node in roles.net.nodes
        if node.operator is not None
    }
    assert splits["layers.0.dispatch"] == [{d.BATCH, d.SLOTS}]
    assert splits["layers.0.up_proj"] == [{d.SLOTS}]
    assert splits["layers.0.q_proj"] == [{d.BATCH}]
