"""The collectives that are listed are those that are weighed."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.cost.partition.costs import Keep, Objective, Training
from symconfig.graph.program.net import net
from symconfig.solve.partition.account import collectives
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.run import folded
from tests.solve.partition.programs import convolutions, transformer
from tests.solve.partition.solved import solved
from tests.solve.partition.strategies import named_rows

NETS = {"dense": net(transformer(1, tied=True)), "experts": net(transformer(1, experts=True)),
        "folded": folded(transformer(3)), "convolutions": net(convolutions())}  # fmt: skip


@pytest.mark.parametrize("program", NETS)
@pytest.mark.parametrize("strategy", ["zero3", "megatron-tp-sp", "gshard"])
@pytest.mark.parametrize(("objective", "keep"), [(Objective.TIME, Keep.SHARDS), (Objective.SYMTENSOR, Keep.BORDERS)])
def test_what_shows_of_all_of_them_is_the_communication_of_the_cost(
    program: str, strategy: str, objective: Objective, keep: Keep
) -> None:
    any_rows = solved(NETS[program], objective=objective, training=Training(2, keep))
    costs, rows = any_rows.costs, named_rows(NETS[program], any_rows.axes, strategy)
    if rows is None:
        pytest.skip("the program has nothing for it")
    every = [row[None] for row in rows]
    problem = assemble(costs, every, float("inf"))
    work = 0.0
    for node, row in zip(costs.net.nodes, every, strict=True):
        passes = costs.passes(node, row)
        work += 2 * node.times * float((costs.forwards(node) * passes.forward + passes.backward)[0])
        if node.parameter is not None:
            work += float(costs.node(costs.net.nodes.index(node), row).cost[0])
    listed = collectives(costs, any_rows.axes, rows.tolist())
    assert listed
    total = problem.cost((0,) * len(every))
    if np.isfinite(total):
        assert sum(one.exposed for one in listed) == pytest.approx(total - work, rel=1e-9)
    assert all(one.times > 0 for one in listed)
    inside = [one for one in listed if one.link == -1]
    assert all(one.producer == one.consumer for one in inside)
    between = [(costs.net.links[one.link], one) for one in listed if one.link != -1]
    assert all(costs.net.nodes[link.producer].name == one.producer for link, one in between)
    assert all(costs.net.nodes[link.consumer].name == one.consumer for link, one in between)
    assert all(0 <= one.exposed <= one.cost * (1 + 1e-12) for one in listed)


def test_zero_3_gathers_every_weight_over_each_level_and_says_how_large() -> None:
    found = solved(NETS["dense"])
    rows = named_rows(NETS["dense"], found.axes, "zero3")
    weight = next(p.tensor for p in NETS["dense"].program.parameters if p.tensor.name == "layers.0.up_proj")
    mine = [one for one in collectives(found.costs, found.axes, rows.tolist()) if one.tensor == weight.name]
    gathers = [(one.level, one.ranks, one.amount) for one in mine if one.phase == "forward"]
    size = NETS["dense"].program.elements(weight.name) * weight.element_bytes
    assert sorted(gathers) == [("nvlink", 4, size / 2), ("rail", 2, size)] or sorted(gathers) == [
        ("nvlink", 4, size), ("rail", 2, size / 4)]  # fmt: skip
    assert {one.kind for one in mine if one.phase == "forward"} == {"all-gather"}
