"""What frameworks run and the planner does not price: constraints of the search alone, each in a framework's place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from symconfig.frameworks import around_transformers
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.deepspeed import constraints as deepspeed
from symconfig.frameworks.megatron import constraints as megatron
from symconfig.frameworks.megatron.behaviour import MANY_QUEUES
from symconfig.plans.unknown import among, no

HEADS_OVER_RANKS = Constraint(
    name="ulysses heads",
    predicate=megatron.ULYSSES_HEADS.predicate,
    rule=megatron.ULYSSES_HEADS.rule,
    sentence="key/value heads that several ranks of all-to-all context parallelism share are not priced",
    about="cp",
    divides=True,
    source="solve/space.py: each rank is taken to hold a share of the heads",
    example={"cp": 8, "cp_comm": "a2a", "num_attention_heads": 32, "num_key_value_heads": 4},
)
WINDOWS = Constraint(
    name="context parallel window",
    predicate=lambda f, p: (p.cp > 1) & (f.sliding_window > 0),
    rule="context parallelism does not go with sliding-window attention here",
    sentence="context parallelism does not go with sliding-window attention here",
    about="cp",
    source="graph/blocks/attention.py: ranks hold equal shares of all keys",
    example={"cp": 2, "sliding_window": 1024},
)
SINKS = Constraint(
    name="context parallel sinks",
    predicate=lambda f, p: (p.cp > 1) & f.attention_sinks,
    rule="context parallelism does not go with attention sinks",
    sentence="context parallelism does not go with attention sinks",
    about="cp",
    source="graph/blocks/attention.py",
    example={"cp": 2, "attention_sinks": True},
)
DROPPED_WINDOWS = Constraint(
    name="ulysses window",
    predicate=lambda f, p: (p.cp > 1) & (f.sliding_window > 0),
    rule="Ulysses drops the mask of a sliding window",
    sentence="Ulysses drops the mask of a sliding window, also of one that no sequence is longer than",
    about="cp",
    source="graph/blocks/attention.py",
    example={"cp": 2, "sliding_window": 1024},
)
_SHARDED = partial(Constraint, about="zero")
SHARDED_STAGES = _SHARDED(
    name="sharded gradients in a pipeline",
    predicate=lambda f, p: (p.zero_stage >= 2) & (p.pp > 1),
    rule="ZeRO 2 and 3 go without a pipeline",
    sentence="ZeRO {p.zero_stage} beside a pipeline is not priced",
    source="no published layout of Megatron-FSDP has stages: what shows of their gathers is not known",
    example={"zero_stage": 2, "pp": 2},
)
SHARDED_QUEUES = _SHARDED(
    name="sharded gradients beside tensor parallelism",
    predicate=lambda f, p: (p.zero_stage >= 2) & ((p.tp > 1) | (p.cp > 1)) & no(among(f.architecture, MANY_QUEUES)),
    rule="before Blackwell ZeRO 2 and 3 go without tensor and context parallelism",
    sentence=(
        "ZeRO {p.zero_stage} beside tensor or context parallelism is not priced on {f.architecture} GPUs: one wants "
        "many hardware queues, the other a single one"
    ),
    source="megatron/training/arguments.py, validate_args: it warns of CUDA_DEVICE_MAX_CONNECTIONS",
    example={"zero_stage": 2, "tp": 2, "architecture": "hopper"},
)
SHARDED_OVERLAP = _SHARDED(
    name="sharded gradients beside hidden all-to-all",
    predicate=lambda f, p: (p.zero_stage >= 2) & p.overlap_moe_a2a,
    rule="ZeRO 2 and 3 go without hiding the experts' all-to-all",
    sentence="ZeRO {p.zero_stage} beside a hidden all-to-all of the experts is not priced",
    source="core/distributed/fsdp/mcore_fsdp_adapter.py: each of a layer's modules is then gathered by itself",
    example={"zero_stage": 3, "num_experts": 8, "ep": 2, "overlap_moe_a2a": True},
)
STATIC_OFFLOAD = Constraint(
    name="activation offload with fixed buffers",
    predicate=lambda f, p: p.activation_offload & ((p.cuda_graphs == "full iteration") | (p.expert_capacity > 0)),
    rule="activations are not offloaded from a CUDA graph of the whole iteration, nor from experts with a capacity",
    about="activation_offload",
    pins=("activation_offload=off",),
    source="transformer_config.py: the graph needs --fine-grained-offloading-max-inflight-offloads, unpriced; "
    "moe/experts.py: kernels of experts with a capacity offload nothing",
    example={"activation_offload": True, "cuda_graphs": "full iteration"},
)
ACTIVATIONS_OF_ADAPTERS = Constraint(
    name="activation offload with adapters",
    predicate=lambda f, p: f.adapted & p.activation_offload,
    rule="offloaded activations are not known to go with adapters",
    sentence="offloaded activations are not known to go with adapters",
    about="activation_offload",
    source="megatron-bridge, peft/lora.py",
    example={"adapted": True, "activation_offload": True},
)
SHARDED_WEIGHTS = Constraint(
    name="weight shards beside other steps",
    predicate=lambda f, p: (
        (p.gtp > 1) & (no(p.precision == "bf16") | no(p.cuda_graphs == "none") | f.adapted | (f.optimizer == "muon"))
    ),
    rule="weight shards go with bf16 and Adam, without adapters and CUDA graphs",
    sentence="weight shards beside low precision, fp16, CUDA graphs, adapters or Muon are not priced",
    about="gtp",
    pins=("gtp=1", "precision=bf16", "cuda_graphs=none"),
    source="graph/layout.py: weights are gathered in 16 bits and gradients summed as they are accumulated",
    example={"gtp": 2, "dp": 8, "precision": "mxfp8"},
)

# The planner's constraints in addition to a framework's own.
ADDED: Mapping[str, tuple[Constraint, ...]] = {
    "megatron": (SHARDED_STAGES, SHARDED_QUEUES, SHARDED_OVERLAP, SHARDED_WEIGHTS, STATIC_OFFLOAD),
    "deepspeed": (),
    "fsdp": (),
}
# The planner's constraints in place of a framework's own.
NARROWER: Mapping[Constraint, tuple[Constraint, ...]] = {
    megatron.WINDOWS_OVER_RING: (WINDOWS, SINKS),
    around_transformers.ULYSSES_HEADS: (HEADS_OVER_RANKS,),
    around_transformers.ULYSSES_KV_HEADS: (),
    deepspeed.ULYSSES_WINDOW: (DROPPED_WINDOWS,),
}


def narrowed(backend: str, constraints: Iterable[Constraint]) -> Iterator[Constraint]:
    """Yield the constraints that the planner adds for a backend, then the framework's.

    A framework's constraint that is a key of NARROWER is replaced by the planner's there, which may be none.
    """
    yield from ADDED[backend]
    for constraint in constraints:
        yield from NARROWER.get(constraint, (constraint,))
