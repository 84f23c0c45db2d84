"""What a DeepSpeed JSON says of the facts that constraints ask for; what it leaves open is UNKNOWN."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.document import KeyPath
from symconfig.errors import Problem
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.rule import Check
from symconfig.frameworks.constraint import Constraint, Verdict, failing
from symconfig.frameworks.deepspeed.keys import ZERO
from symconfig.frameworks.facts import Fixed
from symconfig.plans.columns import Columns


def fails(constraint: Constraint, facts: DeepSpeedFacts) -> bool:
    """Return whether a configuration is known to fail a constraint."""
    return constraint.verdict(_fixed(facts), _point(facts)) is Verdict.FAILS


def says(path: KeyPath, *constraints: Constraint, of_key: bool = False) -> Check[DeepSpeedFacts]:
    """Make a check that says at a key the first of some constraints that a configuration is known to fail."""

    def check(facts: DeepSpeedFacts) -> Iterator[Problem]:
        fixed, point = _fixed(facts), _point(facts)
        for constraint in failing(constraints, fixed, point)[:1]:
            yield facts.problem(path, constraint.sentence_at(fixed, point), hint=constraint.hint, of_key=of_key)

    return check


def _fixed(facts: DeepSpeedFacts) -> Fixed:
    return Fixed() if facts.model is None else Fixed.of(facts.model)


def _point(facts: DeepSpeedFacts) -> Columns:
    share = facts.number(ZERO, "offload_optimizer", "ratio")
    return Columns(
        tp=facts.tensor_parallel,
        cp=facts.sequence_parallel,
        ep=facts.expert_parallel,
        cp_comm="a2a",
        zero=facts.stage,
        grad_bytes=4 if facts.get("data_types", "grad_accum_dtype") == "fp32" else 2,
        optimizer_offload=0.0 if not facts.offloads("offload_optimizer") else 1.0 if share is None else share,
        param_offload=facts.offloads("offload_param"),
    )
