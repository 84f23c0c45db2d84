"""What releases of Megatron-LM refuse of the options that a plan chooses: user buffers, dispatchers, 8 bits, weight
shards, CUDA graphs, and the expert capacity that a graph of the whole iteration needs.
"""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.constraint import Constraint, of_module
from symconfig.frameworks.megatron.releases import EXPERT_CAPACITY_SINCE, FUSED_LOSS_REFUSED, GRAPHED_MODULES_SINCE
from symconfig.plans.configuration_set import among, has, no

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

BUFFERS_SEQUENCE = Constraint(
    name="user buffers without sequence parallelism",
    predicate=lambda f, p: p.overlap_tp_comm & (no(p.sequence_parallel) | (p.tp == 1)),
    rule="user buffers need sequence parallelism",
    got="tp {p.tp}",
    pins=("user_buffers=off", "sp=1"),
    source=ARGUMENTS,  # which switches sequence parallelism off at tp 1
    example=BUFFERS | {"sequence_parallel": False},
)
BUFFERS_NEAR = Constraint(
    name="user buffers over far ranks",
    predicate=lambda f, p: p.overlap_tp_comm & (p.tp > f.joined),
    rule="user buffers reach no further than the GPUs that NVLink joins",
    sentence="user buffers reach the {f.joined} GPUs that the fastest links join, and not tp {p.tp}",
    got="tp {p.tp}",
    pins=("user_buffers=off", "tp"),
    source="transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp, create_communicator_grouped2",
    example=BUFFERS | {"joined": 4, "tp": 8},
)
BUFFERS_GPU = Constraint(
    name="user buffers of a GPU",
    predicate=lambda f, p: p.overlap_tp_comm & among(f.architecture, NO_USER_BUFFERS),
    rule="user buffers need NVIDIA GPUs with NVLink, from Ampere on",
    sentence="user buffers need NVLink and Ampere or later: {f.architecture} GPUs have none",
    got="{f.architecture}",
    pins=("user_buffers=off",),
    source="transformer_engine/pytorch/module/base.py, initialize_ub; README.rst",
    example=BUFFERS | {"architecture": "ada"},
)
BUFFERS_HALF = Constraint(
    name="user buffers in fp16",
    predicate=lambda f, p: p.overlap_tp_comm & (p.precision == "fp16"),
    rule="user buffers add in bf16, whatever they are given",
    got="{p.precision}",
    pins=("user_buffers=off", *(f"precision={word}" for word in ("bf16", "fp8", "mxfp8", "nvfp4"))),
    source="transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu, half_dtype",
    example=BUFFERS | {"precision": "fp16"},
)
BUFFERS_LATENT = Constraint(
    name="user buffers of latent attention",
    predicate=lambda f, p: p.overlap_tp_comm & f.latent,
    rule="user buffers do not go with latent attention, whose layers have none",
    pins=("user_buffers=off",),
    source="megatron/core/extensions/transformer_engine.py, TELinear, where core_v0.12 asserts the buffer's name",
    example=BUFFERS | {"latent": True},
)
_OF_FLEX = partial(Constraint, got="{p.moe_dispatcher}", pins=("dispatcher=alltoall",), unsaid=True)
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
ATTENTION_FORMAT = Constraint(
    name="fp8 attention without fp8",
    predicate=lambda f, p: p.fp8_attention & no(among(p.precision, GATHERED_FORMATS)),
    rule="attention is in fp8 where products are in fp8 or mxfp8",
    got="{p.precision}",
    pins=("fp8_attention=off", "precision=fp8", "precision=mxfp8"),
    unsaid=True,
    source="megatron/core/fp8_utils.py, get_fp8_recipe",
    example={"fp8_attention": True, "precision": "bf16"},
)
GATHER_FORMAT = Constraint(
    name="gathered weights without fp8",
    predicate=lambda f, p: p.fp8_param_gather & no(among(p.precision, GATHERED_FORMATS)),
    rule="weights are gathered in 8 bits where products are in fp8 or mxfp8",
    got="{p.precision}",
    pins=("fp8_param_gather=off", "precision=fp8", "precision=mxfp8"),
    source=CONFIG,
    example=GATHER | {"precision": "bf16"},
)
GATHER_SHARDING = Constraint(
    name="gathered weights without a sharded optimizer",
    predicate=lambda f, p: p.fp8_param_gather & (p.zero_stage == 0),
    rule="weights are gathered in 8 bits beside a sharded optimizer",
    got="zero_stage {p.zero_stage}",
    pins=("fp8_param_gather=off", "zero"),
    source=ARGUMENTS,
    example=GATHER | {"zero_stage": 0, "tp": 8},
)
GATHER_OFFLOAD = Constraint(
    name="gathered weights of an offloaded optimizer",
    predicate=lambda f, p: p.fp8_param_gather & (p.optimizer_offload > 0) & no(p.precision == "fp8"),
    rule="an offloaded optimizer writes weights in fp8 with delayed scaling only",
    got="{p.precision}",
    pins=("fp8_param_gather=off", "optimizer_offload=0", "precision=fp8"),
    since="core_v0.14.0",
    source=ARGUMENTS,
    example=GATHER | {"precision": "mxfp8", "optimizer_offload": 0.5},
)
LOSS_REFUSED = Constraint(
    name="fused loss",
    predicate=lambda f, p: p.fused_loss,
    rule="Transformer Engine's fused loss is refused from core_v0.18 on",
    pins=("fused_loss=off",),
    since=FUSED_LOSS_REFUSED,
    source=f"{ARGUMENTS}, of core_v0.18.2",
    example={"fused_loss": True},
)
_OF_SHARDS = partial(Constraint, got="{p.gtp}", pins=("gtp=1",))
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

NO_GRAPHS = frozenset(("volta", "cdna3", "cdna4", "davinci"))
OF_EXPERTS = frozenset(("router", "outside experts"))  # graphs of modules that a dense model has not
OF_ATTENTION = frozenset(("outside experts", "all", "full iteration"))  # graphs that replay attention
UNGRAPHED_LAYERS = frozenset(("none", "full iteration"))  # no graph of a layer
OF_MLP = frozenset(("all", "full iteration"))

CAPACITY = HYBRIDEP | {"expert_capacity": 1.5}
_OF_GRAPHS = partial(Constraint, about="cuda_graphs")
GRAPHS_GPU = _OF_GRAPHS(
    name="graphs of a GPU",
    predicate=lambda f, p: no(p.cuda_graphs == "none") & among(f.architecture, NO_GRAPHS),
    rule="Transformer Engine's CUDA graphs are of NVIDIA's GPUs, from Ampere on",
    sentence="CUDA graphs: Transformer Engine captures none on {f.architecture} GPUs",
    got="{f.architecture}",
    pins=("cuda_graphs=none",),
    unsaid=True,
    source='transformer_engine/pytorch/graph.py; README.rst, "System Requirements"',
    example={"cuda_graphs": "all", "architecture": "davinci"},
)
GRAPHS_RECOMPUTE_ALONE = _OF_GRAPHS(
    name="graphs beside recompute",
    predicate=lambda f, p: no(p.cuda_graphs == "none") & no(p.recompute == "none"),
    rule="CUDA graphs of whole layers go without recompute before core_v0.16",
    got="recompute {p.recompute}",
    pins=("cuda_graphs=none", "recompute=none"),
    until="core_v0.15.0",
    source=CONFIG,
    example={"cuda_graphs": "all", "recompute": "full"},
)
_OF_GRAPHED = partial(Constraint, about="cuda_graphs", since=GRAPHED_MODULES_SINCE, source=CONFIG)
GRAPHS_RECOMPUTE = _OF_GRAPHED(
    name="graphs of recomputed layers",
    predicate=lambda f, p: no(among(p.cuda_graphs, UNGRAPHED_LAYERS)) & (p.recompute == "full"),
    rule="CUDA graphs of layers go without full recompute",
    got="recompute {p.recompute}",
    pins=("cuda_graphs=none", "cuda_graphs=full_iteration", "recompute=none", "recompute=selective"),
    example={"cuda_graphs": "all", "recompute": "full"},
)
GRAPHS_EXPERT_RECOMPUTE = _OF_GRAPHED(
    name="graphs of recomputed experts",
    predicate=lambda f, p: among(p.cuda_graphs, OF_EXPERTS) & has(p.recompute_modules, "moe"),
    rule="CUDA graphs of the router recompute no experts, which hold it",
    got="{p.cuda_graphs}",
    example={"num_experts": 8, "cuda_graphs": "router", "recompute": "selective", "recompute_modules": ("moe",)},
)
GRAPHS_EXPERTS = _OF_GRAPHS(
    name="graphs of experts",
    predicate=lambda f, p: (p.cuda_graphs == "all") & (f.num_experts > 0),
    rule="CUDA graphs of whole layers need a model without experts, whose tokens are counted on the host",
    got="{p.cuda_graphs}",
    pins=("cuda_graphs=none", "cuda_graphs=router", "cuda_graphs=outside_experts"),
    source=CONFIG,
    example={"num_experts": 8, "cuda_graphs": "all"},
)
GRAPHS_DENSE = _OF_GRAPHED(
    name="graphs of a router without experts",
    predicate=lambda f, p: among(p.cuda_graphs, OF_EXPERTS) & (f.num_experts == 0),
    rule="CUDA graphs of the router need experts",
    got="{p.cuda_graphs}",
    pins=("cuda_graphs=none", "cuda_graphs=all"),
    example={"cuda_graphs": "router"},
)
GRAPHS_DROPOUT = _OF_GRAPHED(
    name="graphs of recomputed dropout",
    predicate=lambda f, p: (
        (among(p.cuda_graphs, OF_ATTENTION) & has(p.recompute_modules, "core_attn") & (f.attention_dropout > 0))
        | (among(p.cuda_graphs, OF_MLP) & has(p.recompute_modules, "mlp") & (f.hidden_dropout > 0))
    ),
    rule="CUDA graphs recompute no dropout",
    got="{p.cuda_graphs}",
    example={"cuda_graphs": "all", "attention_dropout": 0.1}
    | {"recompute": "selective", "recompute_modules": ("core_attn",)},
)
FULL_ITERATION_EXPERTS = _OF_GRAPHS(
    name="full iteration of counted experts",
    predicate=lambda f, p: (p.cuda_graphs == "full iteration") & (f.num_experts > 0) & (p.expert_capacity == 0),
    rule="a CUDA graph of the whole iteration needs an expert capacity; without one the host waits for token counts",
    got="{p.cuda_graphs}",
    hint="pin expert_capacity=1.5 and dispatcher=hybridep, or cuda_graphs=outside_experts",
    source="megatron/core/transformer/moe/token_dispatcher.py, setup_metadata: without one dispatch waits for the host",
    example={"num_experts": 8, "cuda_graphs": "full iteration"},
)
CAPACITY_BACKENDS = frozenset(("hybridep", "ncclep"))
_OF_CAPACITY = partial(Constraint, about="expert_capacity", got="{p.expert_capacity}", since=EXPERT_CAPACITY_SINCE)
CAPACITY_DISPATCHER = _OF_CAPACITY(
    name="expert capacity of a dispatcher",
    predicate=lambda f, p: (p.expert_capacity > 0) & no(among(p.moe_flex_backend, CAPACITY_BACKENDS)),
    rule="expert capacity per rank is implemented for HybridEP only",
    pins=("expert_capacity=none", "dispatcher=hybridep"),
    source=f"{CONFIG}; megatron/core/transformer/moe/paged_stash.py, PagedStashRunner",
    example=CAPACITY | {"moe_flex_backend": "deepep"},
)
CAPACITY_WIDTH = _OF_CAPACITY(
    name="expert capacity over etp",
    predicate=lambda f, p: (p.expert_capacity > 0) & (p.etp > 1),
    rule="expert capacity per rank excludes expert tensor parallelism",
    got="etp {p.etp}",
    pins=("expert_capacity=none", "etp=1"),
    source="megatron/core/transformer/moe/experts.py, _is_fused_impl_supported",
    example=CAPACITY | {"ep": 4, "etp": 2},
)
STASH_CAPACITY = Constraint(
    name="paged stash without a capacity",
    predicate=lambda f, p: p.paged_stash & (p.expert_capacity == 0),
    rule="a paged stash needs an expert capacity",
    about="paged_stash",
    hint="pin expert_capacity=1.5 and dispatcher=hybridep",
    source=CONFIG,
    example=HYBRIDEP | {"paged_stash": True, "expert_capacity": 0.0},
)

_OPTIONS = "megatron/training/arguments.py, "
_NOT_MXFP8 = " precision=bf16 precision=fp16 precision=fp8 precision=nvfp4"

# What older releases have no option for, or an option that does nothing there yet: name, what a point has that cannot
# run, rule, last release that lacks it, field that is shown, pins that avoid it, source and example.
OLD_RELEASES: tuple[Constraint, ...] = tuple(
    Constraint(
        name=f"{name} of an old release",
        predicate=lacking,
        rule=rule,
        got=None if column is None else f"{{p.{column}}}",
        pins=tuple(pins.split()),
        until=until,
        unsaid=True,
        source=source,
        example=example,
    )
    for name, lacking, rule, until, column, pins, source, example in (
        ("flex dispatcher", lambda f, p: p.moe_dispatcher == "flex", "DeepEP and HybridEP need core_v0.12 or later",
         "core_v0.11.0", "moe_dispatcher", "dispatcher=alltoall", _OPTIONS + "--moe-token-dispatcher-type", DEEPEP),
        ("hybridep", lambda f, p: p.moe_flex_backend == "hybridep", "HybridEP needs core_v0.16 or later",
         "core_v0.15.0", "moe_flex_backend", "dispatcher=alltoall dispatcher=deepep",
         _OPTIONS + "--moe-flex-dispatcher-backend", HYBRIDEP),
        ("graphs", lambda f, p: no(p.cuda_graphs == "none"),
         "Transformer Engine's CUDA graphs need core_v0.12 or later", "core_v0.11.0", "cuda_graphs", "cuda_graphs=none",
         "megatron/core/transformer/transformer_config.py, external_cuda_graph, which no option of it sets",
         {"cuda_graphs": "all"}),
        ("graphed modules", lambda f, p: among(p.cuda_graphs, OF_EXPERTS),
         "CUDA graphs of named modules need core_v0.16 or later", "core_v0.15.0", "cuda_graphs",
         "cuda_graphs=none cuda_graphs=all", _OPTIONS + "--cuda-graph-scope",
         {"num_experts": 8, "cuda_graphs": "router"}),
        ("full iteration", lambda f, p: p.cuda_graphs == "full iteration",
         "a CUDA graph of the whole iteration needs core_v0.15 or later", "core_v0.14.0", "cuda_graphs",
         "cuda_graphs=none cuda_graphs=all", _OPTIONS + "--cuda-graph-impl", {"cuda_graphs": "full iteration"}),
        ("expert capacity", lambda f, p: p.expert_capacity > 0, "expert capacity per rank needs core_v0.18 or later",
         "core_v0.17.1", "expert_capacity", "expert_capacity=none", _OPTIONS + "--moe-expert-rank-capacity-factor",
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
         "core_v0.11.0", None, "fused_loss=off", _OPTIONS + "--cross-entropy-fusion-impl", {"fused_loss": True}),
        ("weight shards", lambda f, p: p.gtp > 1, "weight shards need core_v0.19 or later", "core_v0.18.2", "gtp",
         "gtp=1", _OPTIONS + "--tensor-parallel-num-weight-shards", {"gtp": 2, "dp": 8}),
        ("bf16 gradients", lambda f, p: (p.grad_bytes == 2) & no(p.precision == "fp16"),
         "gradients are reduced in bf16 from core_v0.12 on", "core_v0.11.0", "grad_bytes",
         "grad_dtype=fp32 precision=fp16", _OPTIONS + "--grad-reduce-in-bf16",
         {"grad_bytes": 2, "precision": "bf16"}),
    )
)  # fmt: skip

OPTION_CONSTRAINTS = (*of_module(globals()), *OLD_RELEASES)
