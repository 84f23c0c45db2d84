"""All that was weighed for a plan's job, as a table for other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from symconfig.plans.plan import Plan
from symconfig.runs.sweep import table
from symconfig.runs.sweep.columns import Column, Value
from symconfig.solve.space import REFUSED_BY
from symconfig.solve.weighing import weighing

SCHEMA = "symconfig.candidates/1"
COLUMNS = (
    Column("tp", "whole", "", "tensor-parallel ranks"),
    Column("pp", "whole", "", "pipeline stages; empty: refused at any number of them"),
    Column("vpp", "whole", "", "chunks of each stage"),
    Column("cp", "whole", "", "context-parallel ranks"),
    Column("ep", "whole", "", "expert-parallel ranks"),
    Column("etp", "whole", "", "tensor-parallel ranks of an expert"),
    Column("dp", "whole", "", "data-parallel replicas"),
    Column("micro", "whole", "sequences", "of a microbatch on one data rank"),
    Column("zero", "whole", "", "ZeRO stage"),
    Column("precision", "text", "", "of most products"),
    Column("cp_comm", "text", "", "how context parallelism exchanges"),
    Column("recompute", "text", "", "the fastest policy that fits, or the leanest where none does"),
    Column("options", "text", "", "what is on beside the degrees"),
    Column("step_s", "number", "s", "of a step by the formula, not simulated; empty: no policy fits"),
    Column("device_bytes", "number", "bytes", "of the fullest GPU; without step_s: at least"),
    Column("fits", "yes/no", "", "whether that is within what a plan may use"),
    Column("refused", "text", "", "what rules these degrees out, before anything of them is weighed"),
)


def records(plan: Plan) -> Iterator[Mapping[str, Value]]:
    """Yield a row for each choice of degrees, micro-batch and ZeRO stage, the fastest first, then those that do not
    fit, then the degrees that a constraint refuses, once for each that does."""
    weighed = weighing(plan.model, plan.cluster, plan.job)
    empty = dict[str, Value].fromkeys(column.name for column in COLUMNS)
    for row in weighed.rows.records():
        yield {**empty, **row, "step_s": row["step_s"] if np.isfinite(float(row["step_s"])) else None}
    for refusal in weighed.refusals:
        for degrees in refusal.degrees.tolist():
            known = {name: value or None for name, value in zip(REFUSED_BY, degrees, strict=True)}
            yield {**empty, **known, "fits": False, "refused": refusal.rule}


def write(out: Path, plan: Plan) -> None:
    """Write the table as CSV or Parquet, by the file's ending. Raises InputError."""
    table.write(out, tuple(records(plan)), COLUMNS, SCHEMA)
