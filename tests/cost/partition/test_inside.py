"""What operators exchange within themselves, by hand on small programs; what enters a repeat that is held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.cost.partition.kept import floor_bytes
from symconfig.cost.partition.work import Inner, inner_collectives, inner_cost
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph import dims as d
from symconfig.graph.layout import Kind
from symconfig.graph.program.build import build
from symconfig.graph.program.net import Net, net
from symconfig.graph.program.read import load_program
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.run import folded
from tests.solve.partition.programs import SIZES, Maker, convolutions, transformer

CLUSTER = load_cluster("h100")
MESH = Mesh((MeshLevel("nvlink", 2, 4e11, 1e-6), MeshLevel("rail", 4, 5e10, 1e-5)))
AXES = MESH.axes(((2,), (4,)))
SPEEDS = rates.seconds(AXES, MESH, CLUSTER)
DENSE, IMAGES = net(transformer(1)), net(convolutions())
TOKENS = SIZES[d.BATCH] * SIZES[d.SEQUENCE]
MOMENT = 4  # bytes of a maximum or a sum


def chosen(of: Net, name: str, *options: str) -> tuple[int, np.ndarray]:
    """The node of an operator, and its row with these options, axis by axis."""
    index = next(i for i, node in enumerate(of.nodes) if node.operator is not None and node.name == name)
    names = [option.name for option in of.nodes[index].options]
    return index, np.array([[names.index(option) for option in options]])


def listed(of: Net, name: str, *options: str, per_element: bool = False) -> list[tuple[Kind, int, float, int, bool]]:
    """Kind, axis, amount, how often and whether backward, too."""
    index, row = chosen(of, name, *options)
    every: list[Inner] = list(inner_collectives(of.program, of.nodes[index], row, SPEEDS, per_element))
    return [
        (one.move.kind, one.move.axis, float(np.max(one.move.amount)), one.repeats, one.backward)
        for one in every
        if np.all(one.move.happens)
    ]


def test_a_loss_over_a_split_vocabulary_sums_three_numbers_of_each_token_forward_only() -> None:
    """The maximum, the sum and the right logit: Megatron-LM's cross_entropy.py."""
    first, second = (Kind.ALL_REDUCE, 0, TOKENS * MOMENT, 3, False), (Kind.ALL_REDUCE, 1, TOKENS * MOMENT / 2, 3, False)
    assert listed(DENSE, "cross_entropy", d.VOCAB, d.VOCAB) == [first, second]
    assert listed(DENSE, "cross_entropy", d.BATCH, d.VOCAB) == [second]
    assert listed(DENSE, "cross_entropy", "whole", d.VOCAB, per_element=True) == [
        (Kind.ALL_REDUCE, 1, TOKENS, 3, False)
    ]
    assert listed(DENSE, "cross_entropy", d.BATCH, d.SEQUENCE) == []


def test_a_norm_over_a_split_width_sums_one_number_of_each_token_forward_and_backward() -> None:
    assert listed(DENSE, "final_norm", d.SEQUENCE, d.HIDDEN) == [(Kind.ALL_REDUCE, 1, TOKENS / 2 * MOMENT, 1, True)]


def test_windows_need_a_row_of_either_neighbour() -> None:
    """Images [32, 4, 16, 16] of 2 bytes and windows of three rows: one row of 16 on each side."""
    row = 32 * 4 * 16 * 2
    assert listed(IMAGES, "conv1", "i", "n") == [(Kind.SEND, 0, 2 * row / 4, 1, True)]
    assert listed(IMAGES, "conv1", "i", "j") == [
        (Kind.SEND, 0, 2 * row / 4, 1, True), (Kind.SEND, 1, 2 * row / 2, 1, True)
    ]  # fmt: skip
    assert listed(IMAGES, "conv1", "n", "j", per_element=True) == [(Kind.SEND, 1, row / 2, 1, True)]


def test_neighbours_along_one_dim_send_at_the_same_time() -> None:
    """The slowest of the links counts, forward and backward."""
    index, row = chosen(IMAGES, "conv2", "i", "i")
    sides = 2 * 32 * 8 * 16 * 2.0
    found = inner_cost(IMAGES.program, IMAGES.nodes[index], row, SPEEDS, per_element=False)
    assert found.forward == found.backward == pytest.approx(max(rate.send(sides) for rate in SPEEDS))


def test_a_result_of_the_program_is_summed_up() -> None:
    make = Maker({"b": 8, "h": 32, "f": 16})
    y = make.tensor("y", "b", "f", element_bytes=2.0)
    make.add(build("*", "up", [make.tensor("x", "b", "h"), make.weight("up", "h", "f")], [y]))
    of = net(make.program(("x",), "y", "b"))
    size = 8 * 16 * 2
    assert listed(of, "up", "h", "h") == [
        (Kind.ALL_REDUCE, 0, size, 1, False), (Kind.ALL_REDUCE, 1, size / 2, 1, False)
    ]  # fmt: skip
    assert listed(of, "up", "b", "h") == [(Kind.ALL_REDUCE, 1, size / 2, 1, False)]
    assert listed(of, "up", "b", "h", per_element=True) == [(Kind.ALL_REDUCE, 1, size / 4, 1, False)]


@pytest.mark.parametrize("objective", Objective)
def test_a_node_costs_its_work_and_what_it_exchanges(objective: Objective) -> None:
    speeds = SPEEDS if objective is Objective.TIME else rates.elements(AXES)
    costs = Costs(DENSE, speeds, machine(CLUSTER, "bf16"), MEGATRON, Training(turns=3), objective)
    index, row = chosen(DENSE, "cross_entropy", d.VOCAB, d.SEQUENCE)
    amount = TOKENS / 4 * (MOMENT if costs.timed else 1)
    work = costs.passes(DENSE.nodes[index], row)
    once = float(work.forward[0] + work.backward[0]) + 3 * speeds[0].cost(Kind.ALL_REDUCE, np.array(amount))
    assert costs.node(index, row).cost == pytest.approx(3 * once)
    assert (float(work.forward[0]) > 0) == costs.timed


LAYERS = """
schema: symconfig.program/1
name: borders
dims: {{b: 8, s: 512, h: 1024, i: h, f: 4 * h}}
batch: [b]
inputs: {{x0: "bf16[b, s, i]"}}
parameters: {{first: [i, h]}}
operators:
  - x1[b,s,h] = x0 * first
  - repeat:
      name: layers
      times: {layers}
      carry: {{x1: y}}
      parameters: {{up: [h, f], down: [f, h]}}
      body:
        - n[b,s,h] = {first}(x1)
        - u[b,s,f] = n * up
        - g[b,s,f] = gelu(u)
        - y[b,s,h] = g * down
  - loss[] = mean(y)
outputs: [loss]
"""
STREAM = 8 * 512 * 1024 * 2.0  # bytes of what goes from layer to layer


def held(path: Path, layers: int, first: str) -> float:
    """Bytes at the peak on one GPU, without those of weights."""
    path.write_text(LAYERS.format(layers=layers, first=first), encoding="utf-8")
    net = folded(load_program(str(path)))
    assert net.instances == (layers,)
    costs = Costs(net, (), machine(load_cluster("h100"), "bf16"), MEGATRON, Training(keep=Keep.BORDERS))
    problem = assemble(costs, [np.zeros((1, 0), dtype=np.int64)] * len(net.nodes), float("inf"))
    alone = (0,) * len(problem.nodes)
    weights = sum(float(node.memory[0]) for node, of in zip(problem.nodes, net.nodes, strict=True) if of.parameter)
    transient = max(float(node.transient[0]) for node in problem.nodes)
    assert floor_bytes(costs, 1) <= problem.memory(alone)
    return problem.memory(alone) - weights - transient


@pytest.mark.parametrize("first", ["scale", "gelu"])
def test_each_more_layer_holds_what_comes_into_it(first: str, tmp_path: Path) -> None:
    """A scale needs nothing for its own backward, a gelu its input; to run again, both layers need what came in."""
    few, many = (held(tmp_path / f"{layers}.yaml", layers, first) for layers in (4, 9))
    assert many - few == pytest.approx(5 * STREAM)
