"""What DeepSpeed does with a plan, in the terms of the cost model."""

from __future__ import annotations

from symconfig.cost.framework import Bytes, Framework, Hide
from symconfig.graph.blocks.common import Implementation

DEEPSPEED = Framework(
    "deepspeed",
    Implementation(
        fused_linears=False,
        norms_in_linears=False,
        fused_norm=False,
        fused_activation=False,
        fused_rope=False,
        loss="torch",
        weighted_experts=False,
        whole_look_up=True,
    ),
    ("tp", "cp", "dp", "pp"),
    ("etp", "ep", "edp"),
    Bytes(weight=2.0, gradient=2.0, optimizer=12.0),
    Hide(data=0.7, sharded_weights=0.7),  # assumed: less than Megatron-LM's, since hooks in Python start each of them
    frozenset({2, 3}),
    1,
    0.03,  # this and the next two are assumed, above Megatron-LM's: no measured run has DeepSpeed's engine
    0.004,
    0.05,
    shards_over_tensor=True,
    beside_offload_bytes=4.0,  # stage3.py copies them into fp32 ones
    whole_gradients_at=frozenset({2}),
    joined_experts=frozenset({"expert_gate_proj", "expert_up_proj"}),  # Transformers' gate_up_proj
    expert_group=178956971,  # deepspeed/moe/utils.py, max_group_size
)
