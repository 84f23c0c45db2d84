"""Predictions against measured runs, scored by source, never pooled."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import mean, median

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Limits
from symconfig.descriptor.measurements import Measurements
from symconfig.errors import InputError
from symconfig.format import grouped
from symconfig.measured.judge import Judged, judge
from symconfig.measured.row_options import known
from symconfig.solve import choice
from symconfig.solve.predict import as_found
from symconfig.solve.space import fitting
from symconfig.solve.usual import usual

TARGETS = "the file says `validate: false`: targets, not runs"


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of some rows of one file. layer: rows that time one layer's passes."""

    rows: tuple[Judged, ...]
    time: Error | None
    layer: Error | None
    memory: Error | None
    oom: Oom | None


@dataclass(frozen=True, slots=True)
class Source(Scored):
    """Scores of one file: of all its rows, and of those apart that rest on an assumption and that do not.

    skipped: ids of rows that cannot be predicted, each with the reason.
    """

    name: str
    skipped: tuple[tuple[str, str], ...]
    sweeps: tuple[Sweep, ...]
    growths: tuple[Growth, ...]
    stated: Scored
    assumed: Scored


def source(name: str, file: Measurements) -> Source:
    """Return the scores of one file: of all rows, of rows without and with assumptions, of its sweeps with at least two
    timed runs, and of growths. name: also selects the file's assumptions. If the file is marked as not validated, every
    row is skipped, with the reason TARGETS.
    """
    judged, skipped = predicted(name, file) if file.validated else ([], [(row.id, TARGETS) for row in file.rows])
    whole = scored(judged)
    sweeps = grouped((item.row.sweep, item) for item in judged if item.row.sweep)
    return Source(
        **{field.name: getattr(whole, field.name) for field in fields(whole)},
        name=name,
        skipped=tuple(skipped),
        sweeps=tuple(found for each, rows in sweeps.items() if (found := sweep(each, rows)) is not None),
        growths=growths(judged),
        stated=scored([item for item in judged if not item.assumed]),
        assumed=scored([item for item in judged if item.assumed]),
    )


def predicted(
    name: str, file: Measurements, cluster: ClusterDescriptor | None = None
) -> tuple[list[Judged], list[tuple[str, str]]]:
    """Return the predicted rows and, for those whose prediction raises InputError, (id, first line of the reason).
    cluster: used for rows that state its name or an alias as GPU, if the zoo has no cluster of its name; else ignored.
    """
    named = () if cluster is None or known(cluster.name) else (cluster.name, *cluster.aliases)
    judged, skipped = list[Judged](), list[tuple[str, str]]()
    for row in file.rows:
        try:
            judged.append(judge(name, row, cluster=cluster if row.cluster.gpu in named else None))
        except InputError as problem:
            skipped.append((row.id, str(problem).splitlines()[0]))
    return judged, skipped


def scored(judged: Sequence[Judged]) -> Scored:
    """Return the rows with their errors in step time, layer time and memory, and out-of-memory scores. A score is None
    if no row has its figure.
    """
    return Scored(
        tuple(judged),
        error([(item.row.id, item.time) for item in judged if item.time]),
        error([(item.row.id, pair) for item in judged for pair in item.layers]),
        error([(item.row.id, item.memory) for item in judged if item.memory]),
        oom(judged),
    )


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors (predicted / measured - 1) over n figures, as shares of one.

    worst: the largest either way; max: its absolute value. worst_under: the largest underestimate, 0 or more. max_id,
    worst_under_id: their rows. within_10, within_20: share of the figures that are off by at most 10 and 20 %.
    """

    n: int
    mape: float
    bias: float
    worst: float
    max: float
    max_id: str
    within_10: float
    within_20: float
    worst_under: float
    worst_under_id: str | None


@dataclass(frozen=True, slots=True)
class Oom:
    """Runs predicted to run out of memory at no margin: `found` of `ran_out` that did, `false_oom` of `ran` that did
    not; recall and false_oom_rate are the shares, None without such runs.
    """

    n: int
    ran_out: int
    found: int
    recall: float | None
    ran: int
    false_oom: int
    false_oom_rate: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Plans for one task. n: rows; timed: those that ran.

    pick: the fastest by prediction among those predicted to fit. regret: its measured time over the best one's, less
    one; None: it ran out of memory, or has no time. mape: of the predictions; median_mape: of the sweep's median time
    as the only prediction. choice, choice_ran_out, choice_regret: the same of what the planner's choice takes.
    """

    name: str
    n: int
    timed: int
    kendall_tau: float
    regret: float | None
    pick: str
    pick_ran_out: bool
    choice_regret: float | None
    choice: str
    choice_ran_out: bool
    best: str
    mape: float
    median_mape: float


@dataclass(frozen=True, slots=True)
class Growth:
    """One plan on more and more GPUs, each with as many microbatches.

    What its step took on the most, over what it took on the fewest, less one. rows: ids of both.
    """

    model: str
    gpus: tuple[int, int]
    rows: tuple[str, str]
    measured: float
    predicted: float


def error(figures: Sequence[tuple[str, tuple[float, float]]]) -> Error | None:
    """Return the relative errors of (id, (predicted, measured)) pairs, or None without any; if nothing is
    underestimated, worst_under is 0 and its id None.
    """
    if not figures:
        return None
    errors = [(predicted / measured - 1, name) for name, (predicted, measured) in figures]
    worst, worst_id = max(errors, key=lambda item: abs(item[0]))
    low, low_id = min(errors)
    shares = [abs(value) for value, _ in errors]
    return Error(
        n=len(errors),
        mape=mean(shares),
        bias=mean(value for value, _ in errors),
        worst=worst,
        max=abs(worst),
        max_id=worst_id,
        within_10=mean(float(value <= 0.1) for value in shares),
        within_20=mean(float(value <= 0.2) for value in shares),
        worst_under=max(-low, 0.0),
        worst_under_id=low_id if low < 0 else None,
    )


def oom(judged: Sequence[Judged]) -> Oom | None:
    """Return the out-of-memory scores of rows that state a GPU and time no single layer, or None if there are none."""
    whole = [item for item in judged if item.row.cluster.gpu and not item.layers]
    out = [item for item in whole if item.row.measured.oom]
    ran = [item for item in whole if not item.row.measured.oom]
    if not whole:
        return None
    found, alarms = sum(item.oom for item in out), sum(item.oom for item in ran)
    recall, false_rate = found / len(out) if out else None, alarms / len(ran) if ran else None
    return Oom(len(whole), len(out), found, recall, len(ran), alarms, false_rate)


def sweep(name: str, judged: Sequence[Judged]) -> Sweep | None:
    """Return how well predictions rank the plans of one sweep, or None if fewer than two rows ran and were timed.

    pick: the fastest by prediction among those predicted to fit, or among all if none is; choice: what the planner
    would choose (`chosen`). The regret of each is None if it ran out of memory or has no time. Tau and errors are of
    the timed rows only.
    """
    timed = {item.row.id: item.time for item in judged if item.time and not item.row.measured.oom}
    if len(timed) < 2:
        return None
    fits = [item for item in judged if not item.oom]
    pick = min(fits or judged, key=lambda item: item.prediction.predicted.step_s)
    seconds = {name: measured for name, (_, measured) in timed.items()}
    best = min(seconds, key=lambda name: seconds[name])
    middle = median(seconds.values())
    choice = chosen(judged)
    regret = {name: measured / seconds[best] - 1 for name, measured in seconds.items()}
    return Sweep(
        name=name,
        n=len(judged),
        timed=len(timed),
        kendall_tau=kendall(list(timed.values())),
        pick=pick.row.id,
        pick_ran_out=bool(pick.row.measured.oom),
        regret=regret.get(pick.row.id),
        best=best,
        mape=mean(abs(predicted / measured - 1) for predicted, measured in timed.values()),
        median_mape=mean(abs(middle / measured - 1) for measured in seconds.values()),
        choice=choice.row.id,
        choice_ran_out=bool(choice.row.measured.oom),
        choice_regret=regret.get(choice.row.id),
    )


def growths(judged: Sequence[Judged]) -> tuple[Growth, ...]:
    """Return, for each plan, the relative change of step time from the fewest to the most GPUs, measured and predicted.
    Timed runs of one model, cluster and software version whose plans differ only in the data-parallel degree, with
    equal numbers of microbatches, form a group; runs on equally many GPUs count by their median. Groups whose most GPUs
    are less than twice the fewest, and rows without stated GPUs, are left out.
    """

    def plan(item: Judged) -> Hashable:
        """Return what is the same of runs of one plan on other numbers of GPUs."""
        c, software = item.case.configuration, item.row.software
        alike = replace(c, dp=1, global_batch=c.global_batch // c.dp // c.micro * c.micro)
        return item.case.model, item.case.cluster.name, alike, software and software.version

    timed = (item for item in judged if item.time and item.row.cluster.gpus and not item.row.measured.oom)
    result = []
    for runs in grouped((plan(item), item) for item in timed).values():
        sizes = sorted({item.case.configuration.world_size for item in runs})
        if sizes[-1] < 2 * sizes[0]:
            continue
        ends = [[item for item in runs if item.case.configuration.world_size == n] for n in (sizes[0], sizes[-1])]
        (few, was), (many, became) = (
            tuple(median(item.time[which] for item in end if item.time) for which in (0, 1)) for end in ends
        )
        result.append(
            Growth(
                model=runs[0].row.model.name,
                gpus=(sizes[0], sizes[-1]),
                rows=(ends[0][0].row.id, ends[1][0].row.id),
                measured=became / was - 1,
                predicted=many / few - 1,
            )
        )
    return tuple(result)


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's tau-b of (predicted, measured) pairs, 0 if all values of one side are equal."""
    score = left = right = 0
    for i, (a, b) in enumerate(pairs):
        for c, d in pairs[:i]:
            x, y = (a > c) - (a < c), (b > d) - (b < d)
            score, left, right = score + x * y, left + abs(x), right + abs(y)
    return score / (left * right) ** 0.5 if left and right else 0.0


def chosen(judged: Sequence[Judged]) -> Judged:
    """Return the run that the planner would choose among those that fit within the default memory risk.

    If there are none, the one that is most likely to fit.
    """
    likely, points = [], []
    for item in judged:
        what, predicted = item.case, item.prediction.predicted
        point = as_found(what.model, what.cluster, what.configuration)
        request = replace(point.request, usual=usual(what.model, what.cluster, point.request.job))
        points.append(choice.scored(replace(point, request=request), predicted.step_s, predicted.device_bytes))
        likely.append(fitting(request, point.machine, [predicted.peak_bytes], what.cluster))
    fit = [point for point, chance in zip(points, likely, strict=True) if chance >= 1 - Limits().memory_risk]
    return judged[points.index(choice.first(fit)) if fit else likely.index(max(likely))]
