"""The fastest pipeline over two kinds of GPUs: degrees, the order of the kinds, and the layers of every stage.

Degrees and options are weighed and refined on a machine of the kinds' mean rates. Its front runners are then laid over
both kinds in both orders, each stage priced and its memory judged on its own kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import gcd

from symconfig.cost.machine import machine
from symconfig.cost.table import Choice
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import MixedCluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.plans.choices import Precision
from symconfig.solve.branch_and_bound import branch_and_bound
from symconfig.solve.choice import Family, family
from symconfig.solve.incumbents import Incumbents
from symconfig.solve.infeasible import with_pins
from symconfig.solve.mixed.across import Across
from symconfig.solve.mixed.layers import best_layers
from symconfig.solve.mixed.machines import border, mean
from symconfig.solve.pieces import WHOLE, recompute_choices
from symconfig.solve.pins import Pins, parse
from symconfig.solve.prospect import Prospect
from symconfig.solve.refine import refine
from symconfig.solve.run import Progress, precisions, requests
from symconfig.solve.search import resolved
from symconfig.solve.space import Request, divisors

FAMILIES = 6  # families per number of stages that are distributed over both kinds
FAR = 1.15  # times the best step: slower candidates are dropped
CHUNKS = ((1, 1), (2, 2**31))  # ranges of chunks per stage; single chunks apart, as they can be the most uneven
ORDERS = ((0, 1), (1, 0))  # of the cluster's kinds along the pipeline


@dataclass(frozen=True, slots=True)
class Placed:
    """A candidate over both kinds. order: indices of the cluster's kinds along the pipeline."""

    across: Across
    order: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mix:
    """The result of a search over two kinds. ranked: the best candidate of each family, the fastest first.

    jobs: the job as resolved for each kind. candidates, feasible: numbers evaluated on the mean machine, and of those
    that fit; laid: number of candidates whose layers were distributed over both kinds.
    """

    ranked: tuple[Placed, ...]
    jobs: tuple[Job, ...]
    candidates: int
    feasible: int
    laid: int


def pipelines(mixed: MixedCluster) -> list[int]:
    """Return the numbers of stages for which each kind hosts whole stages, in rising order."""
    together = gcd(*(share.gpus for share in mixed.shares))
    return [mixed.gpus // each for each in reversed(divisors(together))]


def search(
    model: ModelDescriptor,
    mixed: MixedCluster,
    job: Job,
    *,
    top: int = 5,
    progress: Progress | None = None,
) -> Mix:
    """Return the fastest plans over both kinds, up to `top` from different families of degrees.

    Raises InputError for a job that can never run, and InfeasibleError if nothing fits.
    """
    agreed = job.model_copy(update={"precision": _precision(mixed, job), "gpus": mixed.gpus})
    jobs = tuple(resolved(model, share.cluster, agreed) for share in mixed.shares)
    solving = _Solving(model, mixed, jobs, parse(job.pins))
    for precision in solving.precisions:
        for pp in pipelines(mixed):
            solving.weigh(precision, pp, progress)
    solving.lay_out(progress)
    if not solving.best:
        raise _nothing(mixed, solving, with_pins(job))
    return Mix(tuple(solving.ranked()[:top]), jobs, solving.candidates, solving.feasible, solving.laid)


def _precision(mixed: MixedCluster, job: Job) -> str:
    """Return the job's precision, else bf16 if both kinds have it, else fp16."""
    if job.precision is not None:
        return job.precision
    every = all(share.cluster.gpu.peak_flops.bf16 is not None for share in mixed.shares)
    return "bf16" if every else "fp16"


@dataclass(slots=True)
class _Solving:
    """The state of a search. fronts: the best candidates on the mean machine, each with its request on either kind.

    best: the fastest candidate over both kinds of each family.
    """

    model: ModelDescriptor
    mixed: MixedCluster
    jobs: tuple[Job, ...]
    pins: Pins
    fronts: list[tuple[Prospect, tuple[Request, Request]]] = field(default_factory=list)
    best: dict[Family, Placed] = field(default_factory=dict)
    candidates: int = 0
    feasible: int = 0
    laid: int = 0

    @property
    def precisions(self) -> list[Precision]:
        """Return the precisions that both kinds support and the pins allow."""
        clusters = [share.cluster for share in self.mixed.shares]
        one, other = (precisions(*each, self.pins) for each in zip(clusters, self.jobs, strict=True))
        return [name for name in one if name in other]

    @property
    def best_s(self) -> float:
        """Return the fastest step so far in seconds; infinite before the first."""
        return min((placed.across.step_s for placed in self.best.values()), default=float("inf"))

    def ranked(self) -> list[Placed]:
        """Return the best candidate of each family, the fastest first."""
        return sorted(self.best.values(), key=lambda placed: (placed.across.step_s, placed.across.candidates[0].order))

    def _requests(self, precision: Precision, pins: Pins) -> list[tuple[Request, Request]]:
        """Return pairs of requests with the same options on the first and the second kind; others are left out."""
        one, other = (
            requests(self.model, share.cluster, job, precision, pins)
            for share, job in zip(self.mixed.shares, self.jobs, strict=True)
        )
        same = {request.extras: request for request in other}
        return [(request, same[request.extras]) for request in one if request.extras in same]

    def weigh(self, precision: Precision, pp: int, progress: Progress | None) -> None:
        """Search `pp` stages on the mean machine, simulate, and append its best candidates to `fronts`.

        Counts are updated. Nothing happens if the pins exclude this number of stages.
        """
        each = [machine(share.cluster, precision, gpus=self.mixed.gpus) for share in self.mixed.shares]
        gpu = mean(each, [share.gpus for share in self.mixed.shares])
        for chunks in CHUNKS:
            pins = self._pins(pp, chunks)
            pairs = [] if pins is None else self._requests(precision, pins)
            if not pairs:
                continue
            weighed = Incumbents(FAMILIES, FAMILIES)
            branch_and_bound([pair[0] for pair in pairs], gpu, weighed, progress)
            refine(weighed)
            self.candidates += weighed.candidates
            self.feasible += weighed.feasible
            of = {pair[0].extras: pair for pair in pairs}
            self.fronts += [(front, of[front.extras]) for front in weighed.best]

    def _pins(self, pp: int, chunks: tuple[int, int]) -> Pins | None:
        """Return the job's pins with this number of stages and a range of chunks per stage; None if they contradict."""
        low, high = self.pins.ranges.get("vpp", chunks)
        vpp = max(low, chunks[0]), min(high, chunks[1])
        if vpp[0] > vpp[1] or not self.pins.allows("pp", pp):
            return None
        return replace(self.pins, ranges={**self.pins.ranges, "pp": (pp, pp), "vpp": vpp})

    def lay_out(self, progress: Progress | None) -> None:
        """Distribute the candidates of `fronts` over both kinds and keep the best of each family in `best`.

        Single-chunk candidates come first, then by score. Those slower than FAR times the best step are skipped.
        """
        # A candidate is hardly ever slower on the mean machine than over both kinds.
        ordered = sorted(self.fronts, key=lambda front: (front[0].degrees.vpp > 1, front[0].order))
        for number, (front, pair) in enumerate(ordered):
            if progress:
                progress(
                    f"{self.candidates:,} candidates weighed, {self.laid:,} laid over both kinds", number / len(ordered)
                )
            if front.step_s > FAR * self.best_s:
                continue
            for across, order in self._orders_and_policies(front, pair):
                self.laid += 1
                self._keep(best_layers(across, self._below_s(front)), order)

    def _below_s(self, front: Prospect) -> float:
        """Return the step in seconds that a candidate must beat: its family's best and FAR times the best of all."""
        mine = self.best.get(family(front))
        return min(FAR * self.best_s, float("inf") if mine is None else mine.across.step_s)

    def _keep(self, across: Across | None, order: tuple[int, int]) -> None:
        if across is not None and across.step_s < self._below_s(across.candidates[0]):
            self.best[family(across.candidates[0])] = Placed(across, order)

    def _orders_and_policies(
        self, front: Prospect, pair: tuple[Request, Request]
    ) -> Iterator[tuple[Across, tuple[int, int]]]:
        """Yield (candidate over both kinds, order) for both orders of the kinds and each recompute policy.

        Policies that a constraint refuses on either kind are left out; with equal kinds there is one order.
        """
        shares = self.mixed.shares
        each = [machine(share.cluster, front.request.precision, gpus=self.mixed.gpus) for share in shares]
        between = border(self.mixed, each)
        same = shares[0].cluster == shares[1].cluster
        for policy in _policies(front):
            both = [replace(policy, request=own, machine=gpu) for own, gpu in zip(pair, each, strict=True)]
            if any(one.refused() for one in both):
                continue
            for order in ORDERS[:1] if same else ORDERS:
                ahead = shares[order[0]].gpus * front.degrees.pp // self.mixed.gpus
                yield Across((both[order[0]], both[order[1]]), ahead, between), order


def _policies(front: Prospect) -> Iterator[Prospect]:
    """Yield the candidate with its own recompute policy, then with the others that pins and target allow."""
    yield front
    choices = recompute_choices(front.request)
    yield from (
        replace(front, choice=choice, block_layers=0)
        for choice in choices
        if front.block_layers or choice != front.choice
    )
    if front.request.limits.block_recompute and Choice() in choices and WHOLE in choices and not front.block_layers:
        yield replace(front, choice=WHOLE, block_layers=1)


def _nothing(mixed: MixedCluster, solving: _Solving, pinned: str) -> InfeasibleError:
    """Return the error why there is no plan: no pipeline has whole stages on each kind, or none fits in memory."""
    stages = ", ".join(map(str, pipelines(mixed)))
    if not solving.candidates:
        what = f"no pipeline lies over both kinds{pinned}: each hosts whole stages of as many GPUs"
        need = f"a model that goes with {stages} stages"
        return InfeasibleError(what, field="cluster", got=mixed.name, need=need)
    what = f"no pipeline of {stages} stages fits in the memory of both kinds{pinned}"
    hint = "each kind by itself, more GPUs, or --memory-risk 1"
    return InfeasibleError(what, field="cluster", got=mixed.name, hint=hint)
