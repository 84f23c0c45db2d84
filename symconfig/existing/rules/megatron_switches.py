"""Switches that contradict, need or cancel each other."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron_grid import CP, EP, PP, TP
from symconfig.existing.rules.rule import Rules

GATHER, REDUCE, ZERO = "overlap_param_gather", "overlap_grad_reduce", "use_distributed_optimizer"
SEQUENCE, TP_OVERLAP = "sequence_parallel", "tp_comm_overlap"
TORCH_FSDP = "use_torch_fsdp2"

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "two-precisions", "error", "Both --bf16 and --fp16", "validate_args asserts one of them.", "--bf16 --fp16"
)
def _precisions(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("bf16") and facts.on("fp16"):
        yield facts.problem("stands beside --bf16", "fp16", "bf16", need="one of them")


@MEGATRON.rule(
    "gradient-precision-said-twice",
    "warning",
    "Gradients are to be reduced in fp32 and in bf16",
    "validate_args: --grad-reduce-in-bf16 wins over --accumulate-allreduce-grads-in-fp32.",
    "--accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16",
    since="core_v0.12.1",
)
def _gradients(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("accumulate_allreduce_grads_in_fp32") and facts.on("grad_reduce_in_bf16"):
        yield facts.problem("wins over --accumulate-allreduce-grads-in-fp32", "grad_reduce_in_bf16", need="one of them")


@MEGATRON.rule(
    "fp8-and-fp4",
    "error",
    "Both FP8 and FP4",
    "validate_args raises: one quantised format at a time.",
    "--fp8-format hybrid --fp4-format e2m1",
    since="core_v0.15.0",
    architecture="blackwell",
)
def _formats(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.value("fp8") is not None and facts.value("fp4") is not None:
        yield facts.problem("stands beside --fp8-format", "fp4", "fp8", need="one of them")


@MEGATRON.rule(
    "quantised-without-half",
    "warning",
    "FP8 or FP4 without --bf16",
    "Nothing refuses it, and weights, gradients and what is not quantised are fp32: Megatron-LM's recipes all stand on "
    "--bf16.",
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather --fp8-format hybrid",
)
def _quantised(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.low_precision and not facts.on("bf16") and not facts.on("fp16"):
        yield facts.problem("is missing beside the quantised format", "bf16", "fp8", "fp4", need="it")


@MEGATRON.rule(
    "gather-overlap-without-sharding",
    "error",
    "--overlap-param-gather without the distributed optimizer",
    "validate_args asserts it: without it no weights are gathered.",
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --overlap-grad-reduce --overlap-param-gather",
)
def _gather(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(GATHER) and not (facts.on(ZERO) or facts.fsdp or facts.value("optimizer") == "dist_muon"):
        yield facts.problem("there are no weights to gather", GATHER, need="--use-distributed-optimizer")


@MEGATRON.rule(
    "gather-overlap-without-reduce-overlap",
    "error",
    "--overlap-param-gather without --overlap-grad-reduce",
    "validate_args asserts both.",
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer --overlap-param-gather",
)
def _reduce(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(GATHER) and not facts.on(REDUCE) and not facts.fsdp:
        yield facts.problem("must stand beside --overlap-param-gather", REDUCE, GATHER, got="absent", need="it")


@MEGATRON.rule(
    "sequence-parallel-without-tp",
    "note",
    "--sequence-parallel without tensor parallelism",
    "validate_args switches it off at tp 1.",
    "--sequence-parallel",
)
def _sequence(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.tp == 1 and facts.on(SEQUENCE):
        yield facts.problem("does nothing at tp 1", SEQUENCE, TP, need="tp above 1")


@MEGATRON.rule(
    "fsdp-checkpoint-format",
    "error",
    "Megatron-FSDP and the checkpoint format do not go together",
    "validate_args: --use-megatron-fsdp asks for --ckpt-format fsdp_dtensor, and that for it.",
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion "
    "--ckpt-format torch_dist",
    since="core_v0.14.0",
)
def _fsdp_format(facts: MegatronFacts) -> Iterator[Problem]:
    kept = facts.value("ckpt_format") == "fsdp_dtensor"
    if kept != facts.on("use_megatron_fsdp"):
        need = "no fsdp_dtensor, or --use-megatron-fsdp" if kept else "fsdp_dtensor"
        yield facts.problem(
            "does not go with the sharding",
            "ckpt_format",
            "use_megatron_fsdp",
            got=facts.text("ckpt_format"),
            need=need,
        )


@MEGATRON.rule(
    "fsdp-shards-nothing",
    "warning",
    "FSDP with the strategy no_shard shards nothing",
    "It has FSDP's costs without its memory. Up to core_v0.17 no_shard is the default "
    "(distributed_data_parallel_config.py).",
    "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy no_shard",
    since="core_v0.12.1",
)
def _fsdp_strategy(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.fsdp and facts.value("data_parallel_sharding_strategy") == "no_shard":
        yield facts.problem(
            "is no_shard: nothing is sharded",
            "data_parallel_sharding_strategy",
            "use_megatron_fsdp",
            "use_custom_fsdp",
            need="optim_grads_params, optim_grads or optim",
        )


@MEGATRON.rule(
    "torch-fsdp-refused",
    "error",
    "PyTorch's FSDP does not go with this",
    "validate_args asserts all of it for --use-torch-fsdp2.",
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-torch-fsdp2 --pipeline-model-parallel-size 2 "
    "--no-gradient-accumulation-fusion --untie-embeddings-and-output-weights --ckpt-format torch_dist",
)
def _torch_fsdp(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.on(TORCH_FSDP):
        return
    for wrong, dest, need in (
        (facts.pp > 1, PP, "1"),
        (facts.ep > 1, EP, "1"),
        (facts.on(ZERO), ZERO, "no --use-distributed-optimizer"),
        (facts.on("gradient_accumulation_fusion"), "gradient_accumulation_fusion", "--no-gradient-accumulation-fusion"),
        (not facts.on("untie_embeddings_and_output_weights"), "untie_embeddings_and_output_weights", "it"),
        (facts.on("fp16"), "fp16", "--bf16"),
        (facts.value("ckpt_format") not in ("torch_dist", "torch_dcp"), "ckpt_format", "torch_dist or torch_dcp"),
    ):
        if wrong:
            yield facts.problem(
                "does not go with PyTorch's FSDP",
                dest,
                TORCH_FSDP,
                need=need,
                value=dest != "gradient_accumulation_fusion",
            )


@MEGATRON.rule(
    "offloaded-optimizer-alone",
    "error",
    "The optimizer is offloaded without its precision-aware kind",
    "validate_args: --optimizer-cpu-offload asks for --use-precision-aware-optimizer.",
    "--optimizer-cpu-offload --optimizer-offload-fraction 1.0",
    since="core_v0.12.1",
)
def _offload(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("optimizer_cpu_offload") and not facts.on("use_precision_aware_optimizer"):
        yield facts.problem(
            "must stand beside --optimizer-cpu-offload",
            "use_precision_aware_optimizer",
            "optimizer_cpu_offload",
            got="absent",
            need="it",
        )


@MEGATRON.rule(
    "local-attention-over-cp",
    "error",
    "Context parallelism needs Transformer Engine's attention",
    "The local implementation asserts it when the model is built (core/transformer/dot_product_attention.py).",
    "--transformer-impl local --use-flash-attn --context-parallel-size 2",
)
def _local_cp(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.cp > 1 and facts.value("transformer_impl") == "local":
        yield facts.problem("cannot split the sequence", "transformer_impl", CP, got="local", need="transformer_engine")


@MEGATRON.rule(
    "local-low-precision",
    "warning",
    "FP8 and FP4 do nothing without Transformer Engine",
    "The local layers multiply in half precision whatever the format says (core/tensor_parallel/layers.py).",
    "--transformer-impl local --use-flash-attn --fp8-format hybrid",
)
def _local_fp8(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.low_precision and facts.value("transformer_impl") == "local":
        yield facts.problem(
            "has no quantised layers", "transformer_impl", "fp8", "fp4", got="local", need="transformer_engine"
        )


@MEGATRON.rule(
    "idle-flash-attention",
    "note",
    "--use-flash-attn does nothing with Transformer Engine",
    "It chooses the attention of the old local layers; Transformer Engine chooses by --attention-backend and its "
    "environment (core/models/common/language_module/language_module.py).",
    "--use-flash-attn --attention-backend flash",
)
def _flash(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("use_flash_attn") and facts.value("transformer_impl") != "local" and facts.given("attention_backend"):
        yield facts.problem("says nothing beside --attention-backend", "use_flash_attn", "attention_backend")
