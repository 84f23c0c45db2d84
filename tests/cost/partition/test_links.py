"""What a link costs and holds for a table of rows is what it does for each pair; what any strategy must hold."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from symconfig.cost.framework import Hide
from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.cost.partition.kept import floor_bytes
from symconfig.cost.partition.links import digits, is_gather
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.layout import PARTIAL, WHOLE
from symconfig.graph.program.net import Net, net
from symconfig.solve.partition.run import folded
from tests.solve.partition.programs import convolutions, transformer
from tests.solve.partition.solved import solved
from tests.solve.partition.strategies import named_rows

CLUSTER = load_cluster("h100")
MESH = Mesh((MeshLevel("nvlink", 2, 4e11, 1e-6), MeshLevel("rail", 4, 5e10, 1e-5)))
AXES = MESH.axes(((2,), (4,)))

NETS = {
    "dense": folded(transformer(3)),
    "tied": net(transformer(1, tied=True)),
    "experts": net(transformer(1, experts=True)),
    "convolutions": net(convolutions()),
}


def weighed(of: Net, objective: Objective = Objective.TIME, keep: Keep = Keep.USED, turns: int = 1) -> Costs:
    speeds = rates.seconds(AXES, MESH, CLUSTER) if objective is Objective.TIME else rates.elements(AXES)
    return Costs(of, speeds, machine(CLUSTER, "bf16"), MEGATRON, Training(turns, keep), objective)


def every(of: Net, node: int) -> np.ndarray:
    options = len(of.nodes[node].options)
    return np.array([(a, b) for a in range(options) for b in range(options)])


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("keep", Keep)
def test_a_table_has_what_each_pair_has_by_itself(name: str, objective: Objective, keep: Keep) -> None:
    costs, random = weighed(NETS[name], objective, keep, turns=2), np.random.default_rng(3)
    for index, link in enumerate(costs.net.links):
        given, taken = every(costs.net, link.producer), every(costs.net, link.consumer)
        table = costs.link(index, given, taken)
        cost, memory, rows, columns = costs.grouped(index, given, taken)
        np.testing.assert_array_equal(cost[rows][:, columns], table.cost)
        np.testing.assert_array_equal(memory[rows][:, columns], table.memory)
        a, b = random.integers(len(given), size=8), random.integers(len(taken), size=8)
        for i, j in zip(a, b, strict=True):
            one = costs.link(index, given[i : i + 1], taken[j : j + 1])
            assert (one.cost[0, 0], one.memory[0, 0]) == pytest.approx((table.cost[i, j], table.memory[i, j]))


@pytest.mark.parametrize("keep", Keep)
def test_whole_on_every_rank_is_held_what_the_floor_counts_for_one(keep: Keep) -> None:
    """Nothing is cut and nothing gathered, so that what no strategy goes below is what this one holds."""
    for of in NETS.values():
        costs = weighed(of, keep=keep)
        row = np.zeros((1, len(AXES)), dtype=np.int64)
        found = sum(float(costs.node(index, row).memory[0]) for index in range(len(of.nodes)))
        found += sum(float(costs.link(index, row, row).memory[0, 0]) for index in range(len(of.links)))
        assert floor_bytes(costs, 1) == pytest.approx(found)


def test_a_layer_holds_what_its_operators_read_again() -> None:
    """Of a layer's tensors of 16 x 64 tokens in 2 bytes: the input of two norms, what q, k and v read in common, q, k,
    v and the attention's result, the MLP's input and both sides of its gelu; 4 bytes of statistics."""
    tokens, width, ffn, heads = 16 * 64, 128, 512, 16
    elements = 2 * width + width + 4 * width + width + 2 * ffn
    layer = tokens * (2 * elements + 4 * (2 + heads))
    parameters = 4 * width**2 + 2 * width * ffn + 2 * width
    four, five = (floor_bytes(weighed(folded(transformer(layers))), 1) for layers in (4, 5))
    assert five - four == layer + 18 * parameters
    # Where layers run again, each keeps what came in, and one at a time the rest.
    lean, many = (floor_bytes(weighed(folded(transformer(layers)), keep=Keep.BORDERS), 1) for layers in (4, 9))
    assert many - lean == 5 * (2 * tokens * width + 18 * parameters)
    assert four - lean == 3 * (layer - 2 * tokens * width)


def test_what_is_gathered_for_an_operator_stays_whole_or_as_the_shard_that_is_gathered_again() -> None:
    """The input of the MLP's first product, split by tokens before and whole in it."""
    of = NETS["dense"]
    index = next(
        i for i, link in enumerate(of.links)
        if of.nodes[link.producer].name == "layers.0.mlp_norm" and of.nodes[link.consumer].name == "layers.0.up_proj"
    )  # fmt: skip
    link = of.links[index]
    tokens = [option.name for option in of.nodes[link.producer].options].index("sequence")
    columns = [option.name for option in of.nodes[link.consumer].options].index("intermediate_size")
    given, taken = np.array([[tokens, tokens]]), np.array([[columns, columns]])
    size = 3 * 16 * 64 * 128 * 2  # of three layers
    used, shards = (weighed(of, Objective.SYMTENSOR, keep, turns=5) for keep in (Keep.USED, Keep.SHARDS))
    assert used.link(index, given, taken).memory == size
    # The norm does not keep what it makes; the product keeps its eighth.
    assert shards.link(index, given, taken).memory == size / 8
    gather = (1 - 1 / 8) * size / 2  # elements
    assert used.link(index, given, taken).cost == pytest.approx(5 * 2 * gather)
    assert shards.link(index, given, taken).cost == pytest.approx(5 * 3 * gather)


@pytest.mark.parametrize(("stage", "turns", "moved"), [(1, 1, 2), (1, 4, 2), (2, 4, 5), (3, 4, 12)])
def test_zero_moves_a_weight_as_often_as_its_paper_says(stage: int, turns: int, moved: int) -> None:
    """In units of (N - 1) / N of the weight. Stages 1 and 2 gather it once after the optimizer's step, stage 3 twice
    for every microbatch; stage 1 reduces gradients once, the others with every microbatch."""
    costs = weighed(NETS["dense"], Objective.SYMTENSOR, turns=turns)
    rows = named_rows(NETS["dense"], AXES, f"zero{stage}")
    assert rows is not None
    for index, link in enumerate(costs.net.links):
        node = costs.net.nodes[link.producer]
        if node.parameter is not None and node.name.endswith("up_proj"):
            found = costs.link(index, rows[link.producer][None], rows[link.consumer][None]).cost
            assert found == pytest.approx(moved * 7 / 8 * link.times * prod(node.ports[0].sizes))


def test_work_beside_a_weights_gathers_and_reductions_hides_them() -> None:
    """With all of it to hide behind nothing shows that takes no longer; with none of it all shows."""
    of = NETS["dense"]
    rows = named_rows(of, AXES, "data")
    assert rows is not None
    shown = {}
    for hide in (0.0, 0.01, 1e6):
        costs = replace(weighed(of), framework=replace(MEGATRON, hide=Hide(data=hide)))
        for index, link in enumerate(of.links):
            if of.nodes[link.producer].name == "layers.0.up_proj" and of.nodes[link.producer].parameter is not None:
                pair = rows[link.producer][None], rows[link.consumer][None]
                assert any(place == PARTIAL for place in of.nodes[link.consumer].ports[link.taken].backward[pair[1][0]])
                work = costs.passes(of.nodes[link.consumer], pair[1])
                shown[hide] = float(costs.link(index, *pair).cost[0, 0]) / link.times
                backward = float(work.backward[0])
    assert shown[1e6] == 0.0 < shown[0.0]
    assert shown[0.0] - shown[0.01] == pytest.approx(0.01 * backward)


COSTS = solved(net(transformer(1))).costs


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_an_equal_share_on_each_gpu(gpus: int) -> None:
    assert floor_bytes(COSTS, gpus) * gpus == pytest.approx(floor_bytes(COSTS, 1))


def test_states_of_all_parameters_are_there() -> None:
    sizes = COSTS.framework.bytes
    parameters = sum(node.times * prod(node.ports[0].sizes) for node in COSTS.net.nodes if node.parameter is not None)
    assert floor_bytes(COSTS, 1) > (2 + sizes.gradient + sizes.optimizer) * parameters


@pytest.mark.parametrize(
    ("given", "taken", "gathers"),
    [
        ((0, WHOLE), (WHOLE, WHOLE), True),
        ((0, 1), (WHOLE, 1), True),
        ((0, 1), (WHOLE, WHOLE), True),
        ((0, 1), (WHOLE, 0), False),
        ((0, PARTIAL), (WHOLE, WHOLE), False),
        ((0, WHOLE), (0, WHOLE), False),
    ],
)
def test_a_gather_is_a_change_that_gathers_along_some_axis_and_does_no_more(
    given: tuple[int, ...], taken: tuple[int, ...], gathers: bool
) -> None:
    assert is_gather([int(one) for one in digits(np.array(given), np.array(taken))]) == gathers
