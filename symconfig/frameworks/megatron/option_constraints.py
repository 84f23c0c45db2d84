"""What releases of Megatron-LM refuse of user buffers, dispatchers, 8 bits and weight shards."""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.constraint import Constraint, of_module
from symconfig.frameworks.megatron.releases import (
    FUSED_LOSS_REFUSED,
)
from symconfig.plans.configuration_set import among, no

# Without Transformer Engine's user buffers, which want NVLink and Ampere or later (README.rst, "System Requirements";
# pytorch/module/base.py, initialize_ub).
NO_USER_BUFFERS = frozenset(("volta", "ada", "cdna3", "cdna4", "davinci"))
# Megatron-Bridge, training/flex_dispatcher_backend.py: DeepEP runs on Ampere, Hopper, B200 and B300, HybridEP on GB200
# and GB300, too. AMD has a DeepEP of its own.
NO_DEEPEP = frozenset(("volta", "ada", "davinci"))
NO_HYBRIDEP = NO_DEEPEP | {"cdna3", "cdna4"}
# deep_ep/buffers/legacy.py, get_dispatch_config and get_combine_config: the groups that they have settings for, which
# megatron/core/transformer/moe/fused_a2a.py asks.
DEEPEP_RANKS = frozenset((2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160))
DEEPEP_NODE = 8  # GPUs that it takes to be joined by NVLink (csrc/kernels/legacy/compiled.cuh, NUM_MAX_NVL_PEERS)

GATHERED_FORMATS = frozenset(("fp8", "mxfp8"))

CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
ARGUMENTS = "megatron/training/arguments.py, validate_args"
BRIDGE = "megatron-bridge, training/flex_dispatcher_backend.py, validate_flex_dispatcher_backend"
# Facts of several examples.
BUFFERS = {"tp": 2, "sequence_parallel": True, "overlap_tp_comm": True}
DEEPEP = {"num_experts": 8, "ep": 8, "moe_dispatcher": "flex", "moe_flex_backend": "deepep"}
HYBRIDEP = DEEPEP | {"moe_flex_backend": "hybridep"}
GATHER = {"precision": "fp8", "zero_stage": 1, "fp8_param_gather": True}

_OF_BUFFERS = partial(Constraint, about="user_buffers")
BUFFERS_SEQUENCE = _OF_BUFFERS(
    name="user buffers without sequence parallelism",
    predicate=lambda f, p: p.overlap_tp_comm & (no(p.sequence_parallel) | (p.tp == 1)),
    rule="user buffers need sequence parallelism",
    got="tp {p.tp}",
    pins=("user_buffers=off", "sp=1"),
    source=ARGUMENTS,  # which switches sequence parallelism off at tp 1
    example=BUFFERS | {"sequence_parallel": False},
)
BUFFERS_NEAR = _OF_BUFFERS(
    name="user buffers over far ranks",
    predicate=lambda f, p: p.overlap_tp_comm & (p.tp > f.joined),
    rule="user buffers reach no further than the GPUs that NVLink joins",
    sentence="user buffers reach the {f.joined} GPUs that the fastest links join, and not tp {p.tp}",
    got="tp {p.tp}",
    pins=("user_buffers=off", "tp"),
    source="transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp, create_communicator_grouped2",
    example=BUFFERS | {"joined": 4, "tp": 8},
)
BUFFERS_GPU = _OF_BUFFERS(
    name="user buffers of a GPU",
    predicate=lambda f, p: p.overlap_tp_comm & among(f.architecture, NO_USER_BUFFERS),
    rule="user buffers need NVIDIA GPUs with NVLink, from Ampere on",
    sentence="user buffers need NVLink and Ampere or later: {f.architecture} GPUs have none",
    got="{f.architecture}",
    pins=("user_buffers=off",),
    source="transformer_engine/pytorch/module/base.py, initialize_ub; README.rst",
    example=BUFFERS | {"architecture": "ada"},
)
BUFFERS_HALF = _OF_BUFFERS(
    name="user buffers in fp16",
    predicate=lambda f, p: p.overlap_tp_comm & (p.precision == "fp16"),
    rule="user buffers add in bf16, whatever they are given",
    got="{p.precision}",
    pins=("user_buffers=off", *(f"precision={word}" for word in ("bf16", "fp8", "mxfp8", "nvfp4"))),
    source="transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu, half_dtype",
    example=BUFFERS | {"precision": "fp16"},
)
BUFFERS_LATENT = _OF_BUFFERS(
    name="user buffers of latent attention",
    predicate=lambda f, p: p.overlap_tp_comm & f.latent,
    rule="user buffers do not go with latent attention, whose layers have none",
    pins=("user_buffers=off",),
    source="megatron/core/extensions/transformer_engine.py, TELinear, where core_v0.12 asserts the buffer's name",
    example=BUFFERS | {"latent": True},
)
_OF_FLEX = partial(Constraint, about="dispatcher", got="{p.moe_dispatcher}", pins=("dispatcher=alltoall",), unsaid=True)
FLEX_EXPERTS = _OF_FLEX(
    name="flex dispatcher without experts",
    predicate=lambda f, p: (p.moe_dispatcher == "flex") & (f.num_experts == 0),
    rule="DeepEP and HybridEP carry tokens to experts, which the model has not",
    source="megatron/core/transformer/moe/moe_layer.py",
    example={"moe_dispatcher": "flex", "moe_flex_backend": "deepep"},
)
_OF_DEEPEP = partial(Constraint, about="moe_flex_backend", since="core_v0.12.1")
DEEPEP_SIZES = _OF_DEEPEP(
    name="deepep ranks",
    predicate=lambda f, p: (p.moe_flex_backend == "deepep") & no(among(p.ep * p.etp, DEEPEP_RANKS)),
    rule=f"DeepEP has settings for {', '.join(map(str, sorted(DEEPEP_RANKS)))} expert-parallel ranks",
    sentence="DeepEP has no settings for ep {p.ep} x etp {p.etp} ranks",
    got="ep {p.ep}, etp {p.etp}",
    pins=("dispatcher=alltoall", "dispatcher=hybridep", "ep", "etp"),
    source="deep_ep/buffers/legacy.py, get_dispatch_config; token_dispatcher.py: it requires TPxEP > 1",
    example=DEEPEP | {"ep": 1},
)
DEEPEP_NODES = _OF_DEEPEP(
    name="deepep nodes",
    predicate=lambda f, p: (p.moe_flex_backend == "deepep") & (f.joined < DEEPEP_NODE) & (p.ep * p.etp > f.joined),
    rule=f"DeepEP takes {DEEPEP_NODE} GPUs to be joined by NVLink",
    sentence=f"DeepEP takes {DEEPEP_NODE} GPUs to be joined by NVLink, and {{f.joined}} are",
    got="ep {p.ep}, etp {p.etp}",
    pins=("dispatcher=alltoall", "dispatcher=hybridep", "ep", "etp"),
    source="csrc/kernels/legacy/compiled.cuh of DeepEP, LEGACY_NUM_MAX_NVL_PEERS",
    example=DEEPEP | {"joined": 4},
)
DEEPEP_GPU = _OF_DEEPEP(
    name="deepep of a GPU",
    predicate=lambda f, p: (p.moe_flex_backend == "deepep") & among(f.architecture, NO_DEEPEP),
    rule="DeepEP runs on Ampere, Hopper and Blackwell",
    sentence="DeepEP does not run on {f.architecture} GPUs",
    got="{f.architecture}",
    pins=("dispatcher=alltoall", "dispatcher=hybridep"),
    source=BRIDGE,
    example=DEEPEP | {"architecture": "ada"},
)
_OF_HYBRIDEP = partial(Constraint, about="moe_flex_backend", since="core_v0.16.1")
HYBRIDEP_SIZES = _OF_HYBRIDEP(
    name="hybridep ranks",
    predicate=lambda f, p: (p.moe_flex_backend == "hybridep") & (p.ep * p.etp == 1),
    rule="HybridEP needs expert-parallel ranks",
    got="ep {p.ep}, etp {p.etp}",
    pins=("dispatcher=alltoall", "dispatcher=deepep", "ep", "etp"),
    source="megatron/core/transformer/moe/token_dispatcher.py: core_v0.16 asserts it, later ones copy tokens",
    example=HYBRIDEP | {"ep": 1},
)
HYBRIDEP_GPU = _OF_HYBRIDEP(
    name="hybridep of a GPU",
    predicate=lambda f, p: (p.moe_flex_backend == "hybridep") & among(f.architecture, NO_HYBRIDEP),
    rule="HybridEP runs on Ampere, Hopper and Blackwell",
    sentence="HybridEP does not run on {f.architecture} GPUs",
    got="{f.architecture}",
    pins=("dispatcher=alltoall", "dispatcher=deepep"),
    source=BRIDGE,
    example=HYBRIDEP | {"architecture": "ada"},
)
_OF_ATTENTION = partial(Constraint, about="fp8_attention", got="{p.precision}")
ATTENTION_FORMAT = _OF_ATTENTION(
    name="fp8 attention without fp8",
    predicate=lambda f, p: p.fp8_attention & no(among(p.precision, GATHERED_FORMATS)),
    rule="attention is in fp8 where products are in fp8 or mxfp8",
    pins=("fp8_attention=off", "precision=fp8", "precision=mxfp8"),
    unsaid=True,
    source="megatron/core/fp8_utils.py, get_fp8_recipe",
    example={"fp8_attention": True, "precision": "bf16"},
)
_OF_GATHERED = partial(Constraint, about="fp8_param_gather")
GATHER_FORMAT = _OF_GATHERED(
    name="gathered weights without fp8",
    predicate=lambda f, p: p.fp8_param_gather & no(among(p.precision, GATHERED_FORMATS)),
    rule="weights are gathered in 8 bits where products are in fp8 or mxfp8",
    got="{p.precision}",
    pins=("fp8_param_gather=off", "precision=fp8", "precision=mxfp8"),
    source=CONFIG,
    example=GATHER | {"precision": "bf16"},
)
GATHER_SHARDING = _OF_GATHERED(
    name="gathered weights without a sharded optimizer",
    predicate=lambda f, p: p.fp8_param_gather & (p.zero_stage == 0),
    rule="weights are gathered in 8 bits beside a sharded optimizer",
    got="zero_stage {p.zero_stage}",
    pins=("fp8_param_gather=off", "zero"),
    source=ARGUMENTS,
    example=GATHER | {"zero_stage": 0, "tp": 8},
)
GATHER_OFFLOAD = _OF_GATHERED(
    name="gathered weights of an offloaded optimizer",
    predicate=lambda f, p: p.fp8_param_gather & (p.optimizer_offload > 0) & no(p.precision == "fp8"),
    rule="an offloaded optimizer writes weights in fp8 with delayed scaling only",
    got="{p.precision}",
    pins=("fp8_param_gather=off", "optimizer_offload=0", "precision=fp8"),
    since="core_v0.14.0",
    source=ARGUMENTS,
    example=GATHER | {"precision": "mxfp8", "optimizer_offload": 0.5},
)
_OF_LOSS = partial(Constraint, about="fused_loss", pins=("fused_loss=off",))
LOSS_REFUSED = _OF_LOSS(
    name="fused loss",
    predicate=lambda f, p: p.fused_loss,
    rule="Transformer Engine's fused loss is refused from core_v0.18 on",
    since=FUSED_LOSS_REFUSED,
    source=f"{ARGUMENTS}, of core_v0.18.2",
    example={"fused_loss": True},
)
_OF_SHARDS = partial(Constraint, about="gtp", got="{p.gtp}", pins=("gtp=1",))
SHARDS_OVER_DP = _OF_SHARDS(
    name="weight shards over dp",
    predicate=lambda f, p: p.dp % p.gtp != 0,
    rule="weight shards are of data-parallel ranks, which gtp must divide",
    sentence="dp {p.dp} ranks cannot be divided by gtp {p.gtp}",
    divides=True,
    source="megatron/core/parallel_state.py, initialize_model_parallel: world = tp x gtp x cp x dp x pp",
    example={"gtp": 3, "dp": 8},
)
SHARDS_SHARDING = _OF_SHARDS(
    name="weight shards beside Megatron-FSDP",
    predicate=lambda f, p: (p.gtp > 1) & (p.zero_stage >= 2),
    rule="weight shards go with ZeRO 0 and 1, as Megatron-FSDP's checkpoints cannot hold them",
    source=f"{ARGUMENTS}: torch or torch_dist",
    example={"gtp": 2, "dp": 8, "zero_stage": 3},
)

OPTION_CONSTRAINTS = of_module(globals())
