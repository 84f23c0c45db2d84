"""All rules about Megatron-LM, and what they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from symconfig.errors import Problem
from symconfig.existing.rules import environment, megatron_checks, megatron_layers, megatron_options
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.megatron_words import LANGUAGE
from symconfig.existing.rules.pairs import rules_of_pairs
from symconfig.existing.rules.refused import of_constraints
from symconfig.existing.rules.row import rules_of
from symconfig.existing.rules.rule import Finding, Rule
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron.constraints import EXPERT_BIAS
from symconfig.frameworks.megatron.flags import versions

PAIRS = "megatron_pairs"
FILES = (
    "megatron_options",
    "megatron_grid",
    "megatron_layers",
    "megatron_sizes",
    "megatron_attention",
    "megatron_experts",
    "megatron_router",
    "megatron_switches",
    PAIRS,
    "megatron_training",
    "megatron_checkpoints",
    "megatron_recompute",
    "megatron_speed",
    "machine",
    "environment",
)
CHECKS = {**vars(environment), **vars(megatron_checks), **vars(megatron_layers), **vars(megatron_options)}
BY_FILE: Mapping[str, tuple[Rule[MegatronFacts], ...]] = {
    file: rules_of_pairs(file) if file == PAIRS else rules_of(file, LANGUAGE, CHECKS) for file in FILES
}
# GPUs, sequences and heads come whole, whichever program deals them out. Layers and vocabularies may be dealt unevenly.
UNDIVIDED = frozenset(("not-positive", "gpus-over-degrees", "batch-over-replicas", "heads-over-tp"))
DEALT = frozenset(("layers-over-stages", "layers-over-virtual-stages"))  # of what Megatron-Core itself deals out
# A constraint that is one case of a rule that has others, which it asks for by itself.
REASONS: Mapping[Constraint, str] = {EXPERT_BIAS: "biases-of-experts"}


def every() -> tuple[Rule[MegatronFacts], ...]:
    """Return all rules, those of the table of constraints last."""
    return (*(rule for rules in BY_FILE.values() for rule in rules), *of_constraints(REASONS))


RULES = every()
# What holds whichever program reads the options: of what Megatron-LM's own parser refuses, values of another type.
MEANING = tuple(rule for rule in RULES if rule not in BY_FILE["megatron_options"] or rule.name == "refused-value")


def findings(facts: MegatronFacts, rules: Sequence[Rule[MegatronFacts]] | None = None) -> list[Finding]:
    """Return every rule that is broken, with its places, in the order of the file.

    A fork or an older release may take what Megatron-LM refuses: errors of its launch are warnings, but for numbers
    that no program can divide.
    """
    released = facts.released
    broken_rules = [
        Finding(rule.name, "warning" if rule.severity == "error" and not stays else rule.severity, problem)
        for rule in (every() if rules is None else rules)
        if applies(rule, facts.version)
        for stays in (released or rule.name in UNDIVIDED or (facts.dealt and rule.name in DEALT),)
        for problem in broken(rule, facts)
    ]
    return sorted(broken_rules, key=lambda finding: (finding.problem.line or 0, finding.problem.column or 0))


def applies(rule: Rule[MegatronFacts], version: str) -> bool:
    """Tell whether the rule holds for a version of the tables."""
    order = versions()
    since, until = rule.since or order[0], rule.until or order[-1]
    return order.index(since) <= order.index(version) <= order.index(until)


def broken(rule: Rule[MegatronFacts], facts: MegatronFacts) -> Iterator[Problem]:
    """Yield where one rule is broken, as far as what it asks for is known."""
    try:
        yield from rule.check(facts)
    except NotKnown:
        return
