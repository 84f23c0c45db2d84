"""What programs around a framework run otherwise than it does by itself, by the target that starts them."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.frameworks.behaviour import Switches
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, NARROW_REDUCTION, WIDE_FROZEN

# By target and framework; of no target: of all that are not named.
PROGRAMS: Mapping[tuple[str, str], Switches] = {
    # verl 0.9.1 hands new weights to its engine before any forward, so none of them may wait for one: its optimizer
    # gathers them at once (verl/utils/megatron_utils.py, register_megatron_training_hooks).
    ("verl", "megatron"): Switches(framework={"gathers_apart": True}),
    # It passes --moe-permute-fusion on, and not --moe-router-fusion (nemo_rl/models/megatron/setup.py).
    ("nemo-rl", "megatron"): Switches(implementation={"routing": "fused_sort"}),
    # flash-attn's cross-entropy (verl/utils/torch_functional.py, logprobs_from_logits); torch.optim.AdamW with no word
    # of its kernels (workers/config/optimizer.py, build_optimizer). It loads in fp32 (workers/engine/fsdp/
    # transformer_impl.py, model_dtype).
    ("verl-fsdp", "fsdp"): Switches(implementation={"loss": "fused"}, framework=EAGER_ADAM, bytes=WIDE_FROZEN),
    # Accelerate reduces in the precision of its products (utils/dataclasses.py, set_mixed_precision). LLaMA-Factory
    # 0.9.5 goes with 1.11. All others around it are the Trainer's.
    ("llamafactory", "fsdp"): Switches(framework=NARROW_REDUCTION, bytes=WIDE_FROZEN),
    ("", "fsdp"): Switches(framework=NARROW_REDUCTION),
}
