"""Tables as Parquet, where pyarrow is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.runs.sweep.columns import COLUMNS
from symconfig.runs.sweep.table import check, write

pq = pytest.importorskip("pyarrow.parquet")


def test_columns_have_their_kinds_meanings_and_units(tmp_path: Path) -> None:
    rows = [{"id": "a", "gpus": 8, "step_s": 1.5, "sequence_parallel": True, "cost": None}, {"id": "b", "reason": "no"}]
    for name in ("t.parquet", "again.parquet"):
        check(tmp_path / name)
        write(tmp_path / name, rows)
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.schema.names == [column.name for column in COLUMNS]
    assert {name: value for name, value in table.to_pylist()[0].items() if value is not None} == {
        "id": "a",
        "gpus": 8,
        "step_s": 1.5,
        "sequence_parallel": True,
    }
    assert table.schema.field("step_s").metadata == {b"says": b"a steady optimizer step", b"unit": b"s"}
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()
