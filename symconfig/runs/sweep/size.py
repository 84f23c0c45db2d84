"""How many GPUs of which cluster see so many tokens before a deadline, and what more or fewer of them cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.measured.assumptions import COUNTING
from symconfig.measured.judge import flops_per_token
from symconfig.runs.sweep import run
from symconfig.runs.sweep.columns import HOUR_S, Value
from symconfig.runs.sweep.job import Point, digest_of, point_id, with_defaults
from symconfig.runs.sweep.run import Row, Status, Task

BATCH_TOKENS = 4 * 2**20  # of a step, where nobody says: Llama 2's 4M at all its sizes (arXiv 2307.09288, section 2.2)
EVEN = 64  # sequences: a batch is a multiple of so many, so that it divides among many ranks
MOST_GPUS = 16_384
Progress = Callable[[int, int], None]  # done, so far asked
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]?)", re.ASCII)
DAY_S = _UNITS_S["d"]
MOST_S = 100 * 365 * DAY_S
MOST_TOKENS = 1e18


def time_s(field: str, text: str) -> float:
    """Return the seconds of a text such as `30d`; units s, m, h, d, w, days by default. Raises InputError naming
    `field`, also for 0 and over 100 years.
    """
    span_s = _amount(text, _UNITS_S, "d")
    if span_s is None or not 0 < span_s <= MOST_S:
        raise InputError("wrong value", field=field, got=text, need="a time as 30d, 12h or 2w")
    return float(span_s)


def token_count(field: str, text: str) -> int:
    """Return the tokens of a text such as `2T` or `1e12`; units K, M, B or G, T, in either case. Raises InputError
    naming `field` for other texts, fractions of a token, and numbers not from 1 to 1e18.
    """
    number = _amount(text, _COUNTS, "")
    if number is None or not 1 <= number <= MOST_TOKENS or number.denominator > 1:
        need = "a whole number of tokens as 2T, 500B or 1e12"
        raise InputError("wrong value", field=field, got=text, need=need)
    return int(number)


def _amount(text: str, units: dict[str, int], unit: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text.strip())
    factor = units.get(match[2].lower() or unit) if match else None
    return Fraction(match[1]) * factor if match and factor is not None else None  # exact: 1.1T is whole


@dataclass(frozen=True, slots=True)
class Question:
    """The inputs of `size`. job: fields of a JOB.yaml without cluster and gpus, with global_batch_size and seq_length.

    goodput: share of the time in which steps run; failures, evaluation, saving and waiting for data take the rest.
    prices: per GPU-hour, by cluster.
    """

    model: ModelDescriptor
    clusters: Mapping[str, ClusterDescriptor]
    job: Mapping[str, Any]
    tokens: int
    deadline_s: float
    goodput: float = 1.0
    most_gpus: int = MOST_GPUS
    prices: Mapping[str, float] = field(default_factory=dict)

    @property
    def step_tokens(self) -> int:
        return int(self.job["global_batch_size"]) * int(self.job["seq_length"])

    @property
    def steps(self) -> int:
        return ceil(self.tokens / self.step_tokens)

    def run_s(self, step_s: float) -> float:
        """Return the seconds of the whole run, with the time lost to `goodput`."""
        return self.steps * step_s / self.goodput


@dataclass(frozen=True, slots=True)
class Tried:
    """One number of GPUs. reason: why there is no plan, else "". failed: whether that is a defect or a lost process, so
    that nothing is known of this number. run_s, slow_s: seconds of the whole run as predicted, and at the upper end of
    the step's 90 % interval. cost: None without a price.
    """

    gpus: int
    reason: str = ""
    failed: bool = False
    values: Mapping[str, Value] = field(default_factory=dict)
    run_s: float = float("inf")
    slow_s: float = float("inf")
    gpu_hours: float = float("inf")
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class OfCluster:
    """The answer for one cluster. tried: by rising GPUs. least: fewer GPUs are too slow even at peak FLOP/s.
    smallest: the fewest in time as predicted; surest: also with the step at the upper end of its 90 % interval;
    None if none is.
    """

    name: str
    least: int
    tried: tuple[Tried, ...]
    smallest: Tried | None
    surest: Tried | None

    @property
    def planned(self) -> tuple[Tried, ...]:
        return tuple(one for one in self.tried if not one.reason)

    @property
    def fastest(self) -> Tried | None:
        return min(self.planned, key=lambda one: one.run_s, default=None)


@dataclass(frozen=True, slots=True)
class Size:
    question: Question
    clusters: tuple[OfCluster, ...]

    @property
    def met(self) -> bool:
        return any(one.smallest is not None for one in self.clusters)


def even_batch(tokens: int, seq_length: int) -> int:
    """Return a batch of about `tokens` tokens in sequences: a multiple of EVEN, or below that a power of two."""
    sequences = max(1.0, tokens / seq_length)
    return EVEN * round(sequences / EVEN) if sequences >= EVEN else 2 ** max(0, round(sequences).bit_length() - 1)


def size(question: Question, progress: Progress, jobs: int | None = None) -> Size:
    """Return, by cluster, the numbers of GPUs tried and the fewest that meet the deadline; tried in rounds, all
    clusters in parallel. jobs: worker processes; None: one per core. progress: called with (done, asked so far) after
    each plan. Raises FailedError if no worker process starts.
    """
    searches = [_Search(question, name, cluster) for name, cluster in question.clusters.items()]
    total = done = 0
    while work := {point.id: (search, point) for search in searches for point in search.next()}:
        total += len(work)
        for row in run.run_tasks([Task.of(point) for _, point in work.values()], jobs):
            search, point = work[row.id]
            search.heard(int(point.job["gpus"]), row)
            done += 1
            progress(done, total)
    return Size(question, tuple(search.answer() for search in searches))


class _Search:
    """The search over one cluster's numbers of GPUs; `tried` grows with each row."""

    def __init__(self, question: Question, name: str, cluster: ClusterDescriptor) -> None:
        self.question = question
        self.name = name
        self.cluster = cluster
        self.least = _least(question, cluster)
        self.every = lattice(cluster, 1, question.most_gpus)
        self.sizes = tuple(size for size in self.every if size >= self.least)
        self.tried: dict[int, Tried] = {}
        self.digests = digest_of(question.model), digest_of(cluster)

    def next(self) -> list[Point]:
        """Return the jobs to plan next, one for each number of GPUs, until the fewest that meet the deadline as
        predicted, and with the step's upper end, are known; [] when done. If no allowed number of GPUs reaches the peak
        FLOP/s that the deadline needs, the largest are tried until one has a plan.
        """
        q = self.question
        if not self.sizes:
            return [self._point(size) for size in descending(self.every, self._rates(False))]
        needed = q.step_tokens * q.steps / q.deadline_s / q.goodput
        both = [following(self.sizes, self._rates(slow), needed) for slow in (False, True)]
        return [self._point(size) for size in dict.fromkeys(size for sizes in both for size in sizes)]

    def _rates(self, slow: bool) -> dict[int, float]:
        """Return {GPUs: tokens per second per GPU} of the tried ones, 0 without a plan; slow: at the upper end of the
        step's interval.
        """
        q = self.question
        return {
            size: q.step_tokens * q.steps / q.goodput / (one.slow_s if slow else one.run_s) / size
            for size, one in self.tried.items()
        }

    def _point(self, gpus: int) -> Point:
        job, model = {**self.question.job, "cluster": self.name, "gpus": gpus}, self.question.model
        return Point(point_id(with_defaults(job), *self.digests), job, model, self.cluster)

    def heard(self, gpus: int, row: Row) -> None:
        """Record the result for `gpus` GPUs in `tried`: times, GPU-hours and cost, or the reason if there is no plan.
        slow_s is run_s if the step has no interval; cost is None unless the cluster's name, as given or its own, is
        priced.
        """
        q = self.question
        if row.status is not Status.PLANNED:
            self.tried[gpus] = Tried(gpus, row.reason, failed=row.status in (Status.DEFECT, Status.LOST))
            return
        step_s, slow_s = (float(str(row.values[name] or row.values["step_s"])) for name in ("step_s", "step_high_s"))
        run_s = q.run_s(step_s)
        hours = gpus * run_s / HOUR_S
        price = q.prices.get(self.name, q.prices.get(self.cluster.name))
        cost = None if price is None else price * hours
        self.tried[gpus] = Tried(
            gpus=gpus, reason="", values=row.values, run_s=run_s, slow_s=q.run_s(slow_s), gpu_hours=hours, cost=cost
        )

    def answer(self) -> OfCluster:
        ordered = tuple(self.tried[size] for size in sorted(self.tried))
        limit_s = self.question.deadline_s
        smallest = next((one for one in ordered if one.run_s <= limit_s), None)
        surest = next((one for one in ordered if one.slow_s <= limit_s), None)
        return OfCluster(self.name, self.least, ordered, smallest, surest)


def _least(question: Question, cluster: ClusterDescriptor) -> int:
    """Return the fewest GPUs that could meet the deadline at the peak FLOP/s of the job's precision; 1 if the peak is
    unknown. A pinned precision counts before the job's; none means bf16 or fp16, auto the fastest.
    """
    precision = question.job.get("pins", {}).get("precision") or question.job.get("precision") or ""
    usual = ("bf16", "fp16")
    names = {"": usual, "auto": (*usual, *LOW_PRECISION)}.get(str(precision), (str(precision),))
    peaks = [peak.value for name in names if (peak := getattr(cluster.gpu.peak_flops, name, None)) is not None]
    if not peaks:
        return 1
    work = question.tokens * flops_per_token(question.model, int(question.job["seq_length"]), COUNTING)
    return max(1, ceil(work / (float(max(peaks)) * question.deadline_s * question.goodput)))


def frontier(tried: Iterable[Tried], cost: Callable[[Tried], float]) -> list[Tried]:
    """Return the Pareto front of `tried` in run_s and `cost`, the fastest first: those cheaper than all faster ones."""
    best: list[Tried] = []
    for one in sorted(tried, key=lambda one: (one.run_s, cost(one), one.gpus)):
        if not best or cost(one) < cost(best[-1]):
            best.append(one)
    return best


EVERY_NODE = 64  # as many nodes: every number of them; beyond, steps of an eighth of a power of two
HOPE = 1.1  # a number is tried if it is in time with so much more from each GPU than the best that was seen
AT_ONCE = 4  # of a cluster
BEYOND = 2  # rungs after the first that is surely in time: what more GPUs would cost
Rates = Mapping[int, float]  # tokens a second of each GPU, at the slow end of what is likely; 0: no plan


def lattice(cluster: ClusterDescriptor, least: float, most: int) -> tuple[int, ...]:
    """Return the numbers of GPUs from `least` to `most` (at most the cluster's max_gpus), rising: powers of two below a
    node, then whole nodes. Up to EVERY_NODE nodes each number is taken, above steps of an eighth of a power of two.
    """
    node, limit = cluster.gpus_per_node, min(most, cluster.max_gpus or most)
    inside = [size for size in (1, 2, 4, 8, 16, 32, 64) if size < node]
    nodes, count = list[int](), 1
    while node * count <= limit:
        nodes.append(count)
        count += 1 if count < EVERY_NODE else 2 ** (count.bit_length() - 4)
    return tuple(size for size in (*inside, *(node * count for count in nodes)) if least <= size <= limit)


def ladder(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the smallest, the largest, and all sizes of the form 2^n or 3 * 2^n between."""
    return tuple(size for size in sizes if (size // (size & -size)) <= 3 or size in (sizes[0], sizes[-1]))


def following(sizes: Sequence[int], rates: Rates, needed: float) -> tuple[int, ...]:
    """Return the numbers of GPUs to try next, at most AT_ONCE, the smallest first; () when done. rates: {tried: tokens
    per second per GPU}; needed: of all GPUs. First the untried sizes of `ladder`, up to BEYOND after its first that
    reaches `needed`; then sizes below the smallest that does, if they would with HOPE times the best rate.
    """
    rungs = ladder(sizes)
    met = [number for number, size in enumerate(rungs) if size * rates.get(size, 0.0) >= needed]
    until = rungs[: met[0] + 1 + BEYOND] if met else rungs
    if left := [size for size in until if size not in rates]:
        return tuple(left[:AT_ONCE])
    best = max(rates.values(), default=0.0)
    smallest = min((size for size, rate in rates.items() if size * rate >= needed), default=float("inf"))
    hopeful = [size for size in sizes if size < smallest and size not in rates and size * best * HOPE >= needed]
    return tuple(hopeful[:AT_ONCE])  # the smallest first: where one is in time, larger ones do not matter


def descending(sizes: Sequence[int], rates: Rates) -> tuple[int, ...]:
    """Return the largest untried rungs of the ladder, at most AT_ONCE, the largest first; () once one has a plan, or
    all are tried."""
    left = [size for size in reversed(ladder(sizes)) if size not in rates]
    return () if any(rates.values()) else tuple(left[:AT_ONCE])
