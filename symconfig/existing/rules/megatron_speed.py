"""What makes a run slower or larger than it need be."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import fails
from symconfig.existing.rules.megatron_grid import CP, TP
from symconfig.existing.rules.megatron_switches import GATHER, REDUCE, SEQUENCE, TORCH_FSDP, TP_OVERLAP, ZERO
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.megatron.sparse import WITHOUT_SEQUENCE

LONG_SEQUENCE = 2048  # at it the scores of unfused attention outweigh a layer's other activations
LARGE_MASK = 16 * 1024  # tokens whose mask takes 256 MiB
SHORT_SEQUENCE = 8 * 1024
PLAIN = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 "
)
# Fusions, each with what goes slower without it.
FUSIONS = {
    "masked_softmax_fusion": "scale, mask and softmax are three kernels",
    "bias_gelu_fusion": "bias and GeLU are two kernels",
    "bias_swiglu_fusion": "SwiGLU is several kernels",
    "bias_dropout_fusion": "bias, dropout and residual are three kernels",
    "apply_rope_fusion": "rotary embeddings are several kernels",
}

MEGATRON: Rules[MegatronFacts] = Rules()


def _sharded(facts: MegatronFacts) -> bool:
    return facts.on(ZERO) or facts.fsdp or facts.on(TORCH_FSDP)


@MEGATRON.rule(
    "no-sequence-parallelism",
    "warning",
    "Tensor parallelism without sequence parallelism",
    "Norms and dropout are computed, and their activations kept, on every tensor-parallel rank; with "
    "--sequence-parallel they are split, and as many bytes are sent (arXiv:2205.05198).",
    "--tensor-model-parallel-size 2",
)
def _sequence(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(TP_OVERLAP) or fails(WITHOUT_SEQUENCE, facts):  # refused: another rule
        return
    if facts.tp > 1 and not facts.experts and not facts.on(SEQUENCE):
        yield facts.problem(
            "is missing: every tensor-parallel rank keeps all of the norms' activations", SEQUENCE, TP, need="it"
        )


@MEGATRON.rule(
    "optimizer-not-sharded",
    "warning",
    "Every replica keeps the whole optimizer",
    "With --use-distributed-optimizer (ZeRO stage 1) each keeps its share of the 12 bytes a parameter, and as many "
    "bytes are sent (core/optimizer/distrib_optimizer.py).",
    PLAIN + "--bf16 --overlap-grad-reduce",
)
def _zero(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(GATHER):  # refused: another rule
        return
    if facts.dp * facts.cp > 1 and not _sharded(facts) and facts.value("optimizer") in ("adam", "sgd"):
        yield facts.problem(
            f"is missing: each of {facts.dp * facts.cp} ranks keeps the same optimizer states",
            ZERO,
            "micro_batch_size",
            need="it",
        )


@MEGATRON.rule(
    "gradients-not-overlapped",
    "warning",
    "Nothing hides the reduction of gradients",
    "Without --overlap-grad-reduce it starts when the last backward pass has ended "
    "(core/distributed/distributed_data_parallel.py).",
    PLAIN + "--bf16 --use-distributed-optimizer",
)
def _reduce(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.dp * facts.cp > 1 and not facts.on(REDUCE) and not facts.fsdp and not facts.on(TORCH_FSDP):
        if facts.on(GATHER):  # refused: another rule
            return
        yield facts.problem("is missing: gradients are reduced after the last backward pass", REDUCE, ZERO, need="it")


@MEGATRON.rule(
    "weights-not-overlapped",
    "warning",
    "Nothing hides the gathering of weights",
    "The distributed optimizer gathers the new weights after its step; with --overlap-param-gather they come while "
    "the next forward pass runs.",
    PLAIN + "--bf16 --use-distributed-optimizer --overlap-grad-reduce",
)
def _gather(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.dp * facts.cp > 1 and facts.on(ZERO) and facts.on(REDUCE) and not facts.on(GATHER) and not facts.fsdp:
        yield facts.problem("is missing: weights are gathered before the next step begins", GATHER, REDUCE, need="it")


@MEGATRON.rule(
    "tensor-exchange-not-overlapped",
    "note",
    "Nothing hides the tensor-parallel exchange",
    "--tp-comm-overlap splits it and hides it behind the matrix products (Transformer Engine's userbuffers; needs MPI "
    "or a bootstrap backend).",
    "--tensor-model-parallel-size 2 --sequence-parallel",
)
def _tensor(facts: MegatronFacts) -> Iterator[Problem]:
    engine = facts.value("transformer_impl") == "transformer_engine"
    if engine and facts.tp > 1 and facts.on(SEQUENCE) and not facts.on(TP_OVERLAP):
        yield facts.problem("is missing: every layer waits for its exchange", TP_OVERLAP, TP)


@MEGATRON.rule(
    "fusion-off",
    "warning",
    "A fused kernel is switched off",
    "They are on by default, and bound by memory bandwidth: each more kernel reads and writes all activations "
    "(core/fusions).",
    "--position-embedding-type rope --no-rope-fusion",
)
def _fusions(facts: MegatronFacts) -> Iterator[Problem]:
    for dest, what in FUSIONS.items():
        off = facts.names.given(dest) and not facts.on(dest)
        if off and _has_kernel(facts, dest) and not facts.on("deterministic_mode"):
            yield facts.problem(f"makes it slower: {what}", dest)


def _has_kernel(facts: MegatronFacts, dest: str) -> bool:
    """Tell whether there is such a kernel for the model to switch off."""
    if dest == "bias_gelu_fusion":
        return facts.on("add_bias_linear") and not facts.on("swiglu")
    if dest == "bias_swiglu_fusion":
        return facts.on("swiglu")
    if dest == "bias_dropout_fusion":  # grouped experts with biases refuse it
        return not (facts.experts and facts.on("add_bias_linear"))
    if dest == "apply_rope_fusion":
        rotary = facts.value("position_embedding_type") in ("rope", "yarn", "mrope")
        return (rotary or facts.on("use_rotary_position_embeddings")) and not facts.on("multi_latent_attention")
    # Transformer Engine and flash attention have kernels of their own.
    return facts.value("transformer_impl") == "local" and not facts.on("use_flash_attn")


@MEGATRON.rule(
    "gradients-not-accumulated-in-place",
    "warning",
    "Gradients of weights are written and then added",
    "--no-gradient-accumulation-fusion takes the addition out of the matrix product: a weight-sized tensor more, read "
    "and written in each microbatch (core/tensor_parallel/layers.py). FSDP needs it.",
    "--no-gradient-accumulation-fusion",
)
def _accumulation(facts: MegatronFacts) -> Iterator[Problem]:
    dest = "gradient_accumulation_fusion"
    if facts.names.given(dest) and not facts.on(dest) and not facts.fsdp and not facts.on(TORCH_FSDP):
        yield facts.problem("makes it slower: every microbatch adds whole gradients", dest)


@MEGATRON.rule(
    "unfused-attention",
    "warning",
    "Attention writes all its scores",
    "Without flash or fused attention the scores take heads x sequence^2 bytes a layer, many times over "
    "(arXiv:2205.14135).",
    "--attention-backend unfused",
)
def _attention(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.number("seq_length") < LONG_SEQUENCE:
        return
    if facts.value("transformer_impl") == "local" and not facts.on("use_flash_attn"):
        yield facts.problem(
            "is missing: local attention keeps its scores",
            "use_flash_attn",
            "transformer_impl",
            got=f"{facts.number('seq_length')} tokens",
            need="it, or --transformer-impl transformer_engine",
        )
    elif facts.value("attention_backend") in ("unfused", "local"):
        yield facts.problem(
            "keeps the scores", "attention_backend", got=facts.text("attention_backend"), need="auto, flash or fused"
        )


@MEGATRON.rule(
    "single-precision",
    "warning",
    "The model is trained in fp32",
    "Without --bf16 or --fp16 weights, activations and products are fp32: an eighth of the speed on recent GPUs.",
    PLAIN + "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
)
def _single(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.on("bf16") and not facts.on("fp16") and not facts.low_precision:
        yield facts.problem("is missing: everything is fp32", "bf16", "micro_batch_size", "num_layers", need="it")


@MEGATRON.rule(
    "dropout-by-default",
    "note",
    "Dropout is on, because nobody switched it off",
    "--attention-dropout and --hidden-dropout are 0.1 by default; models since GPT-3 are trained without, and it costs "
    "a mask of every activation.",
    "--swiglu --disable-bias-linear --normalization RMSNorm",
)
def _dropout(facts: MegatronFacts) -> Iterator[Problem]:
    modern = facts.on("swiglu") or facts.value("normalization") == "RMSNorm"
    for dest in ("attention_dropout", "hidden_dropout"):
        if modern and not facts.given(dest) and facts.value(dest):
            yield facts.problem("is on by default", dest, "swiglu", "normalization", got=facts.value(dest), hint="0")


@MEGATRON.rule(
    "masks-of-data",
    "note",
    "The data loader makes a mask of sequence x sequence",
    "Transformer Engine masks causally by itself; --no-create-attention-mask-in-dataloader saves the mask's memory and "
    "its copy to the GPU (core/datasets/gpt_dataset.py).",
    "--seq-length 32768 --max-position-embeddings 32768",
)
def _masks(facts: MegatronFacts) -> Iterator[Problem]:
    dest = "create_attention_mask_in_dataloader"
    large = facts.number("seq_length") >= LARGE_MASK
    causal = facts.value("transformer_impl") == "transformer_engine" and not facts.on("reset_attention_mask")
    if large and causal and facts.on(dest):
        yield facts.problem("is missing: each sequence brings a mask", dest, "seq_length", value=False)


@MEGATRON.rule(
    "cache-emptied",
    "warning",
    "The allocator's cache is emptied in every step",
    "--empty-unused-memory-level waits for the GPU and gives memory back that the next step asks for again.",
    "--empty-unused-memory-level 2",
)
def _cache(facts: MegatronFacts) -> Iterator[Problem]:
    if (level := facts.maybe("empty_unused_memory_level")) is not None and level > 0:
        yield facts.problem(
            "makes it slower: memory is given back and asked for again",
            "empty_unused_memory_level",
            got=level,
            need="0",
        )


@MEGATRON.rule(
    "context-parallel-short",
    "note",
    "Context parallelism of a short sequence",
    "Every layer exchanges keys and values for it; below about 8 Ki tokens tensor or data parallelism is cheaper "
    "(docs, context_parallel).",
    "--context-parallel-size 4",
)
def _context(facts: MegatronFacts) -> Iterator[Problem]:
    length = facts.number("seq_length")
    if facts.cp > 1 and length < SHORT_SEQUENCE:
        yield facts.problem("splits a short sequence", CP, "seq_length", got=f"{length} tokens over {facts.cp} ranks")
