"""Every rule of an audit: those that ask the configuration, those that ask the launcher, those that ask the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.existing.audit.memory_rules import MEMORY
from symconfig.existing.audit.phase_rules import PHASES as OF_PHASES
from symconfig.existing.rules import launcher, rl, rl_tuners
from symconfig.existing.rules.catalogue import GROUPS as OF_FRAMEWORKS
from symconfig.existing.rules.catalogue import Group
from symconfig.existing.rules.rl_openrlhf import OF_OPENRLHF
from symconfig.existing.rules.rule import Rule

LAUNCHER = Group("The launcher", tuple(launcher.LAUNCHER.entered))
PREDICTION = Group("What is predicted", tuple(MEMORY.entered))
OF_RL = (
    rl.OF_VERL,
    rl.BEYOND,
    rl.OF_SLEEPERS,
    rl.OF_SLIME,
    OF_OPENRLHF,
    rl_tuners.OF_GROUPS,
    rl_tuners.OF_TRL,
    rl_tuners.OF_SWIFT,
    rl_tuners.OF_FACTORY,
    rl_tuners.OF_NEMO,
)
RL = Group("Reinforcement learning", tuple(rule for table in OF_RL for rule in table.entered))
PHASES = Group("The phases of a step", tuple(OF_PHASES.entered))
GROUPS = (*OF_FRAMEWORKS, RL, LAUNCHER, PREDICTION, PHASES)


def rules() -> Iterator[Rule[Any]]:
    """Yield all rules in the page's order."""
    for group in GROUPS:
        yield from group.rules
