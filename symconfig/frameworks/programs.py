"""What programs around a framework run otherwise than it does by itself, by the target that starts them."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.frameworks.behaviour import Switches

PROGRAMS: Mapping[str, Switches] = {
    # verl 0.9.1 hands new weights to its engine before any forward, so none of them may wait for one: its optimizer
    # gathers them at once (verl/utils/megatron_utils.py, register_megatron_training_hooks).
    "verl": Switches(framework={"gathers_apart": True}),
    # flash-attn's cross-entropy (verl/utils/torch_functional.py, logprobs_from_logits).
    "verl-fsdp": Switches(implementation={"loss": "fused"}),
}
