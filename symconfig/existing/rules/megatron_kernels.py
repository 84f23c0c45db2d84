"""Kernels, CUDA graphs and layers that Megatron-LM does not build together."""

from __future__ import annotations

from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron_grid import CP, PP
from symconfig.existing.rules.refusal import Reason, absent, equal, on, other_than, present, refuses, together
from symconfig.existing.rules.rule import Rules

BACKEND, ENGINE, POSITIONS = "attention_backend", "transformer_impl", "position_embedding_type"
GRAPHS = "cuda_graph_impl"
OLD_GRAPHS = ("enable_cuda_graph", "external_cuda_graph")
OFFLOADED = "cpu_offloading_num_layers"
EXPERT_OVERLAP = "overlap_moe_expert_parallel_comm"

MEGATRON: Rules[MegatronFacts] = Rules()


def _not_local(facts: MegatronFacts) -> bool:
    """Tell whether --spec names another than local: the first of one or two words."""
    spec = facts.value("spec")
    return not isinstance(spec, tuple) or spec[:1] != ("local",)


MEGATRON.rule(
    "local-attention-of-other-layers",
    "error",
    "--attention-backend local is for local layers",
    "validate_args asserts --spec local beside it.",
    "--attention-backend local --seq-length 1024 --max-position-embeddings 1024",
)(refuses(BACKEND, Reason("spec", _not_local, "local"), where=equal(BACKEND, "local")))

MEGATRON.rule(
    "batch-invariance-refused",
    "error",
    "Batch-invariant kernels do not go with this",
    "TransformerConfig asserts flash attention, from core_v0.19 on of a version that is named, and no context "
    "parallelism or dropout of attention (transformer_config.py, __post_init__).",
    "--batch-invariant-mode --attention-dropout 0",
    since="core_v0.16.1",
)(
    refuses(
        "batch_invariant_mode",
        Reason(BACKEND, other_than(BACKEND, "flash"), "flash"),
        Reason(
            "flash_attention_version",
            lambda facts: facts.text("flash_attention_version") not in ("3", "4"),
            "3 or 4",
            since="core_v0.19.0",
        ),
        Reason(CP, lambda facts: facts.cp > 1, "1", since="core_v0.19.0"),
        Reason("attention_dropout", present("attention_dropout"), "0", since="core_v0.19.0"),
    )
)

MEGATRON.rule(
    "delayed-weight-gradients-refused",
    "error",
    "Gradients of weights are delayed behind the experts' exchange only",
    "TransformerConfig asserts --overlap-moe-expert-parallel-comm beside --delay-wgrad-compute, and validate_args "
    "Transformer Engine's layers.",
    "--delay-wgrad-compute",
    since="core_v0.14.0",
)(
    refuses(
        "delay_wgrad_compute",
        Reason(EXPERT_OVERLAP, absent(EXPERT_OVERLAP)),
        Reason(ENGINE, other_than(ENGINE, "transformer_engine"), "transformer_engine"),
    )
)

MEGATRON.rule(
    "offloaded-activations-of-local-layers",
    "error",
    "Activations are offloaded by Transformer Engine's layers only",
    "validate_args asserts --transformer-impl transformer_engine beside --fine-grained-activation-offloading.",
    "--fine-grained-activation-offloading --offload-modules core_attn --transformer-impl local --use-flash-attn",
    since="core_v0.16.1",
    environment={"NVTE_CPU_OFFLOAD_V1": "1"},
)(
    refuses(
        "fine_grained_activation_offloading",
        Reason(ENGINE, other_than(ENGINE, "transformer_engine"), "transformer_engine"),
    )
)


def _checked(facts: MegatronFacts) -> bool:
    """Tell whether the loss is looked at for NaNs. Dynamic loss scaling of fp16 switches it off."""
    scaled = facts.on("fp16") and not facts.value("loss_scale")
    return facts.on("check_for_nan_in_loss_and_grad") and not scaled


MEGATRON.rule(
    "whole-graph-refused",
    "error",
    "A CUDA graph of the whole iteration does not go with this",
    "validate_args asserts --no-check-for-nan-in-loss-and-grad, since the host would look into the graph, and no "
    "--cuda-graph-modules.",
    "--cuda-graph-impl full_iteration",
    since="core_v0.18.2",
)(
    refuses(
        GRAPHS,
        Reason("check_for_nan_in_loss_and_grad", _checked, "it", value=False),
        Reason("cuda_graph_modules", present("cuda_graph_modules"), "none"),
        where=equal(GRAPHS, "full_iteration"),
    )
)

MEGATRON.rule(
    "graphs-said-twice",
    "error",
    "CUDA graphs are said in an old and in a new way",
    "validate_args takes one of --cuda-graph-impl, --enable-cuda-graph and --external-cuda-graph, and one of "
    "--cuda-graph-modules and --cuda-graph-scope.",
    "--enable-cuda-graph --cuda-graph-impl local",
    since="core_v0.15.0",
)(
    together(
        *(refuses(old, Reason(GRAPHS, other_than(GRAPHS, None, "none"), "none")) for old in OLD_GRAPHS),
        refuses(OLD_GRAPHS[0], Reason(OLD_GRAPHS[1], on(OLD_GRAPHS[1]))),
        refuses("cuda_graph_scope_deprecated", Reason("cuda_graph_modules", present("cuda_graph_modules"))),
    )
)


MEGATRON.rule(
    "activations-on-host-refused",
    "error",
    "Activations of whole layers cannot be kept on the host here",
    "TransformerConfig: --cpu-offloading-num-layers is less than the layers, and goes with one pipeline stage and "
    "without recompute.",
    "--cpu-offloading-num-layers 4 --recompute-granularity selective",
)(
    refuses(
        OFFLOADED,
        Reason(PP, lambda facts: facts.pp > 1, "1"),
        Reason(
            OFFLOADED,
            lambda facts: not 0 <= facts.number(OFFLOADED) < facts.number("num_layers"),
            "less than the layers",
        ),
        Reason("recompute_granularity", present("recompute_granularity"), "none"),
        Reason("recompute_activations", on("recompute_activations")),
    )
)

MEGATRON.rule(
    "deferred-gradient-of-embedding",
    "error",
    "The embedding's gradient is deferred behind a pipeline only",
    "ModelParallelConfig asks for pp above 1 and the fused accumulation of gradients beside "
    "--defer-embedding-wgrad-compute.",
    "--defer-embedding-wgrad-compute",
)(
    refuses(
        "defer_embedding_wgrad_compute",
        Reason(PP, lambda facts: facts.pp == 1, "2 or more"),
        Reason("gradient_accumulation_fusion", absent("gradient_accumulation_fusion"), "it"),
    )
)

MEGATRON.rule(
    "position-embedding-refused",
    "error",
    "A position embedding that Megatron-LM does not build",
    "validate_args: --no-position-embedding is an old word for rotary embeddings only, mrope asks for its sections, "
    "and local layers have no relative positions.",
    "--no-position-embedding",
)(
    together(
        refuses(
            "add_position_embedding",
            Reason(
                POSITIONS,
                lambda facts: facts.value(POSITIONS) != "rope" and not facts.on("use_rotary_position_embeddings"),
                "rope",
            ),
            where=absent("add_position_embedding"),
        ),
        refuses(POSITIONS, Reason("mrope_section", absent("mrope_section")), where=equal(POSITIONS, "mrope")),
        refuses(
            POSITIONS,
            Reason(ENGINE, other_than(ENGINE, "transformer_engine"), "transformer_engine"),
            where=equal(POSITIONS, "relative"),
        ),
    )
)

MEGATRON.rule(
    "latent-options-refused",
    "error",
    "An option of latent layers in a model without them",
    "validate_args: --mla-down-proj-fusion asks for --multi-latent-attention, and --moe-latent-size for experts.",
    "--mla-down-proj-fusion",
    since="core_v0.16.1",
)(
    together(
        refuses("mla_down_proj_fusion", Reason("multi_latent_attention", absent("multi_latent_attention"))),
        refuses("moe_latent_size", Reason("num_experts", lambda facts: not facts.experts, "a number of experts")),
    )
)

MEGATRON.rule(
    "clipped-queries-refused",
    "error",
    "Clipping of queries and keys out of its range",
    "validate_args asserts --qk-clip-alpha between 0 and 1, and --qk-clip-threshold above 0.",
    "--qk-clip --qk-clip-alpha 1.5",
    since="core_v0.16.1",
)(
    refuses(
        "qk_clip",
        Reason("qk_clip_alpha", lambda facts: not 0 < facts.real("qk_clip_alpha") < 1, "between 0 and 1"),
        Reason("qk_clip_threshold", lambda facts: facts.real("qk_clip_threshold") <= 0, "above 0"),
    )
)

MEGATRON.rule(
    "inference-threshold-without-pipeline",
    "error",
    "Inference is to be split into microbatches without a pipeline",
    "validate_args asserts pp above 1 for --inference-batch-times-seqlen-threshold.",
    "--inference-batch-times-seqlen-threshold 512",
)(
    refuses(
        "inference_batch_times_seqlen_threshold",
        Reason(PP, lambda facts: facts.pp == 1, "2 or more"),
        where=lambda facts: facts.number("inference_batch_times_seqlen_threshold") > -1,
    )
)
