"""What older releases of Megatron-LM have no option for, or an option that does nothing there yet."""

from __future__ import annotations

from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron.graph_constraints import CAPACITY, OF_EXPERTS
from symconfig.frameworks.megatron.option_constraints import DEEPEP, GATHER, HYBRIDEP
from symconfig.plans.configuration_set import among, no

_ARGUMENTS = "megatron/training/arguments.py, "
_NOT_MXFP8 = " precision=bf16 precision=fp16 precision=fp8 precision=nvfp4"

# Name, what a point has that cannot run, rule, last release that lacks it, field that is shown, pins that avoid it,
# source and example.
OLD_RELEASES: tuple[Constraint, ...] = tuple(
    Constraint(
        name=f"{name} of an old release",
        predicate=has,
        rule=rule,
        got=None if column is None else f"{{p.{column}}}",
        pins=tuple(pins.split()),
        until=until,
        unsaid=True,
        source=source,
        example=example,
    )
    for name, has, rule, until, column, pins, source, example in (
        ("flex dispatcher", lambda f, p: p.moe_dispatcher == "flex", "DeepEP and HybridEP need core_v0.12 or later",
         "core_v0.11.0", "moe_dispatcher", "dispatcher=alltoall", _ARGUMENTS + "--moe-token-dispatcher-type", DEEPEP),
        ("hybridep", lambda f, p: p.moe_flex_backend == "hybridep", "HybridEP needs core_v0.16 or later",
         "core_v0.15.0", "moe_flex_backend", "dispatcher=alltoall dispatcher=deepep",
         _ARGUMENTS + "--moe-flex-dispatcher-backend", HYBRIDEP),
        ("graphs", lambda f, p: no(p.cuda_graphs == "none"),
         "Transformer Engine's CUDA graphs need core_v0.12 or later", "core_v0.11.0", "cuda_graphs", "cuda_graphs=none",
         "megatron/core/transformer/transformer_config.py, external_cuda_graph, which no option of it sets",
         {"cuda_graphs": "all"}),
        ("graphed modules", lambda f, p: among(p.cuda_graphs, OF_EXPERTS),
         "CUDA graphs of named modules need core_v0.16 or later", "core_v0.15.0", "cuda_graphs",
         "cuda_graphs=none cuda_graphs=all", _ARGUMENTS + "--cuda-graph-scope",
         {"num_experts": 8, "cuda_graphs": "router"}),
        ("full iteration", lambda f, p: p.cuda_graphs == "full iteration",
         "a CUDA graph of the whole iteration needs core_v0.15 or later", "core_v0.14.0", "cuda_graphs",
         "cuda_graphs=none cuda_graphs=all", _ARGUMENTS + "--cuda-graph-impl", {"cuda_graphs": "full iteration"}),
        ("expert capacity", lambda f, p: p.expert_capacity > 0, "expert capacity per rank needs core_v0.18 or later",
         "core_v0.17.1", "expert_capacity", "expert_capacity=none", _ARGUMENTS + "--moe-expert-rank-capacity-factor",
         CAPACITY),
        ("fp8 attention", lambda f, p: p.fp8_attention & (p.precision == "mxfp8"),
         "attention is in mxfp8 from core_v0.18 on", "core_v0.17.1", "precision", "fp8_attention=off" + _NOT_MXFP8,
         "megatron/core/fp8_utils.py, get_fp8_recipe: MXFP8BlockScaling has no fp8_dpa",
         {"fp8_attention": True, "precision": "mxfp8"}),
        # They have two copies that no buffer can hold (transformer_engine/pytorch/tensor/utils.py, replace_raw_data).
        # core_v0.13 gathers them through the gradients' buffer, and not beside computation, as plans do.
        ("gathered mxfp8 weights", lambda f, p: p.fp8_param_gather & (p.precision == "mxfp8"),
         "weights are gathered in mxfp8 from core_v0.14 on", "core_v0.13.0", "precision",
         "fp8_param_gather=off" + _NOT_MXFP8,
         "megatron/core/distributed/distributed_data_parallel.py, start_param_sync", GATHER | {"precision": "mxfp8"}),
        ("fused loss", lambda f, p: p.fused_loss, "Transformer Engine's fused loss needs core_v0.12 or later",
         "core_v0.11.0", None, "fused_loss=off", _ARGUMENTS + "--cross-entropy-fusion-impl", {"fused_loss": True}),
        ("weight shards", lambda f, p: p.gtp > 1, "weight shards need core_v0.19 or later", "core_v0.18.2", "gtp",
         "gtp=1", _ARGUMENTS + "--tensor-parallel-num-weight-shards", {"gtp": 2, "dp": 8}),
        ("bf16 gradients", lambda f, p: (p.grad_bytes == 2) & no(p.precision == "fp16"),
         "gradients are reduced in bf16 from core_v0.12 on", "core_v0.11.0", "grad_bytes",
         "grad_dtype=fp32 precision=fp16", _ARGUMENTS + "--grad-reduce-in-bf16",
         {"grad_bytes": 2, "precision": "bf16"}),
    )
)  # fmt: skip
