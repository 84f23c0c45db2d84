"""Every rule of an audit beside a framework's is broken by its own example alone; the page tells every rule."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster
from symconfig.existing.audit.audit import RULES, audit
from symconfig.existing.audit.judge import MEMORY, PHASES
from symconfig.existing.recover.run import Supplied
from symconfig.existing.rules import launcher, rl
from symconfig.existing.rules.rule import Rule
from symconfig.runs.rl.stated import completed
from tests.existing.audit import examples
from tools.generate import is_current, reference

OWN = (*launcher.RULES, *MEMORY, *rl.RULES, *PHASES)


@pytest.mark.parametrize("rule", OWN, ids=lambda rule: rule.name)
def test_an_example_breaks_its_rule(rule: Rule[Any]) -> None:
    said = examples.findings(rule, completed)
    assert [finding.severity for finding in said] == [rule.severity]
    assert all(finding.problem.file == "launch.sh" for finding in said)


@pytest.mark.parametrize("rule", MEMORY, ids=lambda rule: rule.name)
def test_what_is_predicted_of_an_example_breaks_one_rule(rule: Rule[Any]) -> None:
    found = audit(examples.reading(rule), Supplied(gpus=rule.gpus), load_cluster("h100"), Limits(), plan=False)
    names = {other.name for other in MEMORY}
    assert {finding.rule for finding in found.findings} & names == {rule.name}


@pytest.mark.parametrize("rule", [*rl.RULES, *PHASES], ids=lambda rule: rule.name)
def test_an_example_of_reinforcement_learning_breaks_no_other_rule(rule: Rule[Any]) -> None:
    supplied, cluster = Supplied(gpus=rule.gpus), load_cluster("h100")
    found = completed(audit(examples.reading(rule), supplied, cluster, Limits()), cluster, Limits())
    assert {finding.rule for finding in found.findings} == {rule.name}


def test_the_page_has_every_rule_in_order_and_sentences_of_one_form() -> None:
    assert [*RULES] == [rule for rules in reference.GROUPS.values() for rule in rules]
    for rule in RULES:
        assert rule.title[0].isupper() or not rule.title[0].isalpha(), rule.name
        assert rule.title[-1] != ".", rule.name
        assert rule.why[-1] == ".", rule.name


def test_the_page_is_what_its_script_writes() -> None:
    assert is_current("rules"), "python -m tools generate rules"


@pytest.mark.parametrize("group", reference.GROUPS)
def test_every_example_is_told_what_is_wrong_with_it(group: str) -> None:
    for rule in reference.GROUPS[group]:
        assert reference.findings(group, rule), rule.name


def test_a_name_stands_for_one_rule_and_every_severity_is_used() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {rule.severity for rule in RULES} == set(reference.SEVERITIES)
