"""Weights of the blocks against the parameters of Transformers' modules, tensor by tensor."""

from __future__ import annotations

from collections import Counter

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph import dims as d
from symconfig.graph.block import LAYER
from symconfig.graph.model import blocks, dim_sizes
from tests.graph.blocks.modules import CASES, Case


def weights(case: Case, joined: bool = False) -> Counter[int]:
    """Sizes of the block's weights, without those of the layer's norms and MLP."""
    model = case.descriptor
    how = None if joined else DEEPSPEED.implementation
    (block,) = (block for kind, block in blocks(model, how).items() if case.block in kind)
    sizes = dim_sizes(model)
    assert all(LAYER in op.modules for op in block.operators)
    mine = [weight for op in block.operators if op.path == "self_attn" for weight in op.weights]
    return Counter(round(d.elements(weight.dims).value(sizes)) for weight in mine)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_module(name: str) -> None:
    case = CASES[name]
    theirs = Counter(parameter.numel() for parameter in case.build().parameters())
    ours = weights(case)
    if case.same:
        assert ours == theirs
    for mine in (ours, weights(case, joined=True)):
        assert sum(size * times for size, times in mine.items()) == sum(n * times for n, times in theirs.items())
