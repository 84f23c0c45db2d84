"""Constraints of several frameworks: of all that split tensors over ranks, whose shares are whole (`SHARED`)."""

from __future__ import annotations

from functools import partial

from symconfig.descriptor.sections import Mixer
from symconfig.frameworks.constraint import Constraint
from symconfig.plans.configuration_set import no

BATCH = Constraint(
    name="batch",
    predicate=lambda f, p: p.global_batch % (p.dp * p.micro) != 0,
    rule="the global batch must divide by dp x micro-batch",
    sentence="dp {p.dp} x micro-batch {p.micro} does not divide the batch of {p.global_batch}",
    about="global_batch_size",
    pins=("dp", "mbs"),
    divides=True,
    source="megatron/core/num_microbatches_calculator.py; deepspeed/runtime/config.py, _batch_assertion",
    example={"global_batch": 12, "micro": 1},
)
OVER_TP = partial(Constraint, pins=("tp",), divides=True)
HEADS = OVER_TP(
    name="num_attention_heads",
    predicate=lambda f, p: f.num_attention_heads % p.tp != 0,
    rule="num_attention_heads must divide over tp",
    sentence="{f.num_attention_heads} attention heads cannot be split over tp {p.tp}",
    source="megatron/core/transformer/transformer_config.py, __post_init__",
    example={"hidden_size": 5120, "num_attention_heads": 20, "num_key_value_heads": 20, "tp": 8},
)
FFN = OVER_TP(
    name="intermediate_size",
    predicate=lambda f, p: f.intermediate_size % p.tp != 0,
    rule="intermediate_size must divide over tp",
    sentence="an MLP of width {f.intermediate_size} cannot be split over tp {p.tp}",
    source="megatron/core/tensor_parallel/layers.py, divide()",
    example={"intermediate_size": 11004, "tp": 8},
)
SHARED_EXPERT = OVER_TP(
    name="shared_expert_intermediate_size",
    predicate=lambda f, p: f.shared_expert_intermediate_size % p.tp != 0,
    rule="the shared expert's width must divide over tp",
    sentence="a shared expert of width {f.shared_expert_intermediate_size} cannot be split over tp {p.tp}",
    source="megatron/core/transformer/moe/shared_experts.py",
    example={"num_experts": 8, "shared_expert_intermediate_size": 1410, "tp": 4, "sequence_parallel": True},
)
EXPERTS = Constraint(
    name="num_experts",
    predicate=lambda f, p: f.num_experts % p.ep != 0,
    rule="experts must divide over ep",
    sentence="{f.num_experts} experts do not divide over ep {p.ep}",
    pins=("ep",),
    divides=True,
    source="megatron/training/arguments.py, validate_args; deepspeed/module_inject/auto_ep_config.py",
    example={"num_experts": 6, "ep": 4},
)
EXPERT_WIDTH = Constraint(
    name="moe_intermediate_size",
    predicate=lambda f, p: f.moe_intermediate_size % p.etp != 0,
    rule="the experts' width must divide over etp",
    sentence="experts of width {f.moe_intermediate_size} cannot be split over etp {p.etp}",
    pins=("etp",),
    divides=True,
    source="megatron/core/transformer/moe/experts.py",
    example={"num_experts": 8, "moe_intermediate_size": 1410, "tp": 4, "etp": 4, "sequence_parallel": True},
)
EXPERT_GRID = Constraint(
    name="expert grid",
    predicate=lambda f, p: (f.num_experts > 0) & ((p.world_size // p.pp) % (p.ep * p.etp) != 0),
    rule="ep x etp must divide tp x cp x dp",
    sentence="ep {p.ep} x etp {p.etp} does not divide the GPUs of a pipeline stage",
    pins=("ep", "etp", "pp"),
    divides=True,
    source="megatron/core/parallel_state.py; Megatron-LM#1580",
    example={"num_experts": 8, "ep": 8, "pp": 2, "world_size": 8},
)
CONTEXT_KERNEL = Constraint(
    name="context parallel kernel",
    predicate=lambda f, p: (p.cp > 1) & no(f.flash),
    rule="context parallelism needs flash attention, which this GPU or job does not have",
    got="{p.cp}",
    pins=("cp=1",),
    source="transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_attention_backend",
    example={"flash": False, "architecture": "volta", "precision": "fp16", "cp": 2, "seq_length": 8192},
)
SCAN = Mixer(  # of examples
    block="mamba2",
    sizes={"mamba_num_heads": 4, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 128}
    | {"conv_kernel": 4, "chunk_size": 128},
)
# Every layer has Mamba in attention's place.
MIXERS = (Mixer(block="mamba2", sizes=SCAN.sizes | {"mamba_num_heads": 64}),)
DELTA_MIXERS = (
    Mixer(
        block="gated_delta_net",
        sizes={"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128}
        | {"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
    ),
)
MIXER_PIECES = OVER_TP(
    name="mixer pieces",
    predicate=lambda f, p: f.mixer_pieces % p.tp != 0,
    rule="heads and groups of a block in attention's place must divide over tp",
    sentence=(
        "heads and groups of blocks in attention's place divide by {f.mixer_pieces} at most, and cannot be split over "
        "tp {p.tp}"
    ),
    source="megatron/core/ssm/mamba_mixer.py, __init__; megatron/core/ssm/gated_delta_net/common.py",
    example={"mixers": MIXERS, "tp": 8},
)
SHARED = (HEADS, FFN, SHARED_EXPERT, EXPERTS, EXPERT_WIDTH, EXPERT_GRID)
