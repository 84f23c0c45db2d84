"""All rules of a DeepSpeed configuration, and what they find in one."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.existing.rules import deepspeed_checks
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.deepspeed_words import LANGUAGE
from symconfig.existing.rules.row import rules_of
from symconfig.existing.rules.rule import Finding, Rule

KEYS, *_OTHERS = (
    rules_of(file, LANGUAGE, vars(deepspeed_checks))
    for file in ("deepspeed_keys", "deepspeed_batch", "deepspeed_zero", "deepspeed_numbers")
)
MEANING = tuple(rule for rules in _OTHERS for rule in rules)
RULES = (*KEYS, *MEANING)
GRID = "deepspeed-grid"  # the rule of degrees that do not divide


def findings(facts: DeepSpeedFacts, rules: Sequence[Rule[DeepSpeedFacts]] = RULES) -> list[Finding]:
    """Return every rule that is broken, with its places, in the order of the file."""
    broken = [Finding(rule.name, rule.severity, problem) for rule in rules for problem in rule.check(facts)]
    return sorted(broken, key=lambda finding: (finding.problem.line or 0, finding.problem.column or 0))
