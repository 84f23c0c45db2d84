"""What enters a repeat that runs forward again is held, whoever reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symconfig.cost.machine import machine
from symconfig.cost.partition.costs import Costs, Keep, Training, floor_bytes
from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.program.read import load_program
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.run import folded

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
