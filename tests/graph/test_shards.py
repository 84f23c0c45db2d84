"""Parts multiply to the whole, and parameters are counted from the operators' weights."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.graph.count import parameters
from symconfig.graph.derived import Matmul
from symconfig.graph.model import blocks, sequence
from symconfig.graph.monomial import Monomial
from tests.graph.support import PLAIN, SEQUENCE, ULYSSES, block, numbers
from tests.sample_models import sample_model

NAMES = ["llama2-13b", "llama3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "gpt3-175b"]
DEGREES = {"tp": 2, "cp": 2, "dp": 8, "ep": 4, "etp": 2}
powers = st.sampled_from([1, 2, 4, 8])


@pytest.mark.parametrize("name", NAMES)
def test_weight_shards_multiply_to_the_whole(name: str) -> None:
    """Each weight on a rank, times the ranks that hold other parts of it, is the weight."""
    model = sample_model(name)
    for kind in blocks(model):
        for weight in block(model, kind, SEQUENCE).weights:
            whole = weight.whole.value(numbers(model))
            parts = whole / weight.elements.value(numbers(model, **DEGREES))
            # Experts over ep x etp, but the bias after the contraction over ep alone; all else over tp.
            assert parts in ({4.0 if weight.name == "expert_down_proj.bias" else 8.0} if weight.expert else {1.0, 2.0})


@settings(deadline=None)
@given(tp=powers, cp=powers, dp=powers, ep=powers, etp=powers)
def test_all_ranks_together_do_the_work_of_one(tp: int, cp: int, dp: int, ep: int, etp: int) -> None:
    """Multiply-adds of a matmul on one rank, times the ranks that share it. Neither ep nor etp changes the total."""
    model = sample_model("mixtral-8x7b")
    derived = block(model, "moe", SEQUENCE)
    one, many = numbers(model), numbers(model, tp=tp, cp=cp, dp=dp, ep=ep, etp=etp)
    for work in derived.work:
        if isinstance(work, Matmul) and work.op != "router":
            sides = (work.batch, work.m, work.n, work.k)
            # A rank of dp has sequences of its own, so that the whole is dp times the work of one.
            here, whole = (prod(side.value(values) for side in sides) for values in (many, one))
            assert here * tp * cp == pytest.approx(whole)


@settings(deadline=None)
@given(degree=st.sampled_from([1, 2, 4]), name=st.sampled_from(NAMES), scheme=st.sampled_from([PLAIN, SEQUENCE]))
def test_more_tensor_ranks_never_need_more_weights_or_activations(degree: int, name: str, scheme: object) -> None:
    model = sample_model(name)
    assert scheme in (PLAIN, SEQUENCE)
    for kind in blocks(model):
        derived = block(model, kind, PLAIN if scheme == PLAIN else SEQUENCE)
        few, more = numbers(model, tp=degree, dp=8), numbers(model, tp=2 * degree, dp=4)
        assert sum(w.elements.value(more) for w in derived.weights) <= sum(
            w.elements.value(few) for w in derived.weights
        )
        for held in derived.held:
            assert held.elements.value(more) <= held.elements.value(few)


@pytest.mark.parametrize("scheme", [SEQUENCE, ULYSSES], ids=["ring", "ulysses"])
def test_nothing_on_a_rank_is_larger_than_the_whole(scheme: object) -> None:
    model = sample_model("deepseek-v3")
    derived = block(model, "moe", SEQUENCE if scheme is SEQUENCE else ULYSSES)
    for held in derived.held:
        assert held.elements.value(numbers(model, **{**DEGREES, "etp": 1})) <= held.elements.value(numbers(model))


# Total and active parameters as published: papers and model cards, to the digits given.
PUBLISHED = {
    "llama2-13b": (13.016e9, 13.016e9),  # safetensors metadata of meta-llama/Llama-2-13b-hf: 13,015,864,320
    "llama3.1-70b": (70.554e9, 70.554e9),  # of meta-llama/Llama-3.1-70B: 70,553,706,496
    "mixtral-8x7b": (46.7e9, 12.9e9),  # mistral.ai/news/mixtral-of-experts
    "qwen3-30b-a3b": (30.5e9, 3.3e9),  # model card of Qwen/Qwen3-30B-A3B
    "deepseek-v3": (671e9, 37e9),  # arXiv 2412.19437, abstract
    "gpt-oss-120b": (116.83e9, 5.7e9),  # arXiv 2508.10925, table 1: 116.83B total; the embedding counted once below
    "gpt3-175b": (174.6e9, 174.6e9),  # arXiv 2005.14165, table D.1
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    counted = parameters(sample_model(name), with_mtp=False)
    total, active = PUBLISHED[name]
    assert counted.total == pytest.approx(total, rel=2e-3)
    assert counted.active == pytest.approx(active, rel=2e-2)
    assert sum(counted.by_part.values()) == counted.total


def test_parts_of_a_model_in_order() -> None:
    kinds = sequence(sample_model("deepseek-v3"))
    assert kinds[:5] == ("embedding", "dense", "dense", "dense", "moe")
    assert kinds[-3:] == ("moe", "mtp", "head")
    assert len(kinds) == 61 + 3


exponents = st.dictionaries(st.sampled_from("abc"), st.integers(-3, 3))


@settings(deadline=None)
@given(exponents, exponents)
def test_monomials_multiply_as_numbers_do(first: dict[str, int], second: dict[str, int]) -> None:
    values = {"a": 2.0, "b": 3.0, "c": 5.0}

    def made(powers: dict[str, int]) -> Monomial:
        result = Monomial()
        for name, power in powers.items():
            for _ in range(abs(power)):
                result = result * Monomial.of(name) if power > 0 else result / Monomial.of(name)
        return result

    x, y = made(first), made(second)
    assert (x * y).value(values) == pytest.approx(x.value(values) * y.value(values))
    assert (x * y) / y == x
    assert x * y == y * x
    assert x.substitute({"a": y}).value(values) == pytest.approx(x.value({**values, "a": y.value(values)}))
