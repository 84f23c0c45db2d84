"""A script of verl with what a test adds to it, and the phases of the step that an audit finds in it."""

from __future__ import annotations

from typing import Any

from symconfig.api import existing
from symconfig.existing.audit.audit import Audit
from tests.existing.audit.support import text

VERL = text("verl_grpo.sh")
MEGATRON = "actor_rollout_ref.actor.megatron"


def of_verl(*more: str, config: str = "ppo_trainer") -> str:
    return VERL.replace("CONFIG", config).replace("MORE", " ".join(more))


def audited(script: str, **more: Any) -> Audit:
    lengths = {"prompt_length": 300.0, "response_length": 900.0}
    return existing.audit(script, "h100", plan=False, **(lengths | more))


def phases(found: Audit) -> dict[str, Any]:
    assert found.judged is not None, [str(problem) for problem in found.unpredicted]
    return {phase.name: phase for phase in found.judged.plan.rl[0].phases}
