"""Embedding, head and loss over a vocabulary that tp splits (Megatron-LM, arXiv 1909.08053, section 3)."""

from __future__ import annotations

import pytest

from symconfig.frameworks.kernels import LOSSES
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.operator import ELEMENT_BYTES, Element
from symconfig.graph.recompute import apply
from tests.graph.support import PLAIN, SEQUENCE, block, chosen, held_bytes, numbers, tally
from tests.sample_models import sample_model

MODELS = ["gpt3-175b", "llama2-13b"]
B, S = 3, 2048


@pytest.mark.parametrize("name", MODELS)
def test_the_look_up_is_reduced_over_the_parts_of_the_vocabulary(name: str) -> None:
    """Section 3: "an all-reduce (g operator) is required after the input embedding"."""
    model = sample_model(name)
    values = numbers(model, micro_batch=B, tp=8)
    stream = B * S * model.hidden_size
    derived = block(model, "embedding", PLAIN)
    assert tally(chosen(derived, "tp", Phase.FORWARD), values) == {("all-reduce", stream): 1}
    assert not chosen(derived, "tp", Phase.INPUT)


def test_with_sequence_parallelism_the_look_up_is_scattered() -> None:
    model = sample_model("llama2-13b")
    values = numbers(model, micro_batch=B, tp=8)
    stream = B * S * model.hidden_size
    derived = block(model, "embedding", SEQUENCE)
    assert tally(chosen(derived, "tp", Phase.FORWARD), values) == {("reduce-scatter", stream): 1}
    assert tally(chosen(derived, "tp", Phase.INPUT), values) == {("all-gather", stream): 1}


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_reduces_three_numbers_a_token_instead_of_the_logits(name: str) -> None:
    """Section 3: fused with the head, it talks b x s; Megatron's cross_entropy.py: maximum, target logit, sum."""
    model = sample_model(name)
    derived = block(model, "head", PLAIN)
    found = chosen(derived, "tp", Phase.FORWARD)
    assert tally(found, numbers(model, micro_batch=B, tp=8)) == {("all-reduce", B * S): 3}
    assert [c.element for c in found] == [Element.FP32]
    backward = tally(chosen(derived, "tp", Phase.INPUT), numbers(model, micro_batch=B, tp=8))
    assert backward == {("all-reduce", B * S * model.hidden_size): 1}  # of the head's input: f


def test_weights_and_logits_are_cut_by_tp() -> None:
    model = sample_model("llama2-13b")
    values = numbers(model, tp=8)
    for kind, name in (("embedding", "word_embedding.weight"), ("head", "lm_head.weight")):
        (weight,) = [w for w in block(model, kind, SEQUENCE).weights if w.name == name]
        assert weight.elements.value(values) == 32000 * 5120 / 8
    (logits,) = [h for h in block(model, "head", SEQUENCE).held if h.tensor == "logits"]
    assert logits.elements.value(values) == S * 32000 / 8


@pytest.mark.parametrize("tied", [False, True])
def test_autotp_splits_a_look_up_only_where_it_is_the_head(tied: bool) -> None:
    """DeepSpeed 0.19.8 builds Embedding and LinearLayer(gather_output=True), or VocabParallelEmbedding and -Linear."""
    model = sample_model("llama2-13b", tie_word_embeddings=tied)
    values = numbers(model, tp=8, seq_length=S)
    ends = {kind: block(model, kind, PLAIN, whole_look_up=True, loss="torch") for kind in ("embedding", "head")}
    elements = {kind: max(w.elements.value(values) for w in derived.weights) for kind, derived in ends.items()}
    assert elements == {"embedding": 32000 * 5120 / (8 if tied else 1), "head": 32000 * 5120 / 8}
    looked_up, lost = (tally(chosen(derived, "tp", Phase.FORWARD), values) for derived in ends.values())
    assert looked_up == ({("all-reduce", S * 5120): 1} if tied else {})
    assert lost == ({("all-reduce", S): 3} if tied else {("all-gather", S * 32000): 1})
    backward = tally(chosen(ends["head"], "tp", Phase.INPUT), values)
    assert backward == {("all-reduce", S * 5120): 1}  # of the head's input; a gathered logit's gradient is a slice
    held = {h.tensor: h.elements.value(values) for h in ends["head"].held if h.needed_by}
    split = 8 if tied else 1
    assert held["logits_fp32"] == held["log_softmax"] == S * 32000 / split
    assert held["logits" if tied else "gathered_logits"] == S * 32000 / split


@pytest.mark.parametrize(("loss", "kept", "products"), [
    ("fused", 2, 3), ("flash", 2, 3), ("parallel", 4, 3), ("torch", 10, 3), ("linear", 0, 3), ("tiled", 0, 4),
])  # fmt: skip
def test_no_loss_is_free_and_one_without_whole_logits_keeps_none(loss: str, kept: int, products: int) -> None:
    """Bytes of a logit, and products of the head. A loss reads each logit and writes its gradient, always."""
    assert loss in LOSSES
    model = sample_model("llama2-13b")
    values = numbers(model)
    derived, logits = block(model, "head", loss=loss), S * model.vocab_size
    channels = (2 + (loss == "linear")) * 2 * S * model.hidden_size  # of both the norm's and the head's input; a chunk
    held = held_bytes(derived, apply(derived, frozenset()), values)
    assert held == pytest.approx(kept * logits + channels, abs=4 * S)
    assert sum(isinstance(work, Matmul) for work in derived.work) == products
    losses = [work for work in derived.work if isinstance(work, Traffic) and work.op == "cross_entropy"]
    moved = sum(m.value(values) * ELEMENT_BYTES[e] for work in losses for m, e in work.moved)
    assert moved >= 2 * 2 * logits
