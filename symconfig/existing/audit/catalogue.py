"""Every rule of an audit: those that ask the configuration, those that ask the launcher, those that ask the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.existing.audit import memory_rules, phase_rules
from symconfig.existing.rules import launcher, rl
from symconfig.existing.rules.catalogue import GROUPS as OF_FRAMEWORKS
from symconfig.existing.rules.catalogue import Group
from symconfig.existing.rules.plugged import plugged
from symconfig.existing.rules.rule import Rule

LAUNCHER, PREDICTION = Group("The launcher", launcher.RULES), Group("What is predicted", memory_rules.RULES)
RL, PHASES = Group("Reinforcement learning", rl.RULES), Group("The phases of a step", phase_rules.RULES)
GROUPS = (*OF_FRAMEWORKS, RL, LAUNCHER, PREDICTION, PHASES)


def rules() -> Iterator[Rule[Any]]:
    """Yield all rules in the page's order, those of other packages last."""
    for group in GROUPS:
        yield from group.rules
    yield from (*plugged("MEGATRON"), *plugged("DEEPSPEED"))
