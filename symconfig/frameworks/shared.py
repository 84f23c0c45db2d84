"""Constraints of several frameworks: of all that cut tensors over ranks, whose shares are whole (`SHARED`), and of all
around a Transformers model, whose layers stay one module and whose heads Ulysses exchanges (`AROUND_TRANSFORMERS`).
"""

from __future__ import annotations

from functools import partial

from symconfig.descriptor.sections import Mixer
from symconfig.frameworks.constraint import Constraint, only
from symconfig.plans.configuration_set import has, no

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

# Both implementations of Ulysses refuse the same: DeepSpeed's, and that of trainers beside FSDP (verl 0.9.1).
ULYSSES = {"cp": 2, "cp_comm": "a2a"}
_ULYSSES = (
    "deepspeed/runtime/sequence_parallel/ulysses_sp.py, __init__ and register_with_transformers; "
    "verl/utils/ulysses.py and models/transformers/monkey_patch.py"
)
_OF_HEADS = partial(Constraint, pins=("cp",), divides=True, source=_ULYSSES)
ULYSSES_HEADS = _OF_HEADS(
    name="ulysses heads",
    predicate=lambda f, p: (p.cp > 1) & (f.num_attention_heads % p.cp != 0),
    rule="heads must divide over cp for Ulysses",
    sentence="{f.num_attention_heads} heads do not divide over {p.cp} ranks of Ulysses",
    example={"num_attention_heads": 20, "num_key_value_heads": 20, "cp": 8, "cp_comm": "a2a"},
)
ULYSSES_KV_HEADS = _OF_HEADS(
    name="ulysses key/value heads",
    predicate=lambda f, p: (p.cp > 1) & (f.num_key_value_heads % p.cp != 0) & (p.cp % f.num_key_value_heads != 0),
    rule="key/value heads must be a multiple or a divisor of cp for Ulysses",
    sentence="{f.num_key_value_heads} key-value heads neither divide over {p.cp} ranks of Ulysses, nor are shared",
    example={"num_attention_heads": 24, "num_key_value_heads": 6, "cp": 4, "cp_comm": "a2a"},
)
_WITHOUT_CP = partial(Constraint, pins=("cp=1",), source=_ULYSSES)
WITHOUT_PREDICTION = "num_nextn_predict_layers: 0 in a copy of the descriptor"  # what is done where nothing trains it
AROUND_TRANSFORMERS = (
    Constraint(
        name="ring",
        predicate=lambda f, p: (p.cp > 1) & no(has(p.cp_comm, "a2a")),
        rule="sequences around a Transformers model are split by Ulysses",
        sentence="around a Transformers model sequences are split by Ulysses (a2a) only, not {p.cp_comm}",
        pins=("cp_comm=a2a", "cp=1"),
        source=_ULYSSES,
        example={"cp": 2, "cp_comm": "p2p"},
    ),
    ULYSSES_HEADS,
    ULYSSES_KV_HEADS,
    Constraint(
        name="ulysses sequence",
        predicate=lambda f, p: (p.cp > 1) & (p.seq_length % p.cp != 0),
        rule="the sequence must divide over cp",
        sentence="sequence length {p.seq_length} does not divide over cp {p.cp}",
        pins=("cp",),
        source=_ULYSSES,
        example=ULYSSES | {"seq_length": 2047},
    ),
    _WITHOUT_CP(
        name="ulysses latent",
        predicate=lambda f, p: (p.cp > 1) & f.latent,
        rule="Ulysses takes one head size for queries and values; MLA has two",
        example=ULYSSES | {"latent": True},
    ),
    _WITHOUT_CP(
        name="ulysses sinks",
        predicate=lambda f, p: (p.cp > 1) & f.attention_sinks,
        rule="Ulysses refuses eager attention, which sinks need",
        example=ULYSSES | {"attention_sinks": True},
    ),
    _WITHOUT_CP(
        name="ulysses blocks",
        predicate=lambda f, p: (p.cp > 1) & f.scans,
        rule="Ulysses exchanges attention only, while scans and convolutions need the whole sequence",
        example=ULYSSES | {"mixers": (Mixer(block="short_conv", sizes={"conv_L_cache": 3}),)},
    ),
    _WITHOUT_CP(
        name="ulysses attention",
        predicate=lambda f, p: (p.cp > 1) & f.own_attention,
        rule="Ulysses replaces attention that Transformers takes from its table of kernels",
        sentence="Transformers' {f.model_type} has attention in code of its own, which Ulysses cannot replace",
        example=ULYSSES | {"model_type": "bloom"},
    ),
    Constraint(
        name="multi-token prediction",
        predicate=lambda f, p: (p.tp > 0) & (f.num_nextn_predict_layers > 0),
        rule="Transformers trains no multi-token-prediction layers",
        about="num_nextn_predict_layers",
        hint=WITHOUT_PREDICTION,
        source="transformers, models/deepseek_v3/modeling_deepseek_v3.py",
        example={"num_nextn_predict_layers": 1},
    ),
    only(
        "pp", (1,), 2, "pp=1", "a Transformers model is no PipelineModule", name="pipeline",
        sentence="the model is one module of Transformers and no PipelineModule that a pipeline (pp {p.pp}) cuts",
        source="deepspeed/runtime/pipe/module.py; torch/distributed/pipelining",
    ),
    only(
        "vpp", (1,), 2, "vpp=1", "a Transformers model has no interleaved pipeline", name="virtual stages", got=None,
        source="deepspeed/runtime/pipe/schedule.py; torch/distributed/pipelining", example={"pp": 2},
    ),
    only(
        "precision", ("bf16", "fp16"), "fp8", "precision=bf16 precision=fp16",
        "a Transformers model is planned in bf16 and fp16", name="precision",
        sentence="a Transformers model is planned in bf16 and fp16, not in {p.precision}",
        source="templates/deepspeed/train.py",
    ),
    only(
        "recompute", ("full", "none"), "selective", "recompute=full recompute=none",
        "Transformers recomputes whole layers only", name="selective recompute", got=None,
        source="transformers/modeling_layers.py, GradientCheckpointingLayer",
        example={"recompute_method": None, "recompute_layers": 1},
    ),
    Constraint(
        name="recompute of several layers at once",
        predicate=lambda f, p: (p.recompute_method == "uniform") & (p.recompute_layers > 1),
        rule="Transformers recomputes layer by layer, not in chunks of several",
        pins=("recompute=none",),
        source="transformers/modeling_layers.py, GradientCheckpointingLayer",
        example={"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    ),
    only(
        "activation_offload", (False,), True, "activation_offload=0",
        "activations of a Transformers model stay on the GPU", name="activation offload",
        source="templates/deepspeed/train.py",
    ),
)  # fmt: skip
