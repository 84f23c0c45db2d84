"""Sparse attention and blocks in attention's place, as Megatron parses and builds them, to the last byte."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.existing.recover.model import described
from symconfig.frameworks.megatron.sparse import as_numbers, choosing_layers
from symconfig.render import megatron as render
from symconfig.render import render as files
from symconfig.verify.checks import Check
from tests.existing.recover.options import names_of
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import checked, rendered, replaced
from tests.verify.structures import MAMBA, SWITCHES, deepseek_v32, granite_4, of_pattern, qwen3_next

pytestmark = pytest.mark.usefixtures("warm_megatron")

NETS = "gated delta nets and gated attention"
FOUR = [True, True, True, False]
INDEXER: dict[str, Any] = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
SHARED = {**INDEXER, "layers": (True, True, False, True, False)}  # GLM-5's way: the first ones, then every second
SPARSE: dict[str, tuple[ModelDescriptor, dict[str, Any]]] = {
    "stages and heads": (deepseek_v32(4), {"tp": 2, "pp": 2, "ep": 4, "dp": 4}),
    "replicas": (deepseek_v32(2), {"ep": 2, "dp": 8, "zero_stage": 0, "overlap_param_gather": False}),
    "choices of a layer before": (deepseek_v32(5, indexer=SHARED), {"tp": 4, "pp": 1, "ep": 4, "dp": 2}),
}
PLANS: dict[str, tuple[ModelDescriptor, dict[str, Any]]] = {
    NETS: (qwen3_next(4), {"tp": 2, "pp": 2, "ep": 4, "dp": 4}),
    "heads shared by ranks": (qwen3_next(4), {"tp": 8, "ep": 4, "dp": 1}),
    "a delta net with predictions": (qwen3_next(4, num_nextn_predict_layers=1), {"tp": 2, "ep": 4, "dp": 4}),
    "layers of one part": (of_pattern("M-M*-MM-"), {"tp": 2, "pp": 2, "dp": 2}),
    "virtual stages, predictions": (
        of_pattern("MEM*EMEMEM*E", position="rope", qk_norm=True, num_nextn_predict_layers=2),
        {"tp": 2, "pp": 2, "vpp": 2, "ep": 4, "dp": 4},
    ),
    "layers of two parts": (granite_4(4), {"tp": 2, "pp": 2, "ep": 4, "dp": 4, "cp": 2}),
    "a gate": (sample_model("qwen2.5-7b", num_hidden_layers=2, attention_gate="channel"), {"tp": 4, "dp": 2}),
    "some layers with experts of squared ReLU": (
        sample_model(
            "qwen3-30b-a3b",
            num_hidden_layers=4,
            intermediate_size=6144,
            hidden_act="relu2",
            gated_mlp=False,
            experts={**sample_model("qwen3-30b-a3b").experts.model_dump(), "layers": FOUR},  # type: ignore[union-attr]
        ),
        {"tp": 2, "ep": 8, "dp": 8},
    ),
    **SPARSE,
}
# A list that Megatron takes and that is another model: the plan, an option, its values, the field that says so.
WRONG = {
    "another order": ("layers of one part", "--hybrid-layer-pattern", ["MM-*|-M-M"], "mixers: "),
    "other stages": ("layers of one part", "--hybrid-layer-pattern", ["M-M*-|MM-"], "stages.0: "),
    "an MLP less": ("layers of one part", "--hybrid-layer-pattern", ["M-M*|-MMM"], "mixers: "),
    "heads of Mamba": ("layers of one part", "--mamba-num-heads", ["64"], "mixers: "),
    "attention sooner": (NETS, "--linear-attention-freq", ["([1]*2+[0]*2)"], "mixers: "),
    "attention alone": (NETS, "--experimental-attention-variant", [], "mixers: "),
    "heads of a delta net": (NETS, "--linear-num-value-heads", ["16"], "mixers: "),
    "no sparse attention": ("stages and heads", "--experimental-attention-variant", [], "indexer: "),
    "fewer keys": ("stages and heads", "--dsa-indexer-topk", ["1024"], "indexer: "),
    "fewer heads": ("stages and heads", "--dsa-indexer-n-heads", ["32"], "indexer: "),
    "no loss": ("stages and heads", "--dsa-indexer-loss-coeff", ["0.0"], "indexer: "),
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Check]]:
    """Every plan's ranks, and every wrong list of arguments."""
    items = {name: rendered(sample_plan(model, "h100", **degrees)) for name, (model, degrees) in PLANS.items()}
    wrong = {name: replaced(items[plan], option, *values) for name, (plan, option, values, _) in WRONG.items()}
    return checked(items, wrong)[0]


@pytest.mark.parametrize("name", PLANS)
def test_ranks_are_as_planned(name: str, found: dict[str, list[Check]]) -> None:
    assert [str(check) for check in found[name] if check.status != "passed"] == []
    ranks = [check for check in found[name] if check.compared]
    assert len(ranks) >= 2
    for check in ranks:
        assert all(abs(pair.difference) < (1e-9 if name in SPARSE else 1e-4) for pair in check.compared)


@pytest.mark.parametrize("name", WRONG)
def test_another_model_is_found(name: str, found: dict[str, list[Check]]) -> None:
    failed = [check.detail for check in found[name] if check.status == "failed"]
    assert any(WRONG[name][3] in detail for detail in failed), [str(check) for check in found[name]]


def test_the_program_is_that_of_the_layers() -> None:
    for name, program in (
        ("layers of one part", "pretrain_hybrid.py"),
        ("a delta net with predictions", "pretrain_hybrid.py"),
        (NETS, "pretrain_gpt.py"),
    ):
        model, degrees = PLANS[name]
        launch = files(sample_plan(model, "h100", **degrees), "megatron")["launch.sh"]
        assert f'"$MEGATRON_PATH/{program}"' in launch


@pytest.mark.parametrize(
    ("model", "field", "says"),
    [
        (of_pattern("MM", mixers=[{"block": "mamba2", "sizes": MAMBA}]), "mixers", "no conv_bias, no gated_norm"),
        (
            of_pattern("MM", mixers=[{"block": "mamba2", "sizes": MAMBA | {"conv_kernel": 3}, "switches": SWITCHES}]),
            "mixers",
            "conv_kernel 3",
        ),
        (of_pattern("MM*", norm_eps=1e-6), "norm_eps", "Mamba's gated norm always has 1e-05"),
        (qwen3_next(4, hidden_act="relu2", gated_mlp=False), "hidden_act", "must be silu"),
        (
            sample_model(
                "llama2-13b", mixers=[{"block": "short_conv", "sizes": {"conv_L_cache": 3}, "layers": FOUR * 10}]
            ),
            "mixers",
            "it has no such block in attention's place",
        ),
        (
            of_pattern(
                "MM",
                mixers=[{"block": "mamba2", "sizes": MAMBA, "switches": SWITCHES, "beside_attention": True}],
            ),
            "mixers",
            "no layer has two blocks side by side",
        ),
    ],
)
def test_what_no_option_changes_is_refused_by_its_field(model: ModelDescriptor, field: str, says: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        render.arguments(sample_plan(model, "h100", tp=1, dp=8, ep=1))
    assert [problem.field for problem in caught.value.problems] == [field]
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("model", "older", "since"),
    [
        (of_pattern("M-M*"), "core_v0.17.1", "core_v0.18.2"),
        (qwen3_next(4), "core_v0.15.0", "core_v0.16.1"),
        (deepseek_v32(2), "core_v0.18.2", "core_v0.19.0"),
    ],
)
def test_the_release_that_can_say_it_is_named(model: ModelDescriptor, older: str, since: str) -> None:
    degrees: dict[str, Any] = {"tp": 1, "dp": 8, "ep": 1}
    with pytest.raises(InfeasibleError) as caught:
        render.arguments(sample_plan(model, "h100", version=older, **degrees))
    assert {p.hint for p in caught.value.problems if (p.hint or "").startswith("megatron_version")} == {
        f"megatron_version: {since} or later"
    }
    render.arguments(sample_plan(model, "h100", version=since, **degrees))


@pytest.mark.parametrize("name", SPARSE)
def test_what_is_rendered_is_read_back(name: str) -> None:
    model, degrees = SPARSE[name]
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
def test_what_no_option_says_of_sparse_attention_is_refused_by_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        render.arguments(sample_plan(deepseek_v32(4, **changed), "h100", tp=1, pp=1, dp=8, ep=1))
    assert field in {problem.field for problem in caught.value.problems}


@pytest.mark.parametrize(("frequency", "offset"), [(1, 0), (2, 0), (2, 2), (4, 3), (3, 7)])
def test_two_numbers_say_which_layers_choose(frequency: int, offset: int) -> None:
    own = choosing_layers(frequency, offset, 12)
    found = as_numbers(own)
    assert choosing_layers(*found, 12) == own


def test_a_model_without_an_indexer_has_none_of_its_options() -> None:
    words = render.arguments(sample_plan(sample_model("deepseek-v3"), "h100"))
    assert not [word for word in words if "dsa" in word]
