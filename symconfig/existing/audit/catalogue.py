"""Every rule of an audit under its name, for the page of rules, for SARIF, and for those who ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.existing.audit import judge
from symconfig.existing.rules import deepspeed, launcher, megatron, rl
from symconfig.existing.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Group:
    """The rules about one framework, or of one kind."""

    framework: str
    rules: tuple[Rule[Any], ...]


RL = Group("Reinforcement learning", rl.RULES)
LAUNCHER = Group("The launcher", launcher.RULES)
PREDICTION = Group("What is predicted", judge.MEMORY)
PHASES = Group("The phases of a step", judge.PHASES)
OF_FRAMEWORKS = (Group("Megatron-LM", megatron.RULES), Group("DeepSpeed", deepspeed.RULES))
GROUPS = (*OF_FRAMEWORKS, RL, LAUNCHER, PREDICTION, PHASES)
SEVERITIES: Mapping[str, str] = {
    "error": "it does not start, fails in the first step, or trains something else",
    "warning": "it is slower, larger or other than it seems",
    "note": "worth knowing",
}


def rules() -> Iterator[Rule[Any]]:
    """Yield all rules in the page's order."""
    for group in GROUPS:
        yield from group.rules
