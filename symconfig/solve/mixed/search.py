"""The fastest pipeline over two kinds of GPUs: degrees, the order of the kinds, and the layers of every stage.

Degrees and options are weighed and refined on a machine of the kinds' mean rates. Its front runners are then laid over
both kinds in both orders, each stage priced and its memory judged on its own kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

from symconfig.cost.machine import Machine, Number, machine
from symconfig.cost.table import Choice
from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor, MixedCluster
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.plans.configuration import Precision
from symconfig.solve.branch_and_bound import branch_and_bound
from symconfig.solve.choice import Family, Incumbents, family, fewest_recomputed, refine, stages_of
from symconfig.solve.infeasible import with_pins
from symconfig.solve.mixed.across import Across
from symconfig.solve.pieces import PLAIN, WHOLE, recompute_choices
from symconfig.solve.pins import parse
from symconfig.solve.prospect import Prospect, recomputing
from symconfig.solve.run import Progress, precisions, requests
from symconfig.solve.search import resolved
from symconfig.solve.space import Request, divisors
from symconfig.solve.split import plainest
from symconfig.solve.stages import ROUNDING, fastest_cut, layers

FAMILIES = 6  # families per number of stages that are distributed over both kinds
FAR = 1.15  # times the best step: slower candidates are dropped
CHUNKS = ((1, 1), (2, 10**9 - 1))  # ranges of chunks per stage; single chunks apart, as they can be the most uneven
TRIES = 4  # solver runs per policy, each with less memory where the last result exceeded it
_LEVELS = 4  # network levels of a machine
_OF_PEAK = {"efficiency": "high_peak_flops", "low_efficiency": "peak_flops"}  # shares of a rate
_MOST = ("memory_bytes", "host_memory_bytes_per_gpu")
_LEAST = ("size", "bytes_per_s")  # suffixes of numbers of a level of which less is worse
ORDERS = ((0, 1), (1, 0))  # of the cluster's kinds along the pipeline


def pipelines(mixed: MixedCluster) -> list[int]:
    """Return the numbers of stages for which each kind hosts whole stages, in rising order."""
    together = gcd(*(share.gpus for share in mixed.shares))
    return [mixed.gpus // each for each in reversed(divisors(together))]


def search(model: ModelDescriptor, mixed: MixedCluster, job: Job, progress: Progress | None = None) -> MixedSearch:
    """Return the finished search for the fastest plans over both kinds of GPUs; its `best` has at least one.

    Every precision and number of stages is searched on a mean machine, then the layers of the best are distributed over
    both kinds. The job's gpus become the cluster's; an open precision is bf16 if both have it, else fp16. Raises
    InputError for a job that can never run, and InfeasibleError if nothing fits.
    """
    every = all(share.cluster.gpu.peak_flops.bf16 is not None for share in mixed.shares)
    precision = job.precision or ("bf16" if every else "fp16")
    agreed = job.model_copy(update={"precision": precision, "gpus": mixed.gpus})
    jobs = tuple(resolved(model, share.cluster, agreed) for share in mixed.shares)
    solving = MixedSearch(model, mixed, jobs)
    one, other = (precisions(share.cluster, own) for share, own in zip(mixed.shares, jobs, strict=True))
    for name in (name for name in one if name in other):
        for pp in pipelines(mixed):
            solving.weigh(name, pp, progress)
    solving.lay_out(progress)
    if solving.best:
        return solving
    stages, pinned = ", ".join(map(str, pipelines(mixed))), with_pins(job)
    if not solving.candidates:
        what = f"no pipeline lies over both kinds{pinned}: each hosts whole stages of as many GPUs"
        need = f"a model that goes with {stages} stages"
        raise InfeasibleError(what, field="cluster", got=mixed.name, need=need)
    what = f"no pipeline of {stages} stages fits in the memory of both kinds{pinned}"
    hint = "each kind by itself, more GPUs, or --memory-risk 1"
    raise InfeasibleError(what, field="cluster", got=mixed.name, hint=hint)


@dataclass(slots=True)
class MixedSearch:
    """The state of a search over two kinds. jobs: the job as resolved for each.

    fronts: the best candidates on the mean machine, each with its request on either kind. best: the fastest candidate
    over both kinds of each family. candidates, feasible: numbers evaluated on the mean machine, and of those that fit;
    laid: number of candidates whose layers were distributed over both kinds.
    """

    model: ModelDescriptor
    mixed: MixedCluster
    jobs: tuple[Job, ...]
    fronts: list[tuple[Prospect, tuple[Request, Request]]] = field(default_factory=list)
    best: dict[Family, Across] = field(default_factory=dict)
    candidates: int = 0
    feasible: int = 0
    laid: int = 0

    @property
    def best_s(self) -> float:
        """Return the fastest step so far in seconds; infinite before the first."""
        return min((across.step_s for across in self.best.values()), default=float("inf"))

    @property
    def ranked(self) -> list[Across]:
        """Return the best candidate of each family, the fastest first."""
        return sorted(self.best.values(), key=lambda across: (across.step_s, across.candidates[0].order))

    def weigh(self, precision: Precision, pp: int, progress: Progress | None) -> None:
        """Search `pp` stages on the mean machine, simulate, and append the best candidates to `fronts`.

        Single chunks and several chunks per stage are searched separately; each is skipped if pins exclude it or no
        options run on both kinds. `candidates` and `feasible` are increased. Raises InputError for pins that the target
        does not support.
        """
        each = [machine(share.cluster, precision, gpus=self.mixed.gpus) for share in self.mixed.shares]
        gpu = mean(each, [share.gpus for share in self.mixed.shares])
        for chunks in CHUNKS:
            pins = self._pins(pp, chunks)
            if pins is None:
                continue
            one, other = (
                requests(self.model, share.cluster, job.model_copy(update={"pins": pins}), precision)
                for share, job in zip(self.mixed.shares, self.jobs, strict=True)
            )
            same = {request.configuration: request for request in other}
            of = {options: (first, same[options]) for first in one if (options := first.configuration) in same}
            if not of:
                continue
            weighed = Incumbents(FAMILIES, FAMILIES)
            branch_and_bound([first for first, _ in of.values()], gpu, weighed, progress)
            refine(weighed)
            self.candidates += weighed.candidates
            self.feasible += weighed.feasible
            self.fronts += [(front, of[front.request.configuration]) for front in weighed.best]

    def _pins(self, pp: int, chunks: tuple[int, int]) -> dict[str, str] | None:
        """Return the job's pins with pp set to this number and vpp to the part of `chunks` (low, high) that they allow.

        None if they exclude the number of stages or all of the range.
        """
        pins = parse(self.jobs[0].pins)
        low, high = pins.ranges.get("vpp", chunks)
        low, high = max(low, chunks[0]), min(high, chunks[1])
        if low > high or not pins.allows("pp", pp):
            return None
        return {**self.jobs[0].pins, "pp": str(pp), "vpp": f"{low}..{high}"}

    def lay_out(self, progress: Progress | None) -> None:
        """Distribute the candidates of `fronts` over both kinds and keep the best of each family in `best`.

        Single-chunk candidates come first, then by score. Those slower on the mean machine than FAR times the best step
        are skipped, and results that slow, or no faster than the known one of the family, are dropped. Each order and
        policy tried adds one to `laid`.
        """
        # A candidate is hardly ever slower on the mean machine than over both kinds.
        ordered = sorted(self.fronts, key=lambda front: (front[0].configuration.vpp > 1, front[0].order))
        for number, (front, pair) in enumerate(ordered):
            if progress:
                progress(
                    f"{self.candidates:,} candidates weighed, {self.laid:,} laid over both kinds", number / len(ordered)
                )
            if front.step_s > FAR * self.best_s:
                continue
            mine = family(front)
            for across in self._orders_and_policies(front, pair):
                self.laid += 1
                known_s = self.best[mine].step_s if mine in self.best else float("inf")
                if better := best_layers(across, min(FAR * self.best_s, known_s)):
                    self.best[mine] = better

    def _orders_and_policies(self, front: Prospect, pair: tuple[Request, Request]) -> Iterator[Across]:
        """Yield the candidate over both kinds for both orders of the kinds and each recompute policy.

        Policies that a constraint refuses on either kind are left out; if both kinds have the same cluster there is one
        order.
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
                ahead = shares[order[0]].gpus * front.configuration.pp // self.mixed.gpus
                yield Across((both[order[0]], both[order[1]]), ahead, between, order)


def _policies(front: Prospect) -> Iterator[Prospect]:
    """Yield the candidate, then copies with each other recompute policy that pins and target allow.

    Last, full recompute of the first layers only, if the target can, no and full recompute are allowed, and the
    candidate itself does not have it; its number of layers, 1, only marks it.
    """
    yield front
    choices = recompute_choices(front.request)
    yield from (
        front.having(**recomputing(choice)) for choice in choices if front.block_layers or choice != front.choice
    )
    if front.request.limits.block_recompute and Choice() in choices and WHOLE in choices and not front.block_layers:
        yield front.having(**recomputing(WHOLE, 1))


def best_layers(across: Across, below_s: float) -> Across | None:
    """Return the candidate with the layers per stage that give the fastest step below `below_s` and fit.

    They must fit on both kinds. None if there are none. Tried are the split that it has, then those of the stage solver
    (`_proposed`) unless a layout is pinned.
    """
    best, pinned = None, across.candidates[0].request.pins.layout is not None
    own = across.laid(across.split, across.candidates[0].block_layers)
    for one in (own, *(() if pinned else _proposed(across))):
        if across.least_s(one.split) < below_s and one.fits and one.step_s < below_s:
            best, below_s = one, one.step_s
    return best


def _proposed(across: Across) -> Iterator[Across]:
    """Yield up to TRIES versions of the candidate with the layers per stage of the stage solver, until one fits.

    Each time a kind's memory in the solver is reduced by what the last version exceeded it. Ends if the solver finds
    none or the target cannot express it. With recompute of first layers, as few layers as possible are recomputed, at
    least 1 if the pins do not allow no recompute.
    """
    into, back = across.arrivals_s
    problem = stages_of(across.candidates, across.parts, across.kinds, (into + back).sum(axis=1))
    if problem.first:
        least = int(PLAIN not in recompute_choices(across.candidates[0].request))
        problem = fewest_recomputed(replace(problem, first=layers(problem.sequence)), least)
    for _ in range(TRIES):
        chunks = fastest_cut(problem)
        split = None if chunks is None else plainest(across.pp, chunks, problem.layouts)
        if split is None:
            return
        laid = across.laid(split, problem.first)
        yield laid
        if laid.fits:
            return
        blocks = tuple(
            replace(each, limit_bytes=each.limit_bytes - max(excess, 0.0) * (1 + ROUNDING))
            for each, excess in zip(problem.blocks, laid.excess, strict=True)
        )
        problem = replace(problem, blocks=blocks)


def mean(machines: Sequence[Machine], gpus: Sequence[int]) -> Machine:
    """Return a machine of the two kinds' mean numbers, weighted by their numbers of GPUs.

    Efficiencies are weighted by peak FLOP/s, too. Memory of GPU and host is the larger of both; network levels are the
    worse of both. What is no number is the first machine's.
    """
    one, other = machines
    shares = [number / sum(gpus) for number in gpus]

    def of(name: str) -> Any:
        """Return the mean of one number of both machines, by GPUs; for efficiencies by GPUs times peak FLOP/s.

        The number itself if both are equal; for memory the larger one.
        """
        first, second = (getattr(machine, name) for machine in machines)
        if first == second:
            return first
        if name in _MOST:
            return max(first, second)
        weights = shares
        if name in _OF_PEAK:
            rates = [share * getattr(machine, _OF_PEAK[name]) for share, machine in zip(shares, machines, strict=True)]
            weights = [rate / sum(rates) for rate in rates]
        return weights[0] * first + weights[1] * second

    numbers: dict[str, Any] = {
        name: of(name) for name in Machine.__slots__ if isinstance(getattr(one, name), int | float)
    }
    return replace(one, **numbers, levels=_worse(one.levels, other.levels))


def border(mixed: MixedCluster, machines: Sequence[Machine]) -> Machine:
    """Return a machine for messages between the kinds: the worse of both networks, and no faster links inside a node.

    If the mixed cluster has `over_bytes_per_s`, bandwidth is at most that times the lower network efficiency. All but
    the levels is the first machine's.
    """
    clusters = [share.cluster for share in mixed.shares]
    one, other = (_between_nodes(*each) for each in zip(clusters, machines, strict=True))
    levels = _worse(one, other)
    if mixed.over_bytes_per_s is not None:
        kernels = [cluster.kernels for cluster in clusters]
        rate = mixed.over_bytes_per_s * min((one.network_efficiency or one.link_efficiency).value for one in kernels)
        levels = {name: min(value, rate) if name.endswith("bytes_per_s") else value for name, value in levels.items()}
    return replace(machines[0], levels=levels)


def _between_nodes(cluster: ClusterDescriptor, machine: Machine) -> dict[str, Number]:
    """Return a copy of a machine's levels in which those inside a node are as slow as the first level between nodes.

    Bandwidth, latency and mesh are that level's; sizes stay. If no level is a network, the last one counts as such.
    """
    names = [level.name for level in cluster.levels]
    first = next((place for place, name in enumerate(names) if name in NETWORK), len(names) - 1)
    levels = dict(machine.levels)
    for place in range(min(first, _LEVELS)):
        for end in ("bytes_per_s", "latency_s", "mesh"):
            levels[f"level{place}_{end}"] = machine.levels[f"level{min(first, _LEVELS - 1)}_{end}"]
    return levels


def _worse(one: dict[str, Number], other: dict[str, Number]) -> dict[str, Number]:
    """Return level by level the smaller domain, the lower bandwidth and the longer latency of both."""
    return {
        name: min(value, other[name]) if name.endswith(_LEAST) else max(value, other[name])
        for name, value in one.items()
    }
