"""A program in another size is the one that would be unrolled from scratch."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model
from symconfig.graph.program.of_model import program, programs

MODELS = ("llama2-7b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "llama2-70b-lora")
BATCHES = (512, 64, 8, 3, 1)


@pytest.mark.parametrize("name", MODELS)
def test_every_batch_has_the_program_of_its_own(name: str) -> None:
    model = load_model(name)
    of_batch = programs(model, 4096)
    for batch in BATCHES:
        assert of_batch(batch) == program(model, batch, 4096)


def test_operators_that_a_batch_leaves_as_they_are_are_shared() -> None:
    of_batch = programs(load_model("llama3.1-405b"), 8192)
    first, second = of_batch(64), of_batch(32)
    assert first.tensors is second.tensors
    assert sum(one is not other for one, other in zip(first.operators, second.operators, strict=True)) < 4
