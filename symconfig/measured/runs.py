"""Runs with a step time, from measurement files and training logs, by the GPU type that they ran on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Measurements, load_measurements
from symconfig.errors import InputError, Problem, Problems
from symconfig.format import rounded
from symconfig.measured.calibrate import Calibration, GpuType, calibrate, gpu_type
from symconfig.measured.judge import Judged, judge_case
from symconfig.measured.log_row import Additions, read_back
from symconfig.measured.score import predicted
from symconfig.measured.training_log import read_log
from symconfig.units import GIB

Timed = tuple[str, Judged]  # source and row
MEASUREMENTS = (".yaml", ".yml")  # every other file is a training log


@dataclass(frozen=True, slots=True)
class Runs:
    """timed: by cluster, the one asked for or the first one of its type of GPU. remarks: what was not used, and why."""

    timed: tuple[tuple[ClusterDescriptor, tuple[Timed, ...]], ...]
    remarks: tuple[str, ...]


def runs(paths: Sequence[Path], cluster: ClusterDescriptor | None = None, additions: Additions | None = None) -> Runs:
    """Return the timed runs of measurement files (.yaml, .yml) and training logs (all others), grouped by GPU type.

    cluster: keep only runs on its GPU type, with a remark on how many were left out; required for training logs, which
    do not name their GPUs. None: each group has its first run's cluster. additions: complete training logs. Raises
    InputError with the problems of all files, or, with the remarks, if no timed run is left.
    """
    problems, timed, remarks = Problems(), list[Timed](), list[str]()

    def add(path: Path) -> None:
        """Add the runs and remarks of one file. Raises InputError."""
        measured = path.suffix.lower() in MEASUREMENTS
        some, remark = _file(path, cluster) if measured else _log(path, cluster, additions or Additions())
        timed.extend(some)
        remarks.extend(remark)

    for path in paths:
        problems.read(add, path)
    problems.check()
    groups: dict[GpuType, tuple[ClusterDescriptor, list[Timed]]] = {}
    for known in [cluster] if cluster else [item.case.cluster for _, item in timed]:
        groups.setdefault(gpu_type(known), (known, []))
    for source, item in timed:
        if (mine := gpu_type(item.case.cluster)) in groups:
            groups[mine][1].append((source, item))
    others = len(timed) - sum(len(rows) for _, rows in groups.values())
    if others:
        some = "1 run on other GPUs is" if others == 1 else f"{others} runs on other GPUs are"
        remarks.append(f"{some} left out.")
    if others == len(timed):
        where = f" on GPUs of the type of {cluster.name}" if cluster else ""
        nothing = Problem(f"no run{where} states how long a step took", file=", ".join(map(str, paths)))
        raise InputError([nothing, *map(Problem, (remark.rstrip(".") for remark in remarks))])
    return Runs(tuple((known, tuple(rows)) for known, rows in groups.values()), tuple(remarks))


def _file(path: Path, cluster: ClusterDescriptor | None) -> tuple[list[Timed], list[str]]:
    """Return (timed runs of a measurement file, remarks on skipped rows; untimed rows are left out); ([], [remark]) if
    it states targets.
    """
    file = load_measurements(path)
    if not file.validated:
        return [], [f"{path.name}: states targets, not runs."]
    judged, skipped = predicted(path.stem, file, cluster)
    remarks = [f"{path.name}: {row} is skipped: {reason}" for row, reason in skipped]
    return [(path.stem, item) for item in judged if item.time], remarks


def _log(path: Path, cluster: ClusterDescriptor | None, additions: Additions) -> tuple[list[Timed], list[str]]:
    """Return the log's steady step as a run (none without one) and remarks: the log's own, memory, assumed values, and
    steady against predicted time. Raises InputError without a cluster, or if the log with its additions
    is no predictable run; then each missing field has the option that supplies it.
    """
    if cluster is None:
        hint = "--cluster h100, or the path of your own"
        raise InputError("a training log does not say on which GPUs it ran", file=str(path), hint=hint)
    log = read_log(path, additions.global_batch)
    try:
        item = judge_case(*read_back(log, cluster, additions))
    except InputError as error:
        problems = [_log_problem(problem, path) for problem in error.problems]
        if log.needs_batch:
            what = "the log has samples per second and no global batch size"
            problems.append(Problem(what, file=str(path), hint="--global-batch-size"))
        raise InputError(problems) from None
    remarks = list(log.remarks)
    if item.memory:
        predicted, measured = item.memory
        remarks.append(f"peak memory {measured / GIB:.2f} GiB, predicted {predicted / GIB:.2f} GiB")
    if item.case.taken:
        taken = ", ".join(f"{name} {value}" for name, value in item.case.taken)
        remarks.append(f"not said by the log and assumed: {taken}")
    if item.time is None:
        remarks.append("it has no steady step, so it is not fitted to")
    elif log.steady:
        s = log.steady
        median, low, high, own = (rounded(each, 4) for each in (s.seconds, s.low, s.high, item.time[0]))
        text = f"a steady step takes {median} s (median of {s.n}, {low} to {high}), predicted {own} s before the fit"
        remarks.append(text)
    return [(path.name, item)] if item.time else [], [f"{path.name}: {remark}" for remark in remarks]


# What a person adds to the command where a log leaves it out.
_OPTIONS = {
    "model": "--model",
    "gpus": "--gpus",
    "batch.micro": "--micro-batch-size",
    "batch.global": "--global-batch-size",
    "batch.seq_length": "--seq-length",
    # As Megatron-LM prints them.
    "micro_batch_size": "--micro-batch-size",
    "global_batch_size": "--global-batch-size",
    "--seq-length": "--seq-length",
}


def _log_problem(problem: Problem, path: Path) -> Problem:
    """Return a row's problem as one of the log file, unless it has a file. If an option of the command supplies the
    field, it is the hint where there is none; if the field is missing (no `got`), it always is, and a problem without a
    file says that the log lacks it.
    """
    option = _OPTIONS.get(problem.field or "")
    missing = option and problem.got is None
    return replace(
        problem,
        file=problem.file or str(path),
        what="the log does not say it" if missing and problem.file is None else problem.what,
        hint=option if missing else problem.hint or option,
    )


def calibrations(runs: Runs, command: str, from_scratch: bool) -> list[Calibration]:
    """Return one calibration for each GPU type. command: recorded as the source of the constants."""
    return [calibrate(cluster, rows, command, from_scratch) for cluster, rows in runs.timed]


Read = tuple[tuple[str, Measurements], ...]


def read(names: Sequence[str]) -> Read:
    """Return (name, content) of all measurement files, also those in folders; name is the file name without extension.
    The same file (by real path) is read once, and files of one name are merged. Raises InputError with all files that
    cannot be read, else with row ids that two files share.
    """
    problems, read_files = Problems(), dict[Path, Measurements]()
    for path in (path for name in names for path in problems.read(in_folder, Path(name)) or ()):
        if os.path.realpath(path) in {os.path.realpath(known) for known in read_files}:
            continue  # a file that a folder before it holds
        try:
            read_files[path] = load_measurements(path)
        except InputError as error:
            if path.suffix in MEASUREMENTS:
                problems.add(*error.problems)
            elif not path.exists():
                problems.add(error.problems[0])
            else:
                need = "measured runs (symconfig.measurements/1) in a file that ends in .yaml"
                hint = "symconfig calibrate, if it is a log"
                problems.add(Problem("holds no measured runs", file=str(path), need=need, hint=hint))
    problems.check()
    Problems(_shared(read_files)).check()
    return merged(tuple((path.stem, content) for path, content in read_files.items()))


def merged(files: Read) -> Read:
    """Return one entry per name, with the rows of all its files; other contents are those of the last file."""
    together: dict[str, Measurements] = {}
    for name, content in files:
        rows = (*together[name].rows, *content.rows) if name in together else content.rows
        together[name] = content.model_copy(update={"rows": rows})
    return tuple(together.items())


def in_folder(path: Path) -> list[Path]:
    """Return [path] for a file, or the YAML files of a folder sorted by name. Raise InputError if it has none."""
    if not path.is_dir():
        return [path]
    paths = sorted(child for child in path.iterdir() if child.suffix in MEASUREMENTS and child.is_file())
    if not paths:
        raise InputError("this folder holds no measurements", file=str(path), need="files that end in .yaml")
    return paths


def _shared(files: dict[Path, Measurements]) -> list[Problem]:
    """Return one problem for each pair of files with common row ids, on the later one, with the number of these ids and
    the first of them; the first file owns an id.
    """
    owner: dict[str, Path] = {}
    twice: dict[tuple[Path, Path], list[str]] = {}
    for path, content in files.items():
        for row in content.rows:
            if owner.setdefault(row.id, path) != path:
                twice.setdefault((owner[row.id], path), []).append(row.id)
    return [
        Problem(f"{len(ids)} ids stand in {first}, too", file=str(path), got=ids[0], hint="give one of the files only")
        for (first, path), ids in twice.items()
    ]
