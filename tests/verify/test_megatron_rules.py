"""symconfig refuses what Megatron's parser lets pass, also in a list that someone edited by hand."""

from __future__ import annotations

import pytest

from symconfig.frameworks.megatron import flags
from symconfig.verify.megatron import broken_rules
from tests.sample_plans import _DEGREES
from tests.verify.megatron_support import rendered, replaced

MODELS = [name for name in _DEGREES if not name.endswith("-lora")]
TP, PP, EP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--expert-model-parallel-size"
LAYOUT, VIRTUAL = "--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank"
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"


def refused(words: list[str] | tuple[str, ...], world_size: int, version: str = "core_v0.19.0") -> list[str]:
    return [str(problem) for problem in broken_rules(words, flags.flags(version), world_size)]


@pytest.mark.parametrize("model", MODELS)
def test_what_symconfig_renders_breaks_no_rule(model: str) -> None:
    item = rendered(model)
    assert refused(item.args, item.plan.best.configuration.world_size) == []


EDITS = {
    "query groups that do not divide the heads": ("llama3.1-70b", "--num-query-groups", ["5"], "query groups = 5"),
    "batch": ("llama2-13b", "--global-batch-size", ["100"], "dp 8 x micro-batch 1 does not divide the batch of 100"),
    "no batch": ("llama2-13b", "--global-batch-size", [], "is missing"),
    "world": ("llama2-13b", TP, ["5"], "tp x pp x cp = 10"),
    "layout without a layer": ("deepseek-v3", "--num-layers", ["60"], "60"),
    "repeated": ("llama2-13b", "--seq-length", ["4096", "--seq-length", "2048"], "more than once"),
    "interleaving": ("llama3.1-70b", "--global-batch-size", ["20"], "5 microbatches in groups of 4 do not fit"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_list_is_refused_with_flag_got_and_need(name: str) -> None:
    model, option, values, words = EDITS[name]
    item = rendered(model)
    found = refused(replaced(item, option, *values).args, item.plan.best.configuration.world_size)
    assert any(words in sentence and sentence.startswith("megatron_args.txt: ") for sentence in found), found


@pytest.mark.parametrize(
    ("words", "version", "said"),
    [
        (f"{FIRST} 13 {LAST} 7", "core_v0.13.0", None),
        (f"{FIRST} 13", "core_v0.13.0", None),
        (f"{FIRST} 13 {LAST} 8", "core_v0.13.0", "do not hold all layers"),
        (f"{FIRST} 41", "core_v0.19.0", "do not hold all layers"),
        (f"{FIRST} 10 {LAST} 10 {VIRTUAL} 2", "core_v0.13.0", None),
        (f"{LAST} 10 {VIRTUAL} 2", "core_v0.14.0", None),
        (f"{LAST} 10 {VIRTUAL} 2", "core_v0.13.0", "alone doubles the layers"),
        (f"{FIRST} 13 {LAST} 7 {VIRTUAL} 2", "core_v0.19.0", "a multiple of vpp = 2"),
        (f"{FIRST} 14 {LAST} 12 {VIRTUAL} 2", "core_v0.19.0", "a multiple of vpp = 2"),
        (f"{FIRST} 10 --account-for-loss-in-pipeline-split", "core_v0.19.0", "in several ways"),
        (f"{FIRST} 10 {LAYOUT} Et*10|(t*10|)*2t*10L", "core_v0.19.0", "in several ways"),
    ],
)
def test_layers_that_megatron_loses_in_silence_are_found(words: str, version: str, said: str | None) -> None:
    """40 layers on four stages."""
    item = rendered("llama2-13b", pp=4, version=version)
    found = refused([*item.args, *words.split()], item.plan.best.configuration.world_size, version)
    assert found == [] if said is None else any(said in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("layout", "version", "said"),
    [
        ("Et*15|(t*15|)*2t*16mL", "core_v0.14.0", None),
        ("Et*15|(t*15|)*2t*16m|L", "core_v0.14.0", "lies before the loss"),
        ("Et*15|t*15|t*31m|L", "core_v0.15.0", "lies before the loss"),
        ("Et*15|t*15|t*31m|L", "core_v0.16.1", None),
        ("Et*15|t*15|t*15|t*16|m|||L", "core_v0.19.0", "on the first stage"),
    ],
)
def test_multi_token_prediction_elsewhere_than_megatron_builds_it_is_found(
    layout: str, version: str, said: str | None
) -> None:
    """Until core_v0.14 it is built on the last stage whatever the layout says."""
    item = rendered("deepseek-v3", pp=4, ep=8, version=version, pipeline_layout="Et*15|(t*15|)*2t*16mL")
    found = refused(replaced(item, LAYOUT, layout).args, item.plan.best.configuration.world_size, version)
    found = [sentence for sentence in found if "divided" not in sentence]
    assert found == [] if said is None else any(said in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("Et*20|t*19L", "39 x t"),
        ("Et*40L", "pp = 2"),
        ("t*20|t*20L", "0 x E"),
        ("Et*20|Lt*20", "L last"),
        ("Ex*20|t*20L", "letters other"),
        ("E" + "(" * 50 + "t" + ")*9999" * 50 + "|L", "letters other"),
    ],
)
def test_a_layout_that_loses_layers_is_refused(layout: str, words: str) -> None:
    found = refused([*rendered("llama2-13b").args, LAYOUT, layout], 64)
    assert any(words in sentence for sentence in found), found
