"""Names, layouts and amounts as the report of a partition writes them."""

from __future__ import annotations

from symconfig.format import general, short
from symconfig.report.partition import names


def test_layers_numbers_are_left_out_of_names_and_only_those() -> None:
    assert general("layers.12.up_proj.weight") == "layers.*.up_proj.weight"
    assert general("layer4.0.conv1") == "layer4.*.conv1"
    assert short("abcdef", 4) == "abc…"


def test_long_dims_get_letters_of_their_own_and_short_ones_keep_their_names() -> None:
    found = names(("batch", "b", "hidden_size", "transformer.wte:1", "another long dim"))
    assert found == {"batch": "B", "hidden_size": "D", "transformer.wte:1": "a", "another long dim": "c"}
