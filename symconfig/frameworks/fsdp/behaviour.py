"""What PyTorch's FSDP does with a plan, in the terms of the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symconfig.cost.framework import Hide, Stepping, Together
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.implementation import Routing

# PyTorch's fully sharded data parallelism around eager modules. Weights are kept in fp32 and gathered in bf16.
FSDP = replace(
    DEEPSPEED,
    name="fsdp",
    implementation=replace(
        DEEPSPEED.implementation,
        linear=replace(DEEPSPEED.implementation.linear, bias_inside=False),
        loss=replace(DEEPSPEED.implementation.loss, kept_outputs=1),  # a variable holds the logits
        whole_look_up=False,
        # Whoever measured it wrote the modules, too (torchtitan, LLM Foundry, NeMo Automodel, foundation-model-stack).
        experts=replace(DEEPSPEED.implementation.experts, routing=Routing.FUSED),
        of_class=None,
        # Since 2.1, when it is not re-entrant (torch.utils.checkpoint.set_checkpoint_early_stop).
        stops_early=True,
    ),
    hide=Hide(data=0.9, sharded_weights=0.9),  # assumed; all but the first gather and the last reduction
    reduced_bytes=4.0,
    # 4, 4 and 8 of 16 bytes, where `bytes` has 2, 2 and 12 (verl/workers/engine/fsdp/transformer_impl.py, model_dtype;
    # base.py, zero_grad_on_exit).
    shard_bytes=4.0,
    together=Together.BLOCK,
    all_reduced_gradients=False,
    shards_over_tensor=False,
    frees_gradients=True,
    added_gradients_at=frozenset(),
    # Gradients are copied into one flat tensor and widened to fp32 before they are reduced
    # (torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook).
    copied_bytes=10.0,
)

# PyTorch's AdamW as it comes on a GPU (torch 2.13, optim/adam.py, _multi_tensor_adam). Bytes moved of an fp32 element:
# weight decay 8, both moments 12 and 20 (a kernel reads the gradient once), root, quotient and epsilon 8 each, the step
# 16, and before it the norm of all gradients 4 and their clipping 8. Two sizes on an H100 took 1.04 and 0.96 times that
# (tests/runs/rl/test_measured.py).
EAGER_ADAM: Mapping[str, Any] = {"adam_bytes": 92.0, "stepping": Stepping.TOGETHER}
# Gradients stay in the 16 bits that they are computed in until they are reduced (MixedPrecisionPolicy's reduce_dtype).
NARROW_REDUCTION: Mapping[str, Any] = {"reduced_bytes": 2.0, "copied_bytes": 4.0}
# Frozen weights rest in fp32 shards, where the model was loaded so or Accelerate before 1.13 shards it by FSDP 2.
# Elsewhere they rest in 16 bits, as checkpoints have them: only what is trained is widened (Accelerate 1.15,
# utils/fsdp_utils.py, fsdp2_prepare_model; accelerator.py, prepare_model).
WIDE_FROZEN: Mapping[str, float] = {"frozen_rest": 2.0}
