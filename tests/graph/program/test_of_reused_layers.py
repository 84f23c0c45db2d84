"""Programs of models whose layers share weights, a block, keys or streams: whole, and each weight in them once."""

from __future__ import annotations

from math import prod

import pytest

from symconfig.descriptor.huggingface import import_config
from symconfig.graph.count import parameters
from symconfig.graph.program.of_model import program
from tests.descriptor.small_configs import small_config
from tests.graph.program.check import problems

KINDS = ("dory", "hrm_text", "zamba", "zamba2", "gemma4_text", "gemma3n_text", "deepseek_v4", "hy_v4",
         "rwkv", "xlstm")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_several_layers_use_is_one_parameter(kind: str) -> None:
    model = import_config(small_config(kind), "config.json", "small")
    found = program(model, 2, 64)
    assert problems(found) == []
    elements = sum(prod(found.sizes[dim] for dim in one.tensor.dims) for one in found.parameters)
    # What no gradient reaches but the class holds (HRM's first state) is in no operator, and in the total alone.
    assert elements == sum(parameters(model, with_mtp=False).by_part.values())
