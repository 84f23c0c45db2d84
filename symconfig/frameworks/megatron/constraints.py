"""What releases of Megatron-LM cannot run."""

from __future__ import annotations

from functools import partial
from typing import Any

from symconfig.frameworks import shared
from symconfig.frameworks.constraint import Constraint, of_module
from symconfig.frameworks.megatron.optimizer_constraints import OPTIMIZER_CONSTRAINTS, OVERLAP_CONSTRAINTS
from symconfig.frameworks.megatron.option_constraints import OPTION_CONSTRAINTS
from symconfig.frameworks.megatron.sparse import SPARSE_CONSTRAINTS
from symconfig.frameworks.shared import DELTA_MIXERS, MIXERS, SCAN
from symconfig.plans.configuration_set import among, has, looked_up, no

# Transformer Engine multiplies FP8 matrices whose sides divide by 16, MXFP8 and NVFP4 ones by 32
# (transformer_engine/pytorch/utils.py, assert_dim_for_fp8_exec).
LOW_PRECISION = frozenset(("fp8", "mxfp8", "nvfp4"))
FP8_MULTIPLE, BLOCK_MULTIPLE = 16, 32

# A fact of several examples.
LONG = {"seq_length": 8192}


def block(precision: Any) -> Any:
    """Return the number that the tokens of a rank must be a multiple of, by precision; UNKNOWN for UNKNOWN."""
    return looked_up(precision, {"fp8": FP8_MULTIPLE}, BLOCK_MULTIPLE)


KV_HEADS_ALONE = shared.OVER_TP(
    name="num_key_value_heads",
    predicate=lambda f, p: no(f.latent) & (f.num_key_value_heads % p.tp != 0),
    rule="key/value heads must divide over tp",
    sentence="{f.num_key_value_heads} key/value heads cannot be split over tp {p.tp}",
    until="core_v0.15.0",
    source="megatron/core/transformer/transformer_config.py, __post_init__",
    example={"num_attention_heads": 32, "num_key_value_heads": 4, "tp": 8},
)
KV_HEADS = shared.OVER_TP(
    name="num_key_value_heads",
    predicate=lambda f, p: no(f.latent) & (f.num_key_value_heads % p.tp != 0) & (p.tp % f.num_key_value_heads != 0),
    rule="key/value heads must be a multiple or a divisor of tp",
    sentence="{f.num_key_value_heads} key/value heads cannot be split over tp {p.tp}, nor shared by its ranks",
    since="core_v0.16.0",
    source="megatron/core/transformer/transformer_config.py, __post_init__; Megatron-LM#2565",
    example={"num_attention_heads": 48, "num_key_value_heads": 6, "tp": 8, "hidden_size": 6144},
)
ULYSSES_HEADS = Constraint(
    name="ulysses heads",
    predicate=lambda f, p: (
        (p.cp > 1)
        & has(p.cp_comm, "a2a")
        & ((f.num_attention_heads % (p.tp * p.cp) != 0) | (f.num_key_value_heads % (p.tp * p.cp) != 0))
    ),
    rule="heads must divide over tp x cp for all-to-all context parallelism",
    sentence=(
        "{f.num_attention_heads} heads and {f.num_key_value_heads} key/value heads do not divide over tp {p.tp} x cp "
        "{p.cp} ranks of all-to-all context parallelism"
    ),
    about="cp",
    pins=("cp_comm=p2p", "tp", "cp"),
    divides=True,
    source="transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py",
    example={"cp": 8, "cp_comm": "a2a", "num_attention_heads": 32, "num_key_value_heads": 4} | LONG,
)
MIXER_HEADS = Constraint(
    name="heads of blocks in attention's place",
    predicate=lambda f, p: (p.cp > 1) & (f.exchanged_pieces % (p.tp * p.cp) != 0),
    rule="heads of a scan must divide over tp x cp, whose ranks exchange them for the sequence",
    sentence=(
        "heads of blocks in attention's place divide by {f.exchanged_pieces} at most, and cannot be exchanged by tp "
        "{p.tp} x cp {p.cp} ranks"
    ),
    about="cp",
    pins=("tp", "cp"),
    divides=True,
    source="megatron/core/ssm/mamba_context_parallel.py, __init__; megatron/core/ssm/gated_delta_net",
    example={"mixers": (SCAN,), "cp": 8} | LONG,
)
SEQUENCE_OVER_TP = Constraint(
    name="sequence parallel",
    predicate=lambda f, p: p.sequence_parallel & (p.seq_length % (p.tp * p.cp) != 0),
    rule="the sequence must divide over tp x cp",
    sentence="a sequence of {p.seq_length} cannot be split over tp {p.tp} x cp {p.cp}",
    about="tp",
    pins=("sp=0", "tp", "cp"),
    source="megatron/core/tensor_parallel/mappings.py; Megatron-LM#743",
    example={"tp": 8, "sequence_parallel": True, "seq_length": 2046},
)
SEQUENCE_OVER_CP = Constraint(
    name="context parallel",
    predicate=lambda f, p: (p.cp > 1) & (p.seq_length % (2 * p.cp) != 0),
    rule="the sequence must divide by 2 cp",
    sentence="a sequence of {p.seq_length} cannot be split into 2 pieces for each of cp {p.cp}",
    pins=("cp",),
    source="megatron/training/arguments.py, validate_args",
    example={"cp": 8, "seq_length": 4104},
)
WINDOWS_OVER_RING = Constraint(
    name="windows over ring",
    predicate=lambda f, p: (
        (p.cp > 1) & has(p.cp_comm, "p2p") & (f.sliding_window > 0) & (f.sliding_window < p.seq_length)
    ),
    rule="sliding windows under context parallelism need a2a or all_gather",
    about="cp_comm",
    got="{p.cp_comm}",
    source="transformer_engine, attn_forward_func_with_cp",
    example={"cp": 2, "cp_comm": "p2p", "sliding_window": 1024} | LONG,
)
EXPERTS_WITHOUT_SEQUENCE = Constraint(
    name="experts with tp",
    predicate=lambda f, p: (f.num_experts > 0) & no(p.sequence_parallel) & (p.tp > 1),
    rule="experts with tensor parallelism need sequence parallelism",
    about="sequence_parallel",
    got="{p.sequence_parallel}",
    source="megatron/training/arguments.py up to core_v0.14; later megatron/core/transformer/moe/moe_layer.py, forward",
    example={"num_experts": 8, "tp": 2, "sequence_parallel": False},
)
ULYSSES_LATENT = Constraint(
    name="ulysses latent",
    predicate=lambda f, p: (p.cp > 1) & has(p.cp_comm, "a2a") & f.latent,
    rule="all-to-all context parallelism takes one head size for queries and values",
    got="{p.cp_comm}",
    pins=("cp_comm=p2p", "cp=1"),
    source="transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py",
    example={"cp": 2, "cp_comm": "a2a", "latent": True} | LONG,
)
EXPERT_BIAS = Constraint(
    name="expert bias",
    predicate=lambda f, p: f.expert_bias & (p.etp > 1),
    rule="biases of experts need etp 1",
    about="experts.expert_bias",
    got="etp {p.etp}",
    source="megatron/core/transformer/transformer_config.py, __post_init__",
    example={"num_experts": 8, "expert_bias": True, "tp": 2, "etp": 2, "sequence_parallel": True},
)
LOW_PRECISION_SIZES = Constraint(
    name="fp8 sizes",
    predicate=lambda f, p: (
        among(p.precision, LOW_PRECISION)
        & (p.seq_length * p.micro // (p.cp * (1 + (p.tp - 1) * p.sequence_parallel)) % block(p.precision) != 0)
    ),
    rule="low precision needs local dims that divide by 16 (fp8) or 32",
    sentence="the tokens of a rank do not divide by the blocks of {p.precision}",
    got="{p.precision}",
    pins=("precision=bf16", "precision=fp16", "tp", "cp", "mbs"),
    source="transformer_engine/pytorch/utils.py, assert_dim_for_fp8_exec",
    example={"precision": "fp8", "seq_length": 2040},
)
MTP_OVER_CP = Constraint(
    name="mtp context",
    predicate=lambda f, p: (f.num_nextn_predict_layers > 0) & (p.cp > 1),
    rule="multi-token prediction does not go with context parallelism before core_v0.14",
    about="cp",
    got="{p.cp}",
    until="core_v0.13.0",
    source="megatron/training/arguments.py, validate_args",
    example={"num_nextn_predict_layers": 1, "cp": 2} | LONG,
)
FP16_EXPERTS = Constraint(
    name="fp16 experts",
    predicate=lambda f, p: (p.precision == "fp16") & (p.ep > 1),
    rule="expert parallelism does not go with fp16 before core_v0.16",
    about="precision",
    got="{p.precision}",
    until="core_v0.15.0",
    source="megatron/training/arguments.py, validate_args",
    example={"precision": "fp16", "num_experts": 8, "ep": 2},
)
INTERLEAVING = Constraint(
    name="interleaving",
    predicate=lambda f, p: (
        (p.vpp > 1)
        & (p.pp > 1)
        & (
            (p.group < p.pp)
            | (p.group > p.num_microbatches)
            | ((p.num_microbatches % p.group > 0) & (p.num_microbatches % p.group < p.pp))
        )
    ),
    rule="interleaving needs microbatches that divide by pp",
    sentence=(
        "{p.num_microbatches} microbatches in groups of {p.group} do not fit the interleaved schedule of pp {p.pp}"
    ),
    pins=("vpp=1", "pp", "dp", "mbs"),
    source="megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving",
    example={"pp": 4, "vpp": 2, "world_size": 8, "global_batch": 12},
)
OPTIMIZER_OFFLOAD = Constraint(
    name="optimizer offload",
    predicate=lambda f, p: (p.optimizer_offload > 0) & (p.zero_stage != 1),
    rule="the optimizer moves to the host with the distributed optimizer only",
    about="optimizer_offload",
    got="zero_stage {p.zero_stage}",
    source="megatron/training/arguments.py, validate_args",
    example={"optimizer_offload": 0.5, "zero_stage": 0},
)
PARAM_OFFLOAD = Constraint(
    name="parameter offload",
    predicate=lambda f, p: p.param_offload,
    rule="weights stay on the GPU",
    about="param_offload",
    got="{p.param_offload}",
    hint="--backend deepspeed",
    source="megatron/training/arguments.py: there is no such option",
    example={"param_offload": True},
)
ACTIVATION_OFFLOAD = Constraint(
    name="activation offload",
    predicate=lambda f, p: p.activation_offload,
    rule="activations stay on the GPU before core_v0.16",
    about="activation_offload",
    got="{p.activation_offload}",
    until="core_v0.15.0",
    source="megatron/training/arguments.py, --fine-grained-activation-offloading",
    example={"activation_offload": True, "recompute": "none"},
)
NOTHING_TO_OFFLOAD = Constraint(
    name="activation offload of recomputed layers",
    predicate=lambda f, p: p.activation_offload & (p.recompute == "full"),
    rule="whole layers are recomputed, nothing is left to move",
    about="activation_offload",
    got="{p.activation_offload}",
    source="megatron/core/transformer/transformer_config.py, __post_init__",
    example={"activation_offload": True, "recompute": "full"},
)
_OF_ADAPTERS = partial(Constraint, pins=("tp",))
ADAPTER_RANK = _OF_ADAPTERS(
    name="adapter rank",
    predicate=lambda f, p: f.adapted & (f.column_rank % p.tp != 0),
    rule="the adapter's rank must divide over tp beside column-parallel layers",
    sentence="the adapter's rank {f.column_rank} cannot be split over tp {p.tp} beside column-parallel layers",
    source="megatron-bridge, peft/utils.py, ParallelLinearAdapter",
    example={"adapted": True, "column_rank": 12, "tp": 8},
)
ADAPTER_HEADS = _OF_ADAPTERS(
    name="adapters of shared heads",
    predicate=lambda f, p: f.head_adapters & (p.tp > f.num_key_value_heads),
    rule="adapters of queries, keys and values each need whole heads on every tensor-parallel rank",
    sentence=(
        "adapters beside queries, keys and values each need whole heads on every rank ({f.num_key_value_heads} "
        "key/value heads, tp {p.tp})"
    ),
    source="megatron-bridge, peft/canonical_lora.py, LoRALinearSplitQKV",
    example={"adapted": True, "head_adapters": True, "column_rank": 8, "num_key_value_heads": 4, "tp": 8},
)
MIXER_CONTEXT = Constraint(
    name="mixer pieces over context",
    predicate=lambda f, p: (
        (p.cp > 1)
        & (f.mixer_pieces > 0)
        & (f.mixer_pieces % (p.tp * p.cp) != 0)
        & ((p.tp * p.cp) % (f.mixer_pieces + (f.mixer_pieces == 0)) != 0)
    ),
    rule="groups of a block in attention's place must divide over tp x cp, or tp x cp over the groups",
    sentence=(
        "groups of blocks in attention's place, which come in {f.mixer_pieces}, cannot be split over or repeated for "
        "tp {p.tp} x cp {p.cp}"
    ),
    about="cp",
    pins=("tp", "cp"),
    divides=True,
    source="megatron/core/ssm/mamba_context_parallel.py, __init__",
    example={"mixers": MIXERS, "tp": 1, "cp": 3} | LONG,
)
# Blocks in attention's place that context parallelism came to later: until when, and where that stands.
OLD_CONTEXTS = tuple(
    Constraint(
        name=f"context of an old {block}",
        predicate=predicate,
        rule=f"the releases up to {until} have no context parallelism for {block}",
        got="{p.cp}",
        pins=("cp=1",),
        until=until,
        source=f"megatron/core/ssm/{module}.py",
        example={"mixers": mixers, "cp": 2} | LONG,
    )
    for block, predicate, until, module, mixers in (
        ("gated delta net", lambda f, p: (p.cp > 1) & f.delta, "core_v0.17.1", "gated_delta_net", DELTA_MIXERS),
        ("Mamba", lambda f, p: (p.cp > 1) & (f.mixer_pieces > 0), "core_v0.12.1", "mamba_mixer", MIXERS),
    )
)
HYBRID_RECOMPUTE = Constraint(
    name="full recompute of uneven layers",
    predicate=lambda f, p: f.hybrid & (f.parts_of_layer == 0) & (p.recompute == "full"),
    rule="whole layers are recomputed where each has as many parts",
    about="recompute",
    got="{p.recompute}",
    source="megatron/core/recompute.py, checkpointed_forward",
    example={"mlp_layers": (True,) * 39 + (False,), "recompute": "full"},
)

MEGATRON: tuple[Constraint, ...] = (
    shared.BATCH,
    *OVERLAP_CONSTRAINTS,
    *shared.SHARED,
    shared.MIXER_PIECES,
    shared.CONTEXT_KERNEL,
    *of_module(globals()),
    *OLD_CONTEXTS,
    *OPTION_CONSTRAINTS,
    *OPTIMIZER_CONSTRAINTS,
    *SPARSE_CONSTRAINTS,
)
