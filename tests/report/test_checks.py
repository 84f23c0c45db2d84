"""What `verify` prints: a row a check, and the numbers that a check compared with a framework's own."""

from __future__ import annotations

from pathlib import Path

from symconfig.report.grid import plain
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
