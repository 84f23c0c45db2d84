"""Target argument-list: Megatron-LM's arguments as a JSON list."""

from __future__ import annotations

import json
from pathlib import Path

from symconfig.plans.plan import Plan
from symconfig.render import megatron
from symconfig.render.summary import predicted_for

NAME = "argument-list"
DOES = "Megatron-LM's arguments as a JSON list"
TEMPLATES = Path(__file__).parent / "templates" / "target"


def variables(plan: Plan) -> dict[str, object]:
    """Say what the templates see. Raises InfeasibleError for what Megatron-LM cannot run."""
    return {
        "framework": "Megatron-LM",
        "arguments": json.dumps(megatron.arguments(plan), indent=2),
        "predicted_for": predicted_for(plan, "megatron"),
        "variables": (),
        "notes": (),
    }
