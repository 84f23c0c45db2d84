"""Stages and tensors solved together, for docs/evidence/partitions.md."""

from __future__ import annotations

from typing import Any

import symconfig
from symconfig.errors import InfeasibleError
from symconfig.solve.partition.pipeline.run import Pipeline
from tools.pages import table

JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama2-7b", {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 64}),
    ("llama2-7b", {"model": "llama2-7b", "cluster": "rtx4090", "gpus": 16, "global_batch_size": 64}),
    ("llama2-70b", {"model": "llama2-70b", "cluster": "h100", "gpus": 64, "global_batch_size": 512}),
    ("Wide-ResNet-50-2", {"program": "wide-resnet-50-2", "cluster": "v100-16gb", "gpus": 16}),
)
TURNS = 16


def of(job: dict[str, Any], stages: int, **options: Any) -> Pipeline | None:
    try:
        return symconfig.pipeline(**job, stages=stages, num_microbatches=TURNS, **options).found
    except InfeasibleError:
        return None


def shown(found: Pipeline | None) -> str:
    return f"{found.step_s:.3f}" if found is not None else "-"


def stages() -> str:
    rows = [("graph", "on", "1 stage", "2 stages", "3", "4", "GPUs of each of 3", "kept on each of 4")]
    for name, job in JOBS:
        found = [of(job, number) for number in (1, 2, 3, 4)]
        gpus, kept = (
            [getattr(stage, of_) for stage in one.stages] if one is not None else []
            for of_, one in (("gpus", found[2]), ("keep", found[3]))
        )
        cells = (", ".join(map(str, gpus)) or "-", ", ".join(map(str, kept)) or "-")
        rows.append((name, f"{job['gpus']} x {job['cluster']}", *map(shown, found), *cells))
    job = JOBS[1][1]
    same = [of(job, 4, recompute=how) for how in ("none", "full", "auto")]
    return f"""\
{table(rows[0], rows[1:])}
A stage is solved by itself, with as many microbatches in flight as 1F1B has there, so that earlier ones may keep less
than later ones. On {job["gpus"]} x {job["cluster"]} in 4 stages that takes {shown(same[2])} s, against
{shown(same[1])} s where all run repeated parts forward again and {shown(same[0])} s where none does (-: nothing fits).
"""
