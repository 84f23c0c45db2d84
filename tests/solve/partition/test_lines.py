"""What a cut of the mesh reads is what the costs say of its rows one by one."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.cost.partition.costs import Keep, Objective
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import net
from symconfig.solve.partition.lines import Lines
from symconfig.solve.partition.rows import allowed
from tests.solve.partition.programs import transformer
from tests.solve.partition.test_adaptive import AXES, DENSE, IMAGES, SMALL, weighed

FOLDED = fold(transformer(3))
NETS = {"perceptron": SMALL, "dense": DENSE, "convolutions": IMAGES}
NETS["layers"] = net(FOLDED.program, FOLDED.of, FOLDED.runs)


@pytest.mark.parametrize("of", NETS)
@pytest.mark.parametrize("keep", Keep)
@pytest.mark.parametrize("objective", Objective)
def test_a_line_has_the_costs_of_its_rows(of: str, keep: Keep, objective: Objective) -> None:
    costs, source = weighed(NETS[of], objective, keep=keep), np.random.default_rng(1)
    nodes, links = costs.net.nodes, costs.net.links
    lines, axes = Lines(costs, AXES), range(len(AXES))
    rows = np.array([[source.integers(len(node.options)) for _ in axes] for node in nodes])
    for axis in axes:
        line, some = lines.along(axis, rows), []
        for index, (cost, memory) in enumerate(zip(*map(lines.of_nodes, line[:2]), strict=True)):
            mine = np.tile(rows[index], (len(nodes[index].options), 1))
            mine[:, axis] = np.arange(len(mine))
            expected, able = costs.node(index, mine), allowed(costs.net, nodes[index], mine, AXES)
            able &= costs.timed | np.isfinite(cost)
            np.testing.assert_allclose(cost, np.where(able, expected.cost, np.inf))
            np.testing.assert_allclose(memory, expected.memory)
            some.append(mine)
        tables = zip(links, lines.of_links(line.link_cost), lines.of_links(line.link_memory), strict=True)
        for number, (link, cost, memory) in enumerate(tables):
            found = costs.link(number, some[link.producer], some[link.consumer])
            np.testing.assert_allclose(cost, found.cost)
            np.testing.assert_allclose(memory, found.memory)
