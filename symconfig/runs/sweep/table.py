"""The table of a sweep as one file: CSV, or Parquet with the meaning and unit of every column in its schema."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from symconfig.errors import InputError
from symconfig.resources import check_output, write_file
from symconfig.runs.sweep.columns import COLUMNS, Column, Kind, Value

ENDINGS = (".csv", ".parquet")
Record = Mapping[str, Value]
_WORDS = {True: "true", False: "false"}


def check(out: Path, field: str = "--out") -> None:
    """Check that the table can be written. field: the option that names it. Asked before the work, not after it. Raises
    InputError."""
    check_output(out, field, ENDINGS, "no table has this ending", "a name that ends in " + " or ".join(ENDINGS))
    if out.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        hint = "pip install 'symconfig[parquet]', or pip install pyarrow; or a name that ends in .csv"
        raise InputError("Parquet needs pyarrow, which is not installed", field=field, hint=hint)


def write(
    out: Path, records: Sequence[Record], columns: Sequence[Column] = COLUMNS, schema: str = "symconfig.sweep_table/1"
) -> None:
    """Write the whole file or nothing. Equal records give equal bytes. schema: the contract that Parquet names. Raises
    InputError."""
    parquet = out.suffix.lower() == ".parquet"
    write_file(out, _parquet(records, columns, schema) if parquet else _csv(records, columns))


def _csv(records: Sequence[Record], columns: Sequence[Column]) -> bytes:
    """Return CSV with numbers as Python writes them, so that reading gives them back; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [column.name for column in columns]
    writer.writerow(names)
    for record in records:
        writer.writerow([_cell(record.get(name)) for name in names])
    return text.getvalue().encode()


def _cell(value: Value) -> str:
    if value is None:
        return ""
    return _WORDS[value] if isinstance(value, bool) else str(value)


def _parquet(records: Sequence[Record], columns: Sequence[Column], contract: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[Kind, Any] = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64(), "yes/no": pa.bool_()}
    schema = pa.schema(
        [
            pa.field(column.name, types[column.kind], metadata={"says": column.says, "unit": column.unit})
            for column in columns
        ],
        metadata={"schema": contract},
    )
    rows = [{column.name: record.get(column.name) for column in columns} for record in records]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer)
    return buffer.getvalue()
