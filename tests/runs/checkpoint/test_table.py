"""The table of rules: every name in it means something, and what several rules ask for is one way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from symconfig.frameworks.megatron import flags
from symconfig.frameworks.megatron.flags import first_with
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.facts import FACTS
from symconfig.runs.checkpoint.loadable import between, kinds, loadable
from symconfig.runs.checkpoint.table import Loadable, Rule, Verdict, table
from tests.runs.checkpoint import cases, cases_deepspeed
from tests.runs.checkpoint.cases_deepspeed import LORA, ZERO
from tests.sample_plans import sample_plan

RULES = {rule.name: rule for rule in table().rules}
CONVERSIONS, LOADS, TELLS = table().conversions, table().loads, table().tells
STEPS = {*CONVERSIONS, *TELLS}


def names(rule: Rule) -> set[str]:
    return {*rule.any_of, *rule.all_of, *rule.none_of}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_a_rule_names_is_there(rule: Rule) -> None:
    assert names(rule) <= set(FACTS)
    assert {*rule.how, *rule.otherwise_how} <= STEPS
    assert set(rule.lost) <= set(table().lost)
    ways = {way for name in rule.formats for way in table().formats[name].optimizer}
    assert set(rule.optimizer) <= ways


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_conversion_says_how_and_what_is_left_without_it(rule: Rule) -> None:
    assert (rule.verdict is Verdict.CONVERTED) == (rule.otherwise is not None)
    if rule.verdict in (Verdict.CONVERTED, Verdict.WEIGHTS):
        assert rule.how or set(rule.formats) & set(LOADS)
    if rule.otherwise is Verdict.WEIGHTS:
        assert rule.otherwise_how
    if rule.verdict is Verdict.NO:
        assert not rule.how


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_where_it_is_read(rule: Rule) -> None:
    assert re.search(r"\w", rule.source)
    assert "{changed}" in rule.says or not rule.any_of or "framework" in rule.any_of


def test_every_fact_and_step_is_used() -> None:
    assert set().union(*map(names, RULES.values())) == set(FACTS)
    used = {name for rule in RULES.values() for name in (*rule.how, *rule.otherwise_how)}
    assert used == STEPS
    assert {each.makes for each in CONVERSIONS.values()} >= set(LOADS)
    assert {name for rule in RULES.values() for name in rule.lost} == set(table().lost)


def options() -> Iterator[tuple[str, str | None, str | None, str]]:
    """Name, releases and words of what Megatron-LM is told."""
    for name, conversion in CONVERSIONS.items():
        if name != "through-0.15":  # a release of its own, whatever the old run has
            yield from ((name, row.since, row.until, row.words) for row in conversion.rows if row.kind == "options")
    for name, row in {**LOADS, **TELLS}.items():
        if row.kind == "options" and not {"--model", "--load-universal"} & set(row.words.split()):  # train.py's
            yield name, None, None, row.words


@pytest.mark.parametrize(("name", "since", "until", "words"), [*options()])
def test_options_are_those_of_the_releases_that_are_told_them(
    name: str, since: str | None, until: str | None, words: str
) -> None:
    """Of every release that could be told: Megatron-LM's parser has the option."""
    named = [word for word in words.split() if word.startswith("--")]
    told = [release for release in flags.versions()[1:] if between(release, since, until)]
    first = max((first_with(option) or "never" for option in named), key=flags.versions().index)
    assert flags.versions().index(first) <= flags.versions().index(told[0]), named


def test_what_is_said_to_be_seen_is_a_case() -> None:
    """And its verdict is, or is made worse by another rule than, the one that names it."""
    every = {**cases.CASES, **cases_deepspeed.CASES}
    for rule in RULES.values():
        assert rule.seen is None or every[rule.seen].verdict.rank >= rule.verdict.rank, rule.name


PLACE = re.compile(r"\b(?:CHECKPOINT|ADAPTER|CONVERTED|FSDP|IMPORTED)\b(?:/torch_dist)?")
READ = re.compile(
    r"(?:--load|--load-dir|fsdp-dtensor|--model|import_ckpt\('|export_(?:adapter_)?ckpt\('"
    r"|from_pretrained\('|zero_to_fp32.py|--input_folder) ?([A-Z]+(?:/torch_dist)?)"
)


def megatron(**fields: Any) -> Plan:
    return cases.plan(**fields)


def deepspeed(model: Any = None, **fields: Any) -> Plan:
    return cases_deepspeed.plan(model, **fields)


PLANS = {
    "tp 2": megatron(tp=2),
    "pp 2, more sequences": megatron(pp=2, global_batch=32),
    "unsharded": megatron(dp=2, zero_stage=0),
    "fsdp": megatron(dp=2, zero_stage=2),
    "fp16": megatron(dp=2, precision="fp16"),
    "0.14": megatron(version="core_v0.14.0", dp=4),
    "experts": megatron(model=cases.experts(), ep=2, dp=2),
    "zero 0": deepspeed(dp=2, **ZERO[0]),
    "zero 1": deepspeed(dp=4, **ZERO[1]),
    "zero 3": deepspeed(dp=2, **ZERO[3]),
    "autotp": deepspeed(tp=2, **ZERO[1]),
    "lora": deepspeed(LORA, dp=2, **ZERO[2]),
    "lora, zero 3": deepspeed(LORA, dp=2, **ZERO[3]),
    "lora, megatron": megatron(model=LORA, dp=2),
}


@pytest.mark.parametrize("names", [*product(PLANS, PLANS)], ids=" to ".join)
def test_every_way_is_one(names: tuple[str, str]) -> None:
    old, new = (PLANS[name] for name in names)
    for kind in kinds(old):
        said = loadable(old, new, kind)
        for steps in (said.how, said.otherwise_how):
            there, final = {"CHECKPOINT"}, "CHECKPOINT"
            for step in steps:
                assert set(READ.findall(step.words)) <= {final}, steps
                if step.run != "new":
                    made = set(PLACE.findall(step.words)) - there
                    if "--ckpt-convert-save" in step.words:
                        made = {"CONVERTED/torch_dist"}
                    (final,) = made or {"CHECKPOINT"}
                    there.add(final)
            assert len([step for step in steps if step.run == "new" and step.kind == "options"]) <= 1
        words = said.options("new")
        assert not {"--load", "--model"} <= set(words)
        assert all(words.count(word) == 1 for word in words if word.startswith("--"))
        assert said.otherwise is not Verdict.NO or not said.otherwise_how


def runs(said: Loadable) -> list[str]:
    return [step.words for step in said.how]


@pytest.mark.parametrize("adapter", [None, LORA.adapter], ids=["for all weights", "for an adapter"])
def test_an_adapter_is_merged_before_megatron_reads_it(adapter: Any) -> None:
    model = LORA.model_copy(update={"adapter": adapter})
    said = loadable(PLANS["lora"], sample_plan(model, "h100", seq_length=32))
    assert said.verdict is Verdict.WEIGHTS
    ended, merged, imported, run = runs(said)
    assert "--save CHECKPOINT --train-iters" in ended  # final/ is there after the last step only
    assert "CHECKPOINT/final" in merged
    assert "import_ckpt('CONVERTED', 'IMPORTED')" in imported
    assert run == "--load IMPORTED --finetune --no-load-optim --no-load-rng"


@pytest.mark.parametrize("adapter", [None, LORA.adapter], ids=["for all weights", "for an adapter"])
def test_an_adapter_of_megatron_is_merged_before_deepspeed_reads_it(adapter: Any) -> None:
    model = LORA.model_copy(update={"adapter": adapter})
    said = loadable(PLANS["lora, megatron"], deepspeed(model, dp=2, **ZERO[1]))
    assert said.verdict is Verdict.WEIGHTS
    exported, merged, run = runs(said)
    assert "export_adapter_ckpt('CHECKPOINT', 'ADAPTER')" in exported
    assert "from_pretrained('ADAPTER')" in merged
    assert run == "--model CONVERTED"


def test_fewer_replicas_of_the_old_run_are_a_plan_that_keeps_its_grid() -> None:
    said = loadable(PLANS["tp 2"], PLANS["pp 2, more sequences"])
    assert "symconfig replan PLAN.json --gpus N --pin tp=2 --pin pp=" in said.how[0].does


def test_another_grid_on_the_way_to_fsdp() -> None:
    said = loadable(PLANS["tp 2"], PLANS["fsdp"])
    assert said.verdict is Verdict.CONVERTED
    resaved, converted, run = runs(said)
    assert "--load CHECKPOINT" in resaved
    assert "fsdp-dtensor CONVERTED/torch_dist FSDP" in converted
    assert run == "--load FSDP"
    assert said.otherwise is Verdict.NO
    assert not said.otherwise_how


def test_what_needs_a_conversion_even_for_its_weights() -> None:
    """Experts get an optimizer of their own, and Megatron-FSDP reads nothing else than fsdp_dtensor."""
    old = megatron(model=cases.experts(), ep=2, dp=2)
    said = loadable(old, megatron(model=cases.experts(), dp=2, zero_stage=2))
    assert said.verdict is Verdict.WEIGHTS
    assert runs(said)[-1] == "--load FSDP --no-load-optim --no-load-rng"


def test_nothing_is_told_where_nothing_loads_without_the_conversion() -> None:
    said = loadable(PLANS["autotp"], PLANS["zero 1"])
    assert (said.verdict, said.otherwise, said.otherwise_how) == (Verdict.CONVERTED, Verdict.NO, ())


def test_between_the_frameworks_no_rule_of_one_holds() -> None:
    old, new = megatron(tp=2), deepspeed(cases.dense(), dp=2, global_batch=32, **ZERO[1])
    assert [reason.text for reason in loadable(old, new).reasons] == [
        "DeepSpeed reads no checkpoint of Megatron-LM; the weights go through a Hugging Face folder"
    ]
    assert loadable(old, new, "torch_dcp").verdict is Verdict.NO
    assert [step.run for step in loadable(old, new, "torch").how] == ["old", "between", "new"]
