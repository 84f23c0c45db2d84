"""docs/evidence/systems.md: it names every system with a command that exists."""

from __future__ import annotations

import re
from pathlib import Path

from symconfig.cli.main import GROUPS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "systems.md"
SYSTEMS = [
    "SymTensor", "symbolic analytical formulas", "TAP", "Alpa", "Galvatron", "vTrain", "InternEvo", "Calculon",
    "AMPeD", "Mist", "DAPPLE", "Piper", "Tarnawski", "FlexFlow", "Unity", "GShard", "GSPMD", "Mesh-TensorFlow",
    "Tofu", "Whale", "Metis", "ColocRL", "parameter server",
]  # fmt: skip


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_every_system_has_a_row_with_commands_that_there_are() -> None:
    assert [row[0].strip("| ") for row in _rows()] == SYSTEMS
    commands = {name for names in GROUPS.values() for name in names}
    for row in _rows():
        assert len(row) == 5
        used = re.findall(r"`symconfig (\w+)", row[2])
        assert used
        assert set(used) <= commands
