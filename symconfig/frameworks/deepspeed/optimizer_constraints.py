"""What DeepSpeed and the programs above it have of optimizers other than AdamW with states in fp32."""

from __future__ import annotations

from symconfig.frameworks.constraint import Constraint
from symconfig.plans.unknown import among

MUON = Constraint(
    name="muon",
    predicate=lambda f, p: f.optimizer == "muon",
    rule="Muon is planned with Megatron-LM",
    sentence="DeepSpeed's Muon gathers whole gradients and iterates in a way that is not priced here",
    about="optimizer",
    got="{f.optimizer}",
    hint="--backend megatron",
    unsaid=True,
    source="deepspeed/runtime/zero/stage3.py, _muon_update_sub_group; stage_1_and_2.py",
    example={"optimizer": "muon"},
)
NARROW = Constraint(
    name="narrow states",
    predicate=lambda f, p: f.narrow_states,
    rule="AdamW's states are in fp32",
    sentence="DeepSpeed keeps master weights and AdamW's moments in fp32",
    about="optimizer",
    hint="--optimizer adam8bit",
    unsaid=True,
    source="deepspeed/runtime/zero/stage_1_and_2.py, single_partition_of_fp32_groups",
    example={"narrow_states": True},
)
OFFLOADED_OTHER = Constraint(
    name="another optimizer offloaded",
    predicate=lambda f, p: (p.optimizer_offload > 0) & among(f.optimizer, frozenset(("adam8bit", "adafactor", "sgd"))),
    rule="only adam moves to the host",
    sentence="only DeepSpeed's own Adam moves to the host, and {f.optimizer} is none of its own",
    about="optimizer_offload",
    pins=("optimizer_offload=0",),
    source="deepspeed/runtime/engine.py, zero_force_ds_cpu_optimizer",
    example={"optimizer": "adam8bit", "optimizer_offload": 1.0, "zero": 3, "param_offload": False},
)
OPTIMIZER_CONSTRAINTS: tuple[Constraint, ...] = (MUON, NARROW, OFFLOADED_OTHER)
