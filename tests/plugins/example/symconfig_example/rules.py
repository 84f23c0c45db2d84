"""A rule of one's own house."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.rule import Rules

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "example-seed",
    "warning",
    "The seed is not the one of this house",
    "Runs of this house are compared with each other: all of them start from seed 17.",
    "--seed 1",
)
def _seed(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.number("seed") != 17:
        yield facts.problem("is not this house's seed", "seed", got=facts.number("seed"), need="17")
