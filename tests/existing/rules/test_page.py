"""The page of rules is what its script writes, and tells every rule with what is said on its example."""

from __future__ import annotations

import pytest

from symconfig.existing.audit.catalogue import GROUPS, SEVERITIES, Group, rules
from tools.generate import is_current, reference


def test_the_page_is_what_its_script_writes() -> None:
    assert is_current("rules"), "python -m tools generate rules"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.framework)
def test_every_example_is_told_what_is_wrong_with_it(group: Group) -> None:
    for rule in group.rules:
        assert reference.findings(group.framework, rule), rule.name


def test_a_name_stands_for_one_rule_of_both_frameworks() -> None:
    names = [rule.name for rule in rules()]
    assert len(set(names)) == len(names)
    assert {rule.severity for rule in rules()} == set(SEVERITIES)
