"""A program in another size is the one that would be unrolled, folded and linked from scratch."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import net
from symconfig.graph.program.of_model import program, programs
from symconfig.graph.program.program import Program
from symconfig.graph.program.sized import Sized

MODELS = ("llama2-7b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "llama2-70b-lora")
BATCHES = (512, 64, 8, 3, 1)


@pytest.mark.parametrize("name", MODELS)
def test_every_batch_has_the_program_and_the_network_of_its_own(name: str) -> None:
    model = load_model(name)
    of_batch, sized = programs(model, 4096), Sized()
    for batch in BATCHES:
        given, expected = of_batch(batch), program(model, batch, 4096)
        assert given == expected
        folding = fold(expected)
        assert sized.net(given) == net(folding.program, folding.of, folding.runs)


def test_operators_that_a_batch_leaves_as_they_are_are_shared() -> None:
    of_batch = programs(load_model("llama3.1-405b"), 8192)
    first, second = of_batch(64), of_batch(32)
    assert first.tensors is second.tensors
    assert sum(one is not other for one, other in zip(first.operators, second.operators, strict=True)) < 4


@pytest.mark.parametrize("batch", [128, 4096], ids=["as wide as a head", "as long as the sequence"])
def test_a_batch_that_equals_another_dim_may_have_other_classes(batch: int) -> None:
    """Sizes that happen to be equal make structures equal that differ otherwise."""
    model = load_model("llama2-7b")
    of_batch, sized = programs(model, 4096), Sized()
    found: list[Program] = [of_batch(48), of_batch(batch), of_batch(48)]
    for each in found:
        folding = fold(each)
        assert sized.net(each) == net(folding.program, folding.of, folding.runs)
