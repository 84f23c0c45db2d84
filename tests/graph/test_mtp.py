"""A multi-token-prediction layer's projection is column-parallel; what is gathered of it stays whole."""

from __future__ import annotations

from symconfig.graph.derived import Phase
from symconfig.graph.layout import Kind
from tests.graph.support import PLAIN, SEQUENCE, block, chosen, numbers
from tests.sample_models import sample_model

MODEL = sample_model("deepseek-v3")
S, TP = 2048, 4


def test_the_layers_input_is_a_slice_that_keeps_the_whole_gathered_projection() -> None:
    """Megatron-LM (multi_token_prediction.py, _concat_embeddings) gathers over tp and then takes its rows."""
    values = numbers(MODEL, seq_length=S, tp=TP)
    for scheme in (PLAIN, SEQUENCE):
        derived = block(MODEL, "mtp", scheme)
        sizes = {held.tensor: held.elements.value(values) for held in derived.held if held.needed_by}
        assert sizes["layer_in"] == S * MODEL.hidden_size
        share = TP if scheme is SEQUENCE else 1
        assert sizes["attention_residual"] == S * MODEL.hidden_size / share


def test_its_columns_are_gathered_forward_and_the_slices_gradients_backward() -> None:
    derived = block(MODEL, "mtp", SEQUENCE)
    values = numbers(MODEL, seq_length=S, tp=TP)
    (gather,) = chosen(derived, "tp", Phase.FORWARD, "mtp_columns")
    assert (gather.kind, gather.elements.value(values)) == (Kind.ALL_GATHER, S * MODEL.hidden_size)
    back = chosen(derived, "tp", Phase.INPUT, "layer_in")
    assert {c.kind for c in back} == {Kind.ALL_GATHER}
    assert not chosen(derived, "tp", Phase.INPUT, "mtp_columns")
