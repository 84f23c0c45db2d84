"""The table of rules: every name in it means something, and everything that can be named is used."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from symconfig.frameworks.megatron import flags
from symconfig.frameworks.megatron.flags import first_with
from symconfig.runs.checkpoint.facts import FACTS
from symconfig.runs.checkpoint.loadable import between
from symconfig.runs.checkpoint.table import Rule, Verdict, table
from tests.runs.checkpoint import cases, cases_deepspeed

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
