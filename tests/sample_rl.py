"""The targets that learn by reinforcement, and the step that they are planned for: GRPO on math problems."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.load import load_model
from symconfig.render import targets

LEARNING = tuple(name for name, target in targets().items() if target.learns)
RL: dict[str, Any] = {
    "prompts": 512, "samples": 8, "updates": 4, "prompt_length": {"mean": 200, "max": 1024},
    "response_length": {"mean": 900, "p95": 2500, "max": 3072},
}  # fmt: skip


def step(model: str) -> dict[str, Any]:
    """Return the section `rl`, with lengths that the positions of a zoo model hold."""
    longest = sum(RL[part]["max"] for part in ("prompt_length", "response_length"))
    shorter = max(1, -(-longest // load_model(model).max_position_embeddings))
    lengths = {
        part: {name: value // shorter for name, value in RL[part].items()}
        for part in ("prompt_length", "response_length")
    }
    return RL | lengths
