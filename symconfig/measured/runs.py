"""Runs with a step time, from measurement files, by the GPU type that they ran on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from symconfig.descriptor.cluster import ClusterDescriptor, Precisions
from symconfig.descriptor.measurements import load_measurements
from symconfig.errors import InputError, Problem
from symconfig.measured.calibrate import Calibration, calibrate
from symconfig.measured.judge import Judged, judge

Timed = tuple[str, Judged]  # source and row


@dataclass(frozen=True, slots=True)
class Runs:
    """timed: by cluster, the one asked for or the first one of its type of GPU. remarks: what was not used, and why."""

    timed: tuple[tuple[ClusterDescriptor, tuple[Timed, ...]], ...]
    remarks: tuple[str, ...]


def runs(paths: Sequence[Path], cluster: ClusterDescriptor | None = None) -> Runs:
    """cluster: only runs on GPUs of its type. Raises InputError with every file's problems, or when no run is left."""
    problems: list[Problem] = []
    timed: list[Timed] = []
    remarks: list[str] = []
    for path in paths:
        try:
            found, remark = _file(path)
        except InputError as error:
            problems += error.problems
            continue
        timed += found
        remarks += remark
    if problems:
        raise InputError(problems)
    groups: list[tuple[ClusterDescriptor, list[Timed]]] = [(cluster, [])] if cluster else []
    others = 0
    for source, item in timed:
        mine = next((rows for known, rows in groups if _gpu_type(known) == _gpu_type(item.case.cluster)), None)
        if mine is None and cluster is not None:
            others += 1
            continue
        if mine is None:
            mine = []
            groups.append((item.case.cluster, mine))
        mine.append((source, item))
    if others:
        remarks.append(f"{others} runs on other GPUs are left out.")
    if not any(rows for _, rows in groups):
        where = f" on GPUs of the type of {cluster.name}" if cluster else ""
        raise InputError(Problem(f"no run{where} states how long a step took", file=", ".join(map(str, paths))))
    return Runs(tuple((known, tuple(rows)) for known, rows in groups), tuple(remarks))


def _gpu_type(cluster: ClusterDescriptor) -> tuple[object, ...]:
    """What GPUs have in common that share one set of constants: the chip; memory and network may differ."""
    gpu = cluster.gpu
    peaks = (getattr(gpu.peak_flops, name) for name in Precisions.model_fields)
    return (gpu.architecture, gpu.compute_units, *(peak.value if peak else None for peak in peaks))


def _file(path: Path) -> tuple[list[Timed], list[str]]:
    """The timed runs of a measurement file, and remarks."""
    file = load_measurements(path)
    if not file.validated:
        return [], [f"{path.name}: states targets, not runs."]
    timed, skipped = [], []
    for row in file.rows:
        try:
            item = judge(path.stem, row)
        except InputError as error:
            skipped.append(f"{path.name}: {row.id} is skipped: {str(error).splitlines()[0]}")
            continue
        if item.time:
            timed.append((path.stem, item))
    return timed, skipped


def calibrations(found: Runs, command: str, from_scratch: bool) -> list[Calibration]:
    """One for each GPU type."""
    return [calibrate(cluster, rows, command, from_scratch) for cluster, rows in found.timed]
