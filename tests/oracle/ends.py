"""Both ends of the model on one rank: look-up, and final norm, head and cross-entropy over a split vocabulary."""

from __future__ import annotations

from math import ceil

from tests.oracle.given import ACTIVATION, FP32, INDEX, VOCABULARY_MULTIPLE, Model, Run
from tests.oracle.layer import column_parallel
from tests.oracle.records import FORWARD, INPUT, Block, Message
from tests.oracle.seconds import ring


def rows(model: Model, run: Run) -> float:
    """Of the vocabulary on one rank, padded so that every rank has a multiple of 128 (Megatron-LM)."""
    multiple = VOCABULARY_MULTIPLE * run.tp
    return ceil(model.vocabulary / multiple) * multiple / run.tp


def embedding(model: Model, run: Run) -> Block:
    """A rank finds the tokens of its part of the vocabulary: partial sums become the stream."""
    block = Block("embedding")
    elements = run.tokens * model.hidden
    found, tokens = elements * ACTIVATION, run.tokens * INDEX
    block.stream_through("word_embedding", tokens + found, found + tokens, set(), tokens + found)
    block.keep("tokens", tokens, "", "word_embedding")
    block.dense = block.vocabulary = rows(model, run) * model.hidden
    kinds = (("reduce-scatter", FORWARD), ("all-gather", INPUT)) if run.sp else (("all-reduce", FORWARD),)
    for kind, phase in kinds:
        seconds = ring(found, run.tp, 1, passes=2 if kind == "all-reduce" else 1)
        block.messages.append(Message(kind, "tp", found, seconds, seconds, phase, "word_embedding", elements))
    return block


def head(model: Model, run: Run) -> Block:
    """Logits in bf16, then in fp32, where the softmax and its gradient overwrite them: 4 bytes a logit stay. The loss
    of a token takes three reductions: maximum, target's logit, sum (Megatron's vocab-parallel cross-entropy)."""
    block = Block("head")
    n, h, v = run.tokens, model.hidden, rows(model, run)
    stream, row, whole = run.stream * h * ACTIVATION, run.stream * FP32, n * h * ACTIVATION
    narrow, wide, loss = n * v * ACTIVATION, n * v * FP32, n * FP32
    block.stream_through("final_norm", 2 * stream + row, 3 * stream + row, set(), 2 * stream)
    block.keep("last_hidden", stream, "", "final_norm")
    block.keep("final_norm.statistics", row, "final_norm", "final_norm")
    # Its gradient has no buffer that stays: it is there while the product runs.
    block.multiply("lm_head", n, v, h, set(), whole + narrow + h * v * ACTIVATION)
    block.keep("final_norm", stream, "final_norm", "lm_head")
    column_parallel(block, run, h, "lm_head")
    block.stream_through("logits_fp32", narrow + wide, wide + narrow, set(), narrow)
    block.keep("logits_fp32", wide, "logits_fp32", "cross_entropy")
    block.stream_through("cross_entropy", wide + loss, loss + 2 * wide, set(), loss)
    seconds = 3 * ring(loss, run.tp, 1, passes=2)
    block.messages.append(Message("all-reduce", "tp", loss, seconds, seconds, FORWARD, "cross_entropy", 3 * n))
    block.vocabulary = h * v
    block.dense = h * v + h
    return block
