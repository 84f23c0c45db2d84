"""What is known of Megatron-LM's options, by release."""

from __future__ import annotations

from symconfig.frameworks.maturity import Maturity, Option, Standing

RECIPES = "model_zoo/recipes, pretraining rows"
MOST_STAGES, MOST_CHUNKS, MOST_EXPERT_RANKS, LEAST_SHARE = 16, 12, 64, 4096


def _unusual(why: str) -> tuple[Standing, ...]:
    return (Standing(maturity=Maturity.UNUSUAL, why=why, source=RECIPES),)


ACTIVATION_OFFLOAD = Option(
    name="activation_offload",
    label="offloaded activations",
    uses=lambda f, p: p.activation_offload,
    about="activation_offload",
    example={"activation_offload": True},
    standings=(
        Standing(
            maturity=Maturity.DEFECT,
            why="with one layer per chunk it returns early",
            source="megatron/core/pipeline_parallel/fine_grained_activation_offload.py",
        ),
    ),
)
OPTIMIZER_OFFLOAD = Option(
    name="optimizer_offload",
    label="an offloaded optimizer",
    uses=lambda f, p: p.optimizer_offload > 0,
    about="optimizer_offload",
    example={"optimizer_offload": 0.5, "zero": 1},
    standings=(
        Standing(
            maturity=Maturity.DEFECT,
            why="weights can be stale after loading a checkpoint",
            source="megatron/core/optimizer/cpu_offloading",
        ),
    ),
)
EMPTY_CHUNKS = Option(
    name="empty_chunks",
    label="pipeline chunks without a layer",
    uses=lambda f, p: p.empty_chunks,
    about="pipeline_layout",
    example={"empty_chunks": True},
    standings=(
        Standing(
            maturity=Maturity.YOUNG,
            why="its documentation calls them experimental",
            source="docs/user-guide/features/pipeline_parallel_layout.md",
        ),
    ),
)
MEGATRON_FSDP = Option(
    name="megatron_fsdp",
    label="Megatron-FSDP",
    uses=lambda f, p: p.zero >= 2,
    about="zero_stage",
    example={"zero": 2},
    standings=_unusual("no tuned recipe on Hopper has it, and none anywhere has ZeRO 2"),
)
EXPERT_TENSOR = Option(
    name="expert_tensor",
    label="tensor parallelism inside experts",
    uses=lambda f, p: p.etp > 1,
    about="etp",
    example={"num_experts": 8, "tp": 2, "etp": 2, "sequence_parallel": True},
    standings=_unusual("recipes of one model have it"),
)
LONG_PIPELINE = Option(
    name="long_pipeline",
    label=f"a pipeline of more than {MOST_STAGES} stages",
    uses=lambda f, p: p.pp > MOST_STAGES,
    about="pp",
    example={"pp": 2 * MOST_STAGES},
    standings=_unusual("only dense models above 500 billion parameters have had one"),
)
MANY_CHUNKS = Option(
    name="many_chunks",
    label=f"more than {MOST_CHUNKS} chunks a stage",
    uses=lambda f, p: p.vpp > MOST_CHUNKS,
    about="vpp",
    example={"pp": 2, "vpp": 2 * MOST_CHUNKS},
    standings=_unusual("hardly any recipe has them"),
)
WIDE_EXPERTS = Option(
    name="wide_experts",
    label=f"experts over more than {MOST_EXPERT_RANKS} ranks",
    uses=lambda f, p: p.ep > MOST_EXPERT_RANKS,
    about="ep",
    example={"num_experts": 256, "ep": 2 * MOST_EXPERT_RANKS},
    standings=_unusual("one recipe in a hundred has them"),
)
TENSOR_OVER_NODES = Option(
    name="tensor_over_nodes",
    label="tensor parallelism beyond the GPUs that the fastest links join",
    uses=lambda f, p: p.tp > f.near,
    about="tp",
    example={"near": 4, "tp": 8},
    standings=_unusual("no recipe below 64,000 tokens has it"),
)
SHORT_SHARES = Option(
    name="short_shares",
    label=f"context parallelism with less than {LEAST_SHARE:,} tokens a rank",
    uses=lambda f, p: (p.cp > 1) & (p.seq_length < LEAST_SHARE * p.cp),
    about="cp",
    example={"cp": 4, "seq_length": 2 * LEAST_SHARE},
    standings=_unusual("one recipe in a hundred up to 4,096 tokens has it, and none more than 2 ranks at 8,192"),
)

OPTIONS: tuple[Option, ...] = (
    ACTIVATION_OFFLOAD,
    OPTIMIZER_OFFLOAD,
    EMPTY_CHUNKS,
    MEGATRON_FSDP,
    EXPERT_TENSOR,
    LONG_PIPELINE,
    MANY_CHUNKS,
    WIDE_EXPERTS,
    TENSOR_OVER_NODES,
    SHORT_SHARES,
)
