"""How layouts and rows are written."""

from __future__ import annotations

import pytest

from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.program.net import Net, Node, net
from symconfig.solve.partition.rows import Part, does, layout, worded
from tests.solve.partition.programs import transformer

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
