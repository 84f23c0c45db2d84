"""Many plans from Python: `symconfig.sweep("SWEEP.yaml", out="results.csv")`, `symconfig.size("llama3.1-70b", …)`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from symconfig.descriptor.document import Document
from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.errors import InputError, Problem
from symconfig.sweep.asked import asked
from symconfig.sweep.engines import Wanted
from symconfig.sweep.points import LIMIT, Points, points
from symconfig.sweep.run import Swept, Told
from symconfig.sweep.run import sweep as run


def sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    fresh: bool = False,
    limit: int = LIMIT,
    progress: Callable[[Told], None] = lambda _: None,
) -> Swept:
    """Plan every combination that a SWEEP.yaml, or the same as a mapping, asks for; the table goes into `out`.

    out: .csv or .parquet; None: the source's name with .csv, here. What is done stays done in a journal beside it.
    jobs: plans at once; None: as many as there are cores. fresh: forget the journal. limit: of combinations. Raises
    InputError (all problems at once) on bad input.
    """
    read, table = read_sweep(source, limit), table_of(source, out)
    return run(read.points, table, read.prices, Wanted(engine, jobs, address), fresh, progress)


def read_sweep(source: str | Path | Mapping[str, Any], limit: int = LIMIT) -> Points:
    """Every combination that is asked for. Raises InputError."""
    if isinstance(source, Mapping):
        return points(asked(Document(json.loads(json.dumps(source)), file=""), None), limit)
    path = Path(source)
    document = load_json_strict(path) if path.suffix == ".json" else load_yaml_strict(path)
    return points(asked(document, path.parent), limit)


def table_of(source: str | Path | Mapping[str, Any], out: str | Path | None) -> Path:
    """Where the table goes."""
    if out is not None:
        return Path(out)
    if isinstance(source, Mapping):
        raise InputError(Problem("this option is missing", field="out", hint="a name that ends in .csv"))
    return Path(Path(source).stem + ".csv")
