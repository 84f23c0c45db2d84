"""What PyTorch's FSDP does with a plan, in the terms of the cost model."""

from __future__ import annotations

from dataclasses import replace

from symconfig.cost.framework import Hide
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED

# PyTorch's fully sharded data parallelism around eager modules. Weights are kept in fp32 and gathered in bf16.
FSDP = replace(
    DEEPSPEED,
    name="fsdp",
    implementation=replace(DEEPSPEED.implementation, fused_bias=False, stops_early=True, whole_look_up=False),
    hide=Hide(data=0.9, sharded_weights=0.9),  # assumed; all but the first gather and the last reduction
    reduced_bytes=4.0,
    by_block=True,
    shards_over_tensor=False,
    whole_gradients_at=frozenset(),
    # Gradients are copied into one flat tensor and widened to fp32 before they are reduced
    # (torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook).
    copied_bytes=10.0,
)
