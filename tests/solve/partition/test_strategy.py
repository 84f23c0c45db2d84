"""How layouts and rows are written, which rows a parameter may have, and the collectives that are listed of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.cost.partition.costs import Keep, Objective, Training
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.program.net import Net, Node, net
from symconfig.solve.partition.account import collectives
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.rows import Part, does, layout, spaces, worded
from symconfig.solve.partition.run import folded
from tests.solve.partition.programs import convolutions, transformer
from tests.solve.partition.solved import MESH, solved
from tests.solve.partition.strategies import named_rows

AXES = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6), MeshLevel("rail", 3, 1e10, 1e-5))).axes()  # 2 x 2 and 3
NET = net(transformer(1))


def node(of: Net, name: str) -> Node:
    return next(node for node in of.nodes if node.operator is not None and node.name == name)


def row(of: Node, *options: str) -> list[int]:
    names = [option.name for option in of.options]
    return [names.index(option) for option in options]


UP = node(NET, "layers.0.up_proj")  # up[B, S, F] = norm[B, S, H] * W[H, F]


@pytest.mark.parametrize(
    ("options", "backward", "text", "strategy"),
    [
        ((d.FFN, d.FFN, d.BATCH), False, "layers.0.up[b/3·rail, sequence, f/4·nvlink]", (3, 1, 4)),
        ((d.FFN, d.BATCH, d.BATCH), False, "layers.0.up[b/2·nvlink/3·rail, sequence, f/2·nvlink]", (6, 1, 2)),
        ((d.HIDDEN, d.HIDDEN, d.BATCH), False, "layers.0.up[b/3·rail, sequence, f] sums over 4·nvlink", (3, 1, 1)),
        ((d.HIDDEN, d.BATCH, d.HIDDEN), False, "layers.0.up[b/2·nvlink, sequence, f] sums over 2·nvlink, 3·rail",
         (2, 1, 1)),
        ((d.HIDDEN, d.HIDDEN, d.BATCH), True, "layers.0.up[b/3·rail, sequence, f]", (3, 1, 1)),
    ],
)  # fmt: skip
def test_a_layout_names_parts_by_level_innermost_first(
    options: tuple[str, ...], backward: bool, text: str, strategy: tuple[int, ...]
) -> None:
    found = layout(UP.ports[2], row(UP, *options), AXES, backward)
    assert found.text({d.BATCH: "b", d.FFN: "f"}) == text
    assert found.strategy == strategy
    assert found.text().startswith("layers.0.up[batch")


def test_a_parameter_that_lies_flat_says_over_what() -> None:
    weight = next(node for node in NET.nodes if node.parameter is not None and node.name == "layers.0.up_proj")
    assert layout(weight.ports[0], row(weight, "zero3", d.FFN, "zero3"), AXES).text() == (
        f"layers.0.up_proj[{d.HIDDEN}, {d.FFN}/2·nvlink] flat over 2·nvlink, 3·rail"
    )


def test_a_row_is_told_option_by_option_with_what_is_whole_last() -> None:
    chosen = row(UP, "whole", d.FFN, d.BATCH)
    assert does(UP, chosen, AXES) == (
        (d.BATCH, (Part("rail", 3),)), (d.FFN, (Part("nvlink", 2),)), ("whole", (Part("nvlink", 2),))
    )  # fmt: skip
    assert worded(UP, chosen, AXES) == f"{d.BATCH} over 3·rail, {d.FFN} over 2·nvlink, the same over 2·nvlink"
    assert worded(UP, chosen, AXES, str.upper).startswith("BATCH over 3·rail")
    assert worded(UP, [], ()) == "one rank"


PARAMETERS = {"dense": net(transformer(1)), "tied": net(transformer(1, tied=True)), "convolutions": net(convolutions())}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("flat", [True, False])
def test_every_row_of_a_parameter_goes_with_some_row_of_each_that_reads_it(name: str, flat: bool) -> None:
    costs = replace(solved(PARAMETERS[name]).costs, flat=flat)
    rows = spaces(costs, MESH.axes())
    assert rows is not None
    for index, link in enumerate(costs.net.links):
        parameter = costs.net.nodes[link.producer]
        if parameter.parameter is None:
            continue
        able = np.isfinite(costs.link(index, rows[link.producer], rows[link.consumer]).cost)
        assert able.any(axis=1).all()
        assert able.any(axis=0).all()
        taken = {parameter.options[option].zero for option in rows[link.producer].flat}
        assert taken == ({0, 1, 2, 3} if flat else {0})


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
