"""Sparse attention as Megatron parses and builds it, to the last element and byte, and read back from its options."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.existing.recover.model import described
from symconfig.frameworks.megatron.sparse import as_numbers, choosing_layers
from symconfig.render import megatron as render
from symconfig.verify import megatron
from symconfig.verify.checks import Check
from tests.existing.recover.options import names_of
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import LIMIT_S, rendered, replaced, source
from tests.verify.structures import deepseek_v32

INDEXER: dict[str, Any] = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
SHARED = {**INDEXER, "layers": (True, True, False, True, False)}  # GLM-5's way: the first ones, then every second
PLANS: dict[str, tuple[ModelDescriptor, dict[str, Any]]] = {
    "stages and heads": (deepseek_v32(4), {"tp": 2, "pp": 2, "ep": 4, "dp": 4}),
    "replicas": (deepseek_v32(2), {"ep": 2, "dp": 8, "zero_stage": 0, "overlap_param_gather": False}),
    "choices of a layer before": (deepseek_v32(5, indexer=SHARED), {"tp": 4, "pp": 1, "ep": 4, "dp": 2}),
}
# What Megatron takes and is another model: an option, its values, the field that says so.
WRONG = {
    "no sparse attention": ("--experimental-attention-variant", []),
    "fewer keys": ("--dsa-indexer-topk", ["1024"]),
    "fewer heads": ("--dsa-indexer-n-heads", ["32"]),
    "no loss": ("--dsa-indexer-loss-coeff", ["0.0"]),
}


@pytest.fixture(scope="module")
def checked() -> dict[str, list[Check]]:
    """Every plan's ranks, and every wrong list of arguments, in one process."""
    items = {name: rendered(sample_plan(model, "h100", **degrees)) for name, (model, degrees) in PLANS.items()}
    built = megatron.check_many(items, source(), LIMIT_S, build=True)
    first = items["stages and heads"]
    wrong = {name: replaced(first, option, *values) for name, (option, values) in WRONG.items()}
    return built | megatron.check_many(wrong, source(), LIMIT_S)


@pytest.mark.parametrize("name", PLANS)
def test_ranks_are_as_planned(name: str, checked: dict[str, list[Check]]) -> None:
    assert [str(check) for check in checked[name] if check.status != "passed"] == []
    ranks = [check for check in checked[name] if check.compared]
    assert ranks
    for check in ranks:
        assert all(pair.ours == pair.real for pair in check.compared)


@pytest.mark.parametrize("name", WRONG)
def test_another_model_is_found(name: str, checked: dict[str, list[Check]]) -> None:
    failed = [check.detail for check in checked[name] if check.status == "failed"]
    assert any("indexer: " in detail for detail in failed), [str(check) for check in checked[name]]


@pytest.mark.parametrize("name", PLANS)
def test_what_is_rendered_is_read_back(name: str) -> None:
    model, degrees = PLANS[name]
    words = render.arguments(sample_plan(model, "h100", **degrees))
    assert described(names_of(words), seq_length=4096).model.indexer == model.indexer


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"indexer": {**INDEXER, "layers": (True, False, True, True)}}, "indexer.layers"),
        ({"indexer": {**INDEXER, "loss_coef": 0.0}}, "indexer.loss_coef"),
        ({"qkv_bias": True}, "qkv_bias"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({"sliding_window": 128, "sliding_window_pattern": (False, True, False, False)}, "sliding_window"),
    ],
)
def test_what_no_option_says_is_refused_by_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        render.arguments(sample_plan(deepseek_v32(4, **changed), "h100", tp=1, pp=1, dp=8, ep=1))
    assert field in {problem.field for problem in caught.value.problems}


def test_the_release_that_can_say_it_is_named() -> None:
    with pytest.raises(InfeasibleError) as caught:
        render.arguments(sample_plan(deepseek_v32(2), "h100", version="core_v0.18.2", tp=1, pp=1, dp=8, ep=1))
    assert {problem.hint for problem in caught.value.problems} == {"megatron_version: core_v0.19.0 or later"}


@pytest.mark.parametrize(("frequency", "offset"), [(1, 0), (2, 0), (2, 2), (4, 3), (3, 7)])
def test_two_numbers_say_which_layers_choose(frequency: int, offset: int) -> None:
    own = choosing_layers(frequency, offset, 12)
    found = as_numbers(own)
    assert found is not None
    assert choosing_layers(*found, 12) == own


def test_a_model_without_an_indexer_has_none_of_its_options() -> None:
    words = render.arguments(sample_plan(sample_model("deepseek-v3"), "h100"))
    assert not [word for word in words if "dsa" in word]
