"""What `verify` prints: a row a check, and what it compared; names as the report of a partition writes them."""

from __future__ import annotations

from pathlib import Path

from symconfig.format import general, short
from symconfig.report.grid import plain
from symconfig.report.partition import names
from symconfig.report.verify import checked as blocks
from symconfig.verify.checks import Check, Compared


def test_numbers_stand_beside_each_other_with_their_difference() -> None:
    pairs = (Compared("parameters", 1_000_001, 1_000_000, "count"), Compared("gradient buffers", 2**32, 2**32, "bytes"))
    text = plain(
        blocks(
            Path("out"),
            [Check("rank 0", "failed", "one too many", 1.5, pairs), Check("other", "passed", "nothing compared", 0.1)],
        )
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["rank", "0", "parameters", "1,000,001", "1,000,000", "+1"] in lines
    assert ["gradient", "buffers,", "bytes", "4,294,967,296", "4,294,967,296", "0"] in lines
    assert text.endswith("1 failed, 1 passed.\n")


def test_without_numbers_there_is_no_table_of_them() -> None:
    assert len(blocks(Path("out"), [Check("other", "passed", "nothing compared", 0.1)])) == 2


def test_layers_numbers_are_left_out_of_names_and_only_those() -> None:
    assert general("layers.12.up_proj.weight") == "layers.*.up_proj.weight"
    assert general("layer4.0.conv1") == "layer4.*.conv1"
    assert short("abcdef", 4) == "abc…"


def test_long_dims_get_letters_of_their_own_and_short_ones_keep_their_names() -> None:
    found = names(("batch", "b", "hidden_size", "transformer.wte:1", "another long dim"))
    assert found == {"batch": "B", "hidden_size": "D", "transformer.wte:1": "a", "another long dim": "c"}
