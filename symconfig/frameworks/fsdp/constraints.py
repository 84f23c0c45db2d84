"""What PyTorch's FSDP cannot run: all of the model lies in shards, and in nothing else."""

from __future__ import annotations

from dataclasses import replace

from symconfig.frameworks import shared
from symconfig.frameworks.constraint import Constraint, only
from symconfig.frameworks.deepspeed import constraints as deepspeed
from symconfig.plans.configuration_set import among, no

FSDP: tuple[Constraint, ...] = (
    shared.BATCH,
    Constraint(
        name="shards",
        predicate=lambda f, p: (p.zero_stage != 3) & (p.dp * p.cp > 1),
        rule="FSDP keeps weights, gradients and optimizer states in shards of all ranks, which is ZeRO-3",
        pins=("zero=3",),
        source="torch/distributed/fsdp/_fully_shard/_fully_shard.py",
        example={"zero_stage": 1},
    ),
    Constraint(
        name="instances",
        predicate=lambda f, p: (p.dp * p.cp) % p.instances != 0,
        rule="the ranks that share weights must divide over their groups",
        sentence="dp {p.dp} x cp {p.cp} ranks cannot be divided over {p.instances} groups of shards",
        pins=("instances=1",),
        source="torch/distributed/fsdp/_fully_shard/_fully_shard.py, a mesh of two dims",
        example={"dp": 8, "instances": 3},
    ),
    only(
        "tp", (1,), 2, "tp=1", "FSDP is planned without tensor parallelism", name="tensor parallelism", got=None,
        source="torch/distributed/tensor/parallel/api.py, parallelize_module",
    ),
    Constraint(
        name="expert parallelism",
        predicate=lambda f, p: (p.ep > 1) | (p.etp > 1),
        rule="FSDP shards experts as all weights",
        pins=("ep=1",),
        source="transformers, models/qwen3_moe/modeling_qwen3_moe.py",
        example={"num_experts": 8, "ep": 2},
    ),
    Constraint(
        name="offload",
        predicate=lambda f, p: no(p.optimizer_offload == p.param_offload),
        rule="FSDP's own offload is of all shards and the optimizer's step",
        pins=("optimizer_offload=0",),
        source="torch/distributed/fsdp/_fully_shard/_fsdp_api.py, CPUOffloadPolicy",
        example={"zero_stage": 3, "optimizer_offload": 1.0, "param_offload": False},
    ),
    Constraint(
        name="another optimizer",
        predicate=lambda f, p: no(among(f.optimizer, frozenset(("adam",)))),
        rule="FSDP is planned with AdamW",
        sentence="FSDP is planned with PyTorch's AdamW, not {f.optimizer}",
        about="optimizer",
        got="{f.optimizer}",
        unsaid=True,
        source="torch/optim/adamw.py",
        example={"optimizer": "sgd"},
    ),
    replace(deepspeed.NARROW, hint=None, source="torch/optim/adamw.py"),
    *shared.AROUND_TRANSFORMERS,
    *shared.SHARED,
    shared.CONTEXT_KERNEL,
)  # fmt: skip
