"""What is known of Megatron-LM's options, by release."""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.backend import Maturity, Need, Option
from symconfig.plans.configuration_set import among, no

RECIPES = "model_zoo/recipes, pretraining rows"
# Counted over 992 distinct layouts for pretraining: model, cluster, sequence, degrees, sharding, recompute and offload.
MOST_STAGES, MOST_CHUNKS, MOST_EXPERT_RANKS, LEAST_SHARE = 16, 12, 64, 4096
MOST_NVLINK_PEERS = 8  # that DeepEP knows (csrc/kernels/legacy/compiled.cuh)
ROCM = frozenset(("cdna3", "cdna4"))
WIDEST_DENSE = 16384  # hidden size of the widest model that recipes run on fewer stages: Llama 3 405B


_unusual = partial(Option, maturity=Maturity.UNUSUAL, source=RECIPES)
_young, _defect = (partial(Option, maturity=each) for each in (Maturity.YOUNG, Maturity.DEFECT))


def _engine(why: str) -> Need:
    hint = "pip install transformer-engine[pytorch], or a container of NVIDIA's PyTorch"
    return Need(why=why, hint=hint, module="transformer_engine")


ACTIVATION_OFFLOAD = _defect(
    name="activation_offload",
    label="offloaded activations",
    uses=lambda f, p: p.activation_offload,
    about="activation_offload",
    example={"activation_offload": True},
    why="a chunk can be called finished early, most of all with one layer in it, and a reload can run before "
    "its copy is done: gradients are wrong without a word; the first is mended on the branch dev only",
    source="github.com/NVIDIA/Megatron-LM/pull/6783 (2026-08-23, into dev) and issues/7398 (open)",
    since="core_v0.16.1",
)
OPTIMIZER_OFFLOAD = _unusual(
    name="optimizer_offload",
    label="an offloaded optimizer",
    uses=lambda f, p: p.optimizer_offload > 0,
    about="optimizer_offload",
    example={"optimizer_offload": 0.5, "zero_stage": 1},
    why="6 of 291 layouts have it, all of DeepSeek-V3 on H100",
)
# From core_v0.13.0 on, weights that are loaded are copied to the host, too, where the optimizer keeps none of its own
# on the GPU: with --use-precision-aware-optimizer, which Megatron-LM's parser asks for. In a program that runs without
# it they are not (github.com/NVIDIA/Megatron-LM/pull/5071, open; Megatron-Bridge/pull/4082, in 0.6.0, does it itself).
STALE_OFFLOAD = _defect(
    name="stale_offload",
    label="an offloaded optimizer that does not see which weights are loaded",
    uses=lambda f, p: (p.optimizer_offload > 0) & f.pretrained,
    about="optimizer_offload",
    example={"optimizer_offload": 0.5, "zero_stage": 1, "pretrained": True},
    why="after loading weights without their optimizer state, the first step writes those from before back",
    source="core/optimizer/distrib_optimizer.py, _copy_model_params_to_main_params; mended in core_v0.13.0",
    until="core_v0.12.1",
)
MEGATRON_FSDP = _unusual(
    name="megatron_fsdp",
    label="Megatron-FSDP",
    uses=lambda f, p: p.zero_stage >= 2,
    about="zero",
    example={"zero_stage": 2},
    why="one of NVIDIA's tuned rows on Hopper has ZeRO 3, 57 on Blackwell and later, none anywhere ZeRO 2",
)
EXPERT_TENSOR = _unusual(
    name="expert_tensor",
    label="tensor parallelism inside experts",
    uses=lambda f, p: p.etp > 1,
    about="etp",
    example={"num_experts": 8, "tp": 2, "etp": 2, "sequence_parallel": True},
    why="6 of 992 layouts have it, all of Llama 4",
)
LONG_PIPELINE = _unusual(
    name="long_pipeline",
    label=f"a pipeline of more than {MOST_STAGES} stages",
    uses=lambda f, p: (p.pp > MOST_STAGES) & (f.hidden_size <= WIDEST_DENSE),
    about="pp",
    example={"pp": 2 * MOST_STAGES, "hidden_size": 5120},
    why="7 of 992 layouts have one, all of dense models above 500 billion parameters",
)
MANY_CHUNKS = _unusual(
    name="many_chunks",
    label=f"more than {MOST_CHUNKS} chunks a stage",
    uses=lambda f, p: p.vpp > MOST_CHUNKS,
    about="vpp",
    example={"pp": 2, "vpp": 2 * MOST_CHUNKS},
    why="14 of 992 layouts have them, and none more than 24",
)
WIDE_EXPERTS = _unusual(
    name="wide_experts",
    label=f"experts over more than {MOST_EXPERT_RANKS} ranks",
    uses=lambda f, p: p.ep > MOST_EXPERT_RANKS,
    about="ep",
    example={"num_experts": 256, "ep": 2 * MOST_EXPERT_RANKS},
    why="6 of 992 layouts have them, four of Llama 4",
)
TENSOR_OVER_NODES = _unusual(
    name="tensor_over_nodes",
    label="tensor parallelism beyond the GPUs that the fastest links join",
    uses=lambda f, p: p.tp > f.joined,
    about="tp",
    example={"joined": 4, "tp": 8},
    why="3 of 992 layouts have it, all from 65,536 tokens",
)
SHORT_SHARES = _unusual(
    name="short_shares",
    label=f"context parallelism with less than {LEAST_SHARE:,} tokens a rank",
    uses=lambda f, p: (p.cp > 1) & (p.seq_length < LEAST_SHARE * p.cp),
    about="cp",
    example={"cp": 4, "seq_length": 2 * LEAST_SHARE},
    why="12 of 992 layouts have it, and 114 context parallelism",
)

USER_BUFFERS = Option(
    name="user_buffers",
    label="tensor-parallel communication through user buffers",
    uses=lambda f, p: p.overlap_tp_comm,
    about="tp_comm",
    example={"tp": 2, "sequence_parallel": True, "overlap_tp_comm": True},
    needs=(_engine("Transformer Engine holds the user buffers"),),
)
USER_BUFFERS_WITHOUT_MULTICAST = _unusual(
    name="user_buffers_without_multicast",
    label="user buffers on GPUs without multicast",
    uses=lambda f, p: p.overlap_tp_comm & (f.architecture == "ampere"),
    about="tp_comm",
    example={**USER_BUFFERS.example, "architecture": "ampere"},
    why="Transformer Engine stops, unless it is told to do without multicast, and calls that an attempt",
    source="transformer_engine/pytorch/module/base.py, initialize_ub",
    needs=(
        Need(
            why="GPUs before Hopper have no multicast, and the buffers are then shared by CUDA's handles",
            hint="set it in the environment of every rank",
            environment={"UB_SKIPMC": "1"},
        ),
    ),
)
DEEPEP = Option(
    name="deepep",
    label="DeepEP's kernels for the experts' tokens",
    uses=lambda f, p: p.moe_flex_backend == "deepep",
    about="flex_backend",
    example={"num_experts": 8, "ep": 8, "moe_dispatcher": "flex", "moe_flex_backend": "deepep"},
    needs=(
        Need(
            why="DeepEP's kernels carry the tokens",
            hint="github.com/deepseek-ai/DeepEP, with NVSHMEM where experts are on several nodes",
            module="deep_ep",
        ),
    ),
)
DEEPEP_ON_ROCM = _unusual(
    name="deepep_on_rocm",
    label="DeepEP's kernels on AMD's GPUs",
    uses=lambda f, p: (p.moe_flex_backend == "deepep") & among(f.architecture, ROCM),
    about="flex_backend",
    example={**DEEPEP.example, "architecture": "cdna3"},
    why="DeepEP's own kernels are for NVIDIA's GPUs; AMD has a build of its own, which Primus alone uses",
    source="github.com/deepseek-ai/DeepEP, README.md; model_zoo/recipes, of AMD",
)
DEEPEP_OVER_RACKS = _unusual(
    name="deepep_over_racks",
    label="DeepEP's kernels where NVLink joins whole racks",
    uses=lambda f, p: (p.moe_flex_backend == "deepep") & (f.joined > MOST_NVLINK_PEERS),
    about="flex_backend",
    example={**DEEPEP.example, "joined": 72},
    why="Megatron-Bridge refuses it on GB200 and GB300; there one published layout has it and 47 HybridEP",
    source="megatron-bridge, training/flex_dispatcher_backend.py; model_zoo/recipes",
)
HYBRIDEP = _young(
    name="hybridep",
    label="HybridEP's kernels for the experts' tokens",
    uses=lambda f, p: p.moe_flex_backend == "hybridep",
    about="flex_backend",
    example={"num_experts": 8, "ep": 8, "moe_dispatcher": "flex", "moe_flex_backend": "hybridep"},
    why="its first releases in Megatron-LM, and a rank without tokens needed a later DeepEP",
    source="github.com/NVIDIA-NeMo/Megatron-Bridge/issues/3801, of containers up to NeMo 26.04",
    since="core_v0.16.1",
    until="core_v0.17.1",
    needs=(
        Need(
            why="HybridEP's kernels carry the tokens",
            hint="branch hybrid-ep of github.com/deepseek-ai/DeepEP",
            module="deep_ep",
            attribute="HybridEPBuffer",  # megatron/core/transformer/moe/fused_a2a.py
        ),
    ),
)
HYBRIDEP_OVER_NODES = _defect(
    name="hybridep_over_nodes",
    label="HybridEP's kernels beyond the GPUs that NVLink joins",
    uses=lambda f, p: (p.moe_flex_backend == "hybridep") & (p.ep * p.etp > f.joined) & (f.joined <= MOST_NVLINK_PEERS),
    about="flex_backend",
    example={**HYBRIDEP.example, "ep": 64, "etp": 1, "joined": 8},
    why="between nodes of 8 GPUs its kernels were seen to fail, and to use a part of the network only",
    source="github.com/deepseek-ai/DeepEP/issues/590 (open)",
    since="core_v0.16.1",
)
MOE_OVERLAP = _young(
    name="moe_overlap",
    label="the experts' all-to-all beside another microbatch",
    uses=lambda f, p: p.overlap_moe_a2a,
    about="moe_overlap",
    example={"num_experts": 8, "ep": 8, "pp": 2, "vpp": 2, "overlap_moe_a2a": True},
    why="a run that trains without it crashed with it, and the report is open",
    source="github.com/NVIDIA/Megatron-LM/issues/1862, of core_v0.15.0rc5 and rc7",
    since="core_v0.14.0",
    until="core_v0.15.0",
    needs=(
        Need(
            why="with one connection to the GPU nothing runs beside anything",
            hint="32 in NVIDIA's recipes; validate_args warns of 1",
            environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"},
        ),
    ),
)
CUDA_GRAPHS = _young(
    name="cuda_graphs",
    label="CUDA graphs",
    uses=lambda f, p: no(p.cuda_graphs == "none"),
    about="cuda_graphs",
    example={"cuda_graphs": "all"},
    why="balancing losses were reported to differ under graphs, and graphs of attention in MoE layers to fail",
    source="github.com/NVIDIA/Megatron-LM/issues/1494 (open) and 1566; --cuda-graph-impl since core_v0.15.0",
    until="core_v0.14.0",
    needs=(
        _engine("Transformer Engine captures the graphs and keeps their random numbers"),
        Need(
            why="NCCL may not register what a graph holds where the allocator's segments expand (cuda_graphs.py)",
            hint="set it, or leave expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF",
            environment={"NCCL_GRAPH_REGISTER": "0"},
        ),
    ),
)
FULL_ITERATION = _unusual(
    name="full_iteration",
    label="a CUDA graph of the whole iteration",
    uses=lambda f, p: p.cuda_graphs == "full iteration",
    about="cuda_graphs",
    example={"cuda_graphs": "full iteration"},
    why="it runs without the check for NaN in loss and gradients, which Megatron-LM refuses beside it",
    asked=True,
)
EXPERT_CAPACITY = _unusual(
    name="expert_capacity",
    label="expert capacity per rank",
    uses=lambda f, p: p.expert_capacity > 0,
    about="expert_capacity",
    example={**HYBRIDEP.example, "expert_capacity": 1.5},
    why="HybridEP drops tokens above the capacity; Megatron-LM's training loop then repeats the step without one, "
    "which is not priced, and another training loop may not",
    needs=(_engine("Transformer Engine 2.14 or later has the experts' kernels for fixed buffers"),),
    asked=True,
)
PAGED_STASH = _unusual(
    name="paged_stash",
    label="a paged stash",
    uses=lambda f, p: p.paged_stash,
    about="paged_stash",
    example={**EXPERT_CAPACITY.example, "paged_stash": True},
    why="copies into the pages and back are not priced",
    asked=True,
)
FP8_ATTENTION = Option(
    name="fp8_attention",
    label="attention in fp8",
    uses=lambda f, p: p.fp8_attention,
    about="fp8_attention",
    example={"precision": "fp8", "fp8_attention": True},
    maturity=Maturity.CHANGES_NUMBERS,
    why="queries, keys, values and probabilities have 8 bits; its kernels are priced as fast as those in 16",
    source="megatron-bridge, training/mixed_precision.py, fp8_dot_product_attention",
    needs=(_engine("the kernels are cuDNN's, by way of Transformer Engine"),),
    asked=True,
)
GRAPHED_OVERLAP = _defect(
    name="graphed_overlap",
    label="CUDA graphs with the experts' all-to-all beside another microbatch",
    uses=lambda f, p: no(p.cuda_graphs == "none") & p.overlap_moe_a2a,
    about="cuda_graphs",
    example={**MOE_OVERLAP.example, "cuda_graphs": "outside experts"},
    why="graphs of attention ended in NaN after 90 steps of Qwen3-235B, and the report is open",
    source="github.com/NVIDIA/Megatron-LM/issues/5966, of core_v0.19",
    since="core_v0.19.0",
)
BF16_GRADIENTS = Option(
    name="bf16_gradients",
    label="gradients added up and reduced in bf16",
    uses=lambda f, p: (p.grad_bytes == 2) & no(p.precision == "fp16"),
    about="grad_dtype",
    example={"grad_bytes": 2, "precision": "bf16"},
    maturity=Maturity.CHANGES_NUMBERS,
    why="microbatches and ranks are added with 8 bits of mantissa, so that small gradients are lost beside "
    "large sums; nearly all speed recipes have it, few of those that train",
    source="validate_args: --grad-reduce-in-bf16 unsets --accumulate-allreduce-grads-in-fp32",
)
FP8_PARAM_GATHER = Option(
    name="fp8_param_gather",
    label="weights gathered in 8 bits",
    uses=lambda f, p: p.fp8_param_gather,
    about="fp8_param_gather",
    example={"precision": "fp8", "zero_stage": 1, "fp8_param_gather": True},
    needs=(_engine("Transformer Engine holds weights in 8 bits"),),
)
MXFP8_PARAM_GATHER = _defect(
    name="mxfp8_param_gather",
    label="weights gathered in mxfp8",
    uses=lambda f, p: p.fp8_param_gather & (p.precision == "mxfp8"),
    about="fp8_param_gather",
    example={"precision": "mxfp8", "zero_stage": 1, "fp8_param_gather": True},
    why="without overlapped communication the loss became NaN, and an evaluation left weights unquantised",
    source="github.com/NVIDIA/Megatron-LM/issues/2272; mended by pull requests 4800 and 4562, in core_v0.18.0",
    until="core_v0.17.1",
)
WEIGHT_SHARDS = _young(
    name="gtp",
    label="weight shards (GTP)",
    uses=lambda f, p: p.gtp > 1,
    about="gtp",
    example={"gtp": 2, "dp": 8},
    why="Megatron-LM calls them so: interface and behaviour may change without notice; they need Transformer "
    "Engine 2.19 or later",
    source="docs/api-guide/core/generalized_tensor_parallel.md",
    since="core_v0.19.0",
    asked=True,
)
FUSED_LOSS = _defect(
    name="fused_loss",
    label="Transformer Engine's fused loss",
    uses=lambda f, p: p.fused_loss,
    about="fused_loss",
    example={"fused_loss": True},
    why="training was seen to diverge with it: fp32 gradients were stored in 16 bits, and since core_v0.18.2 "
    "Megatron-LM's own parser refuses it",
    source="github.com/NVIDIA/Megatron-LM/pull/5115 and issues/1627, 1750; TransformerEngine/pull/3193",
    needs=(_engine("the kernel is Transformer Engine's"),),
)

OPTIONS = tuple(one for one in list(globals().values()) if isinstance(one, Option))
