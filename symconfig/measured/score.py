"""Predictions against measured runs: `python -m symconfig.measured.score FILES...` prints the scores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from symconfig.descriptor.measurements import Row, load_measurements
from symconfig.errors import InputError
from symconfig.measured.cases import Case, case
from symconfig.solve.predict import Prediction, predict
from symconfig.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its prediction. time: seconds (or relative time where only MFU is stated) predicted and measured.

    memory: bytes predicted and measured; oom: whether the run is predicted to run out of memory.
    """

    row: Row
    case: Case
    prediction: Prediction
    time: tuple[float, float] | None
    memory: tuple[float, float] | None
    oom: bool


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors over n rows; worst: the largest one above, low: the largest underestimate (negative)."""

    n: int
    mape: float
    bias: float
    worst: float
    low: float


@dataclass(frozen=True, slots=True)
class Oom:
    """found of `ran_out` runs; alarms of `ran` runs."""

    ran_out: int
    found: int
    ran: int
    alarms: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """regret: measured time of the predicted best over the best one's, less one; None: the pick ran out of memory."""

    name: str
    n: int
    tau: float
    regret: float | None


@dataclass(frozen=True, slots=True)
class Source:
    """Scores of one file. layer: rows that time one layer's passes."""

    name: str
    rows: tuple[Judged, ...]
    skipped: tuple[tuple[str, str], ...]
    time: Error | None
    layer: Error | None
    memory: Error | None
    oom: Oom | None
    sweeps: tuple[Sweep, ...]


Scores = tuple[Source, ...]


def score(paths: Sequence[Path]) -> Scores:
    """Every file's scores. A row that cannot be predicted is skipped with its reason."""
    return tuple(source for path in paths if (source := _source(path)) is not None)


def _source(path: Path) -> Source | None:
    file = load_measurements(path)
    if not file.validated:
        return None
    judged, skipped = [], []
    for row in file.rows:
        try:
            judged.append(judge(path.stem, row))
        except InputError as error:
            skipped.append((row.id, str(error).splitlines()[0]))
    names = dict.fromkeys(item.row.sweep for item in judged if item.row.sweep)
    layers = [pair for item in judged for pair in _layers(item)]
    return Source(
        path.stem,
        tuple(judged),
        tuple(skipped),
        _error([item.time for item in judged if item.time]),
        _error(layers),
        _error([item.memory for item in judged if item.memory]),
        _oom(judged),
        tuple(_sweep(name, [item for item in judged if item.row.sweep == name]) for name in names),
    )


def judge(source: str, row: Row) -> Judged:
    """One row. Raises InputError when it cannot be predicted."""
    what = case(source, row)
    limit = what.cluster.gpu.memory_bytes.value
    what, prediction = _tuned(what, limit)
    return Judged(
        row,
        what,
        prediction,
        _time(row, what, prediction),
        _memory(row, prediction),
        prediction.predicted.device_bytes > limit,
    )


def _tuned(what: Case, limit: float) -> tuple[Case, Prediction]:
    """The case as it stands, or with the fastest of its other configurations that fits."""
    prediction = predict(what.model, what.cluster, what.configuration)
    for other in what.others:
        tried = predict(what.model, what.cluster, other)
        if tried.predicted.device_bytes <= limit and tried.predicted.step_s < prediction.predicted.step_s:
            what, prediction = replace(what, configuration=other), tried
    return what, prediction


def _time(row: Row, what: Case, prediction: Prediction) -> tuple[float, float] | None:
    measured = row.measured.step_s or row.derived.step_s
    rate = row.measured.tokens_per_s_per_gpu or row.derived.tokens_per_s_per_gpu
    c = what.configuration
    if measured is None and rate is not None:
        measured = c.global_batch * c.seq_length / (rate * c.gpus)
    return None if measured is None else (prediction.predicted.step_s, measured)


def _layers(item: Judged) -> list[tuple[float, float]]:
    m, p = item.row.measured, item.prediction
    pairs = ((p.layer_forward_s, m.layer_forward_ms), (p.layer_backward_s, m.layer_backward_ms))
    return [(seconds, ms / 1e3) for seconds, ms in pairs if ms is not None]


def _memory(row: Row, prediction: Prediction) -> tuple[float, float] | None:
    measured = row.measured
    peak = prediction.stage_bytes[-1] if measured.memory_rank == "last" else max(prediction.stage_bytes)
    if measured.peak_allocated_gib is not None:
        return peak, measured.peak_allocated_gib * GIB
    if measured.peak_reserved_gib is not None:
        return prediction.predicted.reserved_bytes, measured.peak_reserved_gib * GIB
    if measured.memory_gb is not None:
        return peak, measured.memory_gb * GIB
    peaks = (measured.activation_peak_mib_first_rank, measured.activation_peak_mib_last_rank)
    if any(peaks):  # without weights, gradients and optimizer state; the worse of both ends
        live = sum(prediction.predicted.memory[name] for name in ("activations", "logits and loss", "working set"))
        return live, max(value or 0.0 for value in peaks) * MIB
    return None


def _error(pairs: Sequence[tuple[float, float]]) -> Error | None:
    if not pairs:
        return None
    errors = [predicted / measured - 1 for predicted, measured in pairs]
    worst = max(errors, key=abs)
    return Error(len(errors), mean(map(abs, errors)), mean(errors), worst, min(0.0, *errors) if errors else 0.0)


def _oom(judged: Sequence[Judged]) -> Oom | None:
    out = [item for item in judged if item.row.measured.oom]
    if not out:
        return None
    ran = [item for item in judged if not item.row.measured.oom]
    return Oom(len(out), sum(item.oom for item in out), len(ran), sum(item.oom for item in ran))


def _sweep(name: str, judged: Sequence[Judged]) -> Sweep:
    """Ranks by seconds, or by 1/MFU where a source prints nothing else."""

    def seconds(item: Judged) -> float | None:
        if item.row.measured.oom:
            return None
        if item.time:
            return item.time[1]
        return 1 / item.row.measured.mfu if item.row.measured.mfu else None

    timed = [(item.prediction.predicted.step_s, t) for item in judged if (t := seconds(item)) is not None]
    fits = [item for item in judged if not item.oom]
    pick = min(fits or judged, key=lambda item: item.prediction.predicted.step_s)
    found = seconds(pick)
    return Sweep(name, len(judged), kendall(timed), found / min(t for _, t in timed) - 1 if found else None)


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's tau-b of predicted against measured."""
    score = left = right = 0
    for i, (a, b) in enumerate(pairs):
        for c, d in pairs[:i]:
            x, y = (a > c) - (a < c), (b > d) - (b < d)
            score, left, right = score + x * y, left + abs(x), right + abs(y)
    return score / (left * right) ** 0.5 if left and right else 0.0


def table(scores: Scores) -> str:
    """For people; percent."""
    head = f"{'source':24}{'rows':>5}{'skip':>5}   {'time':>4}{'mape':>7}{'bias':>7}{'worst':>7}"
    lines = [head + f"   {'mem':>4}{'mape':>7}{'bias':>7}{'low':>7}"]
    for source in scores:
        line = f"{source.name:24}{len(source.rows):5}{len(source.skipped):5}   "
        line += _cells(source.time, "worst") + "   " + _cells(source.memory, "low")
        lines.append(line.rstrip())
        if source.layer:
            lines.append(f"{'  one layer':37}{_cells(source.layer, 'worst')}")
        if source.oom:
            o = source.oom
            lines.append(f"  out of memory: {o.found} of {o.ran_out} found, {o.alarms} false alarms of {o.ran}")
        for sweep in source.sweeps:
            regret = "pick runs out of memory" if sweep.regret is None else f"regret {100 * sweep.regret:.1f} %"
            lines.append(f"  {sweep.name}: {sweep.n} rows, tau {sweep.tau:.2f}, {regret}")
    return "\n".join(lines)


def _cells(error: Error | None, last: str) -> str:
    """Count, MAPE, bias and the worst row (or the worst underestimate)."""
    if error is None:
        return " " * 25
    shown: float = getattr(error, last)
    return f"{error.n:4}{100 * error.mape:7.1f}{100 * error.bias:+7.1f}{100 * shown:+7.1f}"


def main(arguments: Sequence[str]) -> int:
    scores = score([Path(name) for name in arguments])
    print(table(scores))
    for source in scores:
        for row, reason in source.skipped:
            print(f"skipped {row}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
