"""All rules of a DeepSpeed configuration, and what they find in one."""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.existing.rules import deepspeed_batch, deepspeed_keys, deepspeed_numbers, deepspeed_zero
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.rule import Finding, Rule

KEYS = tuple(deepspeed_keys.DEEPSPEED.entered)
MEANING = tuple(
    rule for file in (deepspeed_batch, deepspeed_zero, deepspeed_numbers) for rule in file.DEEPSPEED.entered
)
RULES = (*KEYS, *MEANING)
# Rules of Megatron-LM on what under Megatron-DeepSpeed is DeepSpeed's: batch and precision are also in its JSON, and
# it sums, shards and overlaps gradients.
IN_PLACE_OF: frozenset[str] = frozenset(
    {
        "batch-not-said",
        "single-precision",
        "optimizer-not-sharded",
        "gradients-not-overlapped",
        "weights-not-overlapped",
        "gather-overlap-without-sharding",
        "gradients-not-accumulated-in-place",
        "offloaded-optimizer-alone",
    }
)


def findings(facts: DeepSpeedFacts, rules: Sequence[Rule[DeepSpeedFacts]] = RULES) -> list[Finding]:
    """Return every rule that is broken, with its places, in the order of the file."""
    broken = [Finding(rule.name, rule.severity, problem) for rule in rules for problem in rule.check(facts)]
    return sorted(broken, key=lambda finding: (finding.problem.line or 0, finding.problem.column or 0))
