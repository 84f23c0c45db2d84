"""Both ends of a model: the vocabulary that tp splits, losses, and the layer that predicts further tokens."""

from __future__ import annotations

import pytest

from symconfig.frameworks.behaviour import LOSSES
from symconfig.graph.derived import Matmul, Phase, Traffic, recompute_policy
from symconfig.graph.layout import Kind
from symconfig.graph.operator import ELEMENT_BYTES
from tests.graph.support import PLAIN, SEQUENCE, block, chosen, held_bytes, numbers, tally
from tests.sample_models import sample_model

S = 2048


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
    held = held_bytes(derived, recompute_policy(derived, frozenset()), values)
    assert held == pytest.approx(kept * logits + channels, abs=4 * S)
    assert sum(isinstance(work, Matmul) for work in derived.work) == products
    losses = [work for work in derived.work if isinstance(work, Traffic) and work.op == "cross_entropy"]
    moved = sum(m.value(values) * ELEMENT_BYTES[e] for work in losses for m, e in work.moved)
    assert moved >= 2 * 2 * logits


DEEPSEEK = sample_model("deepseek-v3")
TP = 4


def test_the_layers_input_is_a_slice_that_keeps_the_whole_gathered_projection() -> None:
    """Megatron-LM (multi_token_prediction.py, _concat_embeddings) gathers over tp and then takes its rows."""
    values = numbers(DEEPSEEK, seq_length=S, tp=TP)
    for scheme in (PLAIN, SEQUENCE):
        derived = block(DEEPSEEK, "mtp", scheme)
        sizes = {held.tensor: held.elements.value(values) for held in derived.held if held.needed_by}
        assert sizes["layer_in"] == S * DEEPSEEK.hidden_size
        share = TP if scheme is SEQUENCE else 1
        assert sizes["attention_residual"] == S * DEEPSEEK.hidden_size / share


def test_its_columns_are_gathered_forward_and_the_slices_gradients_backward() -> None:
    derived = block(DEEPSEEK, "mtp", SEQUENCE)
    values = numbers(DEEPSEEK, seq_length=S, tp=TP)
    (gather,) = chosen(derived, "tp", Phase.FORWARD, "mtp_columns")
    assert (gather.kind, gather.elements.value(values)) == (Kind.ALL_GATHER, S * DEEPSEEK.hidden_size)
    back = chosen(derived, "tp", Phase.INPUT, "layer_in")
    assert {c.kind for c in back} == {Kind.ALL_GATHER}
    assert not chosen(derived, "tp", Phase.INPUT, "mtp_columns")
