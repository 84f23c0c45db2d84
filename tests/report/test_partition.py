"""Names, layouts and amounts as the report of a partition writes them."""

from __future__ import annotations

from symconfig.format import general, short
from symconfig.graph.program.net import net
from symconfig.report.partition import names
from symconfig.solve.partition.strategy import layout, worded
from tests.solve.partition.programs import transformer
from tests.solve.partition.solved import MESH

NET = net(transformer(1))
AXES = MESH.axes()  # nvlink 2, nvlink 2, rail 2
NODE = next(node for node in NET.nodes if node.operator is not None and node.name == "layers.0.up_proj")
OPTIONS = {option.name: index for index, option in enumerate(NODE.options)}
BATCH, HIDDEN, FFN = OPTIONS["batch"], OPTIONS["hidden_size"], OPTIONS["intermediate_size"]


def test_a_tensor_is_written_with_the_level_of_each_part() -> None:
    port = next(port for port in NODE.ports if port.output)
    found = layout(port, (FFN, FFN, BATCH), AXES)
    assert found.text({"batch": "B", "sequence": "S", "intermediate_size": "F"}).endswith("[B/2·rail, S, F/4·nvlink]")
    assert found.strategy == (2, 1, 4)
    assert layout(port, (HIDDEN, FFN, BATCH), AXES).text().endswith("sums over 2·nvlink")
    assert layout(port, (0, 0, 0), AXES).strategy == (1, 1, 1)


def test_one_level_may_carry_several_dims_and_a_dim_lie_on_several_levels() -> None:
    port = next(port for port in NODE.ports if port.output)
    assert (
        layout(port, (BATCH, FFN, BATCH), AXES)
        .text()
        .endswith("[batch/2·nvlink/2·rail, sequence, intermediate_size/2·nvlink]")
    )
    assert worded(NODE, (BATCH, FFN, BATCH), AXES) == "batch over 2·nvlink, 2·rail, intermediate_size over 2·nvlink"


def test_layers_numbers_are_left_out_of_names_and_only_those() -> None:
    assert general("layers.12.up_proj.weight") == "layers.*.up_proj.weight"
    assert general("layer4.0.conv1") == "layer4.*.conv1"
    assert short("abcdef", 4) == "abc…"


def test_long_dims_get_letters_of_their_own_and_short_ones_keep_their_names() -> None:
    found = names(("batch", "b", "hidden_size", "transformer.wte:1", "another long dim"))
    assert found == {"batch": "B", "hidden_size": "D", "transformer.wte:1": "a", "another long dim": "c"}
