"""The lattice: every point of (tp, cp, ep, etp, micro-batch) under each scheme, and why others are not in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.framework import Framework, device_bytes, largest_peak_bytes
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import Machine
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.constraint import Constraint
from symconfig.graph.model import dim_sizes, keys, repeated_pieces, shares_heads
from symconfig.graph.scheme import Scheme
from symconfig.plans.configuration import Configuration, Precision
from symconfig.plans.configuration_set import ConfigurationSet, Values
from symconfig.solve.interval import errors, fixed, stated, uneven, waited
from symconfig.solve.limits import Limits
from symconfig.solve.pins import Pins
from symconfig.solve.usual import Usual

Numbers = dict[str, float | NDArray[np.float64]]  # numbers of a lattice, by symbol
MOST_POINTS = 2**19  # most points of a scheme, before the pipeline degree


@dataclass(frozen=True, slots=True)
class Request:
    """A job with all that the search needs resolved.

    configuration: has what all points share: batch, length, precision, options (which the framework has); of its
    degrees only the product counts. limits: of the target with these options; whole: with any. surprise: ratio of
    measured to predicted peak that is exceeded with the job's memory risk; None: no limit. uneven: memory is that of
    the busiest expert rank (`loads`); else loads are even. usual: what published layouts have; None: nothing is
    unusual.
    """

    model: ModelDescriptor
    job: Job
    framework: Framework
    version: str
    limits: Limits
    pins: Pins
    configuration: Configuration
    surprise: float | None = None
    whole: Limits | None = None
    uneven: bool = False
    usual: Usual | None = None

    @property
    def gpus(self) -> int:
        return self.configuration.world_size

    @property
    def global_batch(self) -> int:
        return self.configuration.global_batch

    @property
    def seq_length(self) -> int:
        return self.configuration.seq_length

    @property
    def precision(self) -> Precision:
        return self.configuration.precision

    def having(self, **fields: Any) -> Request:
        """Return a copy with these fields of the configuration replaced."""
        return replace(self, configuration=replace(self.configuration, **fields))


def peak_budget(request: Request, machine: Machine) -> float:
    """Return the largest predicted peak, in allocated bytes, that keeps the job's memory margin and memory risk.

    It is the lesser of what margin and risk leave; without a `request.surprise` (no limit of the risk) what the margin
    leaves.
    """
    framework, whole = request.framework, machine.memory_bytes
    margin = largest_peak_bytes(request.job.limits.usable_bytes(whole), machine, framework)
    return min(margin, largest_peak_bytes(whole, machine, framework) / request.surprise) if request.surprise else margin


def device_budget(request: Request, machine: Machine) -> float:
    """Return `peak_budget` as bytes in use on the device, allocator and context included."""
    return device_bytes(peak_budget(request, machine), machine, request.framework)


def fitting(request: Request, machine: Machine, peak_bytes: Iterable[float], cluster: ClusterDescriptor) -> float:
    """Return the probability that a plan does not run out of GPU memory: the mean over its predicted peaks in bytes."""
    room = largest_peak_bytes(machine.memory_bytes, machine, request.framework)
    of = errors("memory", cluster, request.model)
    return fmean(of.cdf(math.log(room / peak)) for peak in peak_bytes)


@dataclass(slots=True)
class Refused:
    """Numbers of points that each named constraint refused, and its rule."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str, count: int) -> None:
        """Count so many points under a refusal's name and store its rule; does nothing for no points."""
        if count:
            self.counts[name] += count
            self.reasons[name] = reason


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number in rising order."""
    low = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return low + [number // i for i in reversed(low) if i * i != number]


def schemes(request: Request) -> Iterator[Scheme]:
    """Yield the schemes of sequence and context parallelism that target and pins allow, the plainest first.

    Schemes in which tp ranks share key-value heads come in addition for models that can. Sequence parallelism off is
    yielded even if the target does not run it, and cp_comm is not compared with its pin here.
    """
    parallel = [False, *([True] if request.limits.runs(sequence_parallel=True) else [])]
    wanted = request.pins.switch("sp")
    sharing = [False, *([True] if shares_heads(request.model, request.model.num_attention_heads) else [])]
    for sequence_parallel, cp_comm, shared_heads in product(parallel, request.limits.cp_comms, sharing):
        if wanted in (None, sequence_parallel):
            yield Scheme(sequence_parallel, cp_comm, shared_heads=shared_heads)


def points(request: Request, scheme: Scheme, refused: Refused) -> ConfigurationSet:
    """Return the points (tp, cp, ep, etp, micro-batch) of a scheme that can run with some pp; they have no pp yet.

    That is where the GPUs divide by tp x cp x pp, the batch by dp x micro, and no constraint refuses. No plan belongs
    to two schemes. Points that constraints refuse are counted in `refused`, which is mutated.
    """
    grid = _grid(request, scheme)
    inner = grid.tp * grid.cp
    result = np.zeros(grid.size, dtype=bool)
    for pp in divisors(request.gpus):
        if pp == 1 or (request.limits.pipeline and pp <= request.model.num_hidden_layers):
            dp = np.maximum(request.gpus // (inner * pp), 1)
            result |= (request.gpus % (inner * pp) == 0) & (request.global_batch % (dp * grid.micro) == 0)
    grid = grid.at(result)
    return grid.at(accepted(request, grid, refused))


def blockers(request: Request) -> list[str]:
    """Return the rules of constraints each of which by itself refuses all points that the pins allow.

    Empty if there is no such constraint, or no point before constraints.
    """
    grids = [grid for grid in (_grid(request, scheme) for scheme in schemes(request)) if grid.size]
    return [
        rule.rule
        for rule in request.limits.refusals
        if grids and not any(accepted(request, grid, Refused(), rules=[rule]).size for grid in grids)
    ]


def _grid(request: Request, scheme: Scheme) -> ConfigurationSet:
    """Return tp, cp, ep, etp and micro-batches (not pp) of a scheme that the pins allow, before any constraint.

    Degrees divide the GPUs (ep also the experts, etp their width; 1 without experts), as do tp x cp and ep x etp;
    micro-batches divide the global batch. tp is at most the heads, above 1 with sequence parallelism, and shares heads
    as the scheme says; etp is at most tp, cp at most the length; cp = 1 is only in the first cp_comm's scheme. The
    largest micro-batches are left out beyond MOST_POINTS points.
    """
    pins, model, gpus = request.pins, request.model, request.gpus
    experts = model.experts.num_experts if model.experts else 1
    width = model.experts.moe_intermediate_size if model.experts else 1
    alone = scheme.cp_comm == request.limits.cp_comms[0]  # a single rank exchanges nothing, whatever is pinned
    together = request.pins.leaves("cp_comm", scheme.cp_comm)

    def allowed(name: str, values: list[int]) -> list[int]:
        return [value for value in values if pins.allows(name, value)]

    axes = [
        allowed(
            "tp",
            [
                tp
                for tp in divisors(gpus)
                if tp <= model.num_attention_heads
                and (tp > 1 or not scheme.sequence_parallel)
                and shares_heads(model, tp) == scheme.shared_heads
            ],
        ),
        allowed("cp", [cp for cp in divisors(gpus) if cp <= request.seq_length and (together if cp > 1 else alone)]),
        allowed("ep", [ep for ep in divisors(experts) if gpus % ep == 0]),
        allowed("etp", [etp for etp in divisors(width) if gpus % etp == 0]),
    ]
    every = np.array(np.meshgrid(*axes, indexing="ij"), dtype=np.int64).reshape(4, -1)
    tp, cp, ep, etp = every
    # etp is at most tp: an expert's matrices are smaller than a dense layer's.
    every = every[:, (gpus % (tp * cp) == 0) & (gpus % (ep * etp) == 0) & (etp <= tp)]
    count = every.shape[1]
    sizes = np.array(allowed("mbs", divisors(request.global_batch)), dtype=np.int64)
    sizes = sizes[: max(MOST_POINTS // max(count, 1), 1)]  # the largest that there are fit nowhere
    tp, cp, ep, etp = np.repeat(every, sizes.size, axis=1)
    return shared(request, scheme).having(tp=tp, cp=cp, ep=ep, etp=etp, micro=np.tile(sizes, count))


def shared(request: Request, scheme: Scheme) -> ConfigurationSet:
    """Return the columns that all points of a scheme share: GPUs, global batch, sequence length, sequence parallelism,
    cp_comm, precision and the options that the limits choose.
    """
    return ConfigurationSet(
        world_size=request.gpus,
        global_batch=request.global_batch,
        seq_length=request.seq_length,
        sequence_parallel=scheme.sequence_parallel,
        cp_comm=scheme.cp_comm,
        **{"precision": request.precision, **request.limits.chosen},
    )


def admitted(request: Request, candidates: ConfigurationSet, pp: int, refused: Refused) -> NDArray[np.intp]:
    """Return the indices of points that can run at this pipeline degree with one chunk per stage.

    dp must be an integer that the pins allow; points that fail this are not counted, those that constraints refuse are,
    in `refused`.
    """
    inner = candidates.tp * candidates.cp * pp
    low, high = request.pins.ranges.get("dp", (0, 2**62))
    dp = request.gpus // inner
    alive = np.flatnonzero((request.gpus % inner == 0) & (dp >= low) & (dp <= high))
    return accepted(request, in_stages(request, candidates.at(alive), pp), refused, alive)


def accepted(
    request: Request,
    left: ConfigurationSet,
    refused: Refused,
    alive: NDArray[np.intp] | None = None,
    rules: Sequence[Constraint] | None = None,
) -> NDArray[np.intp]:
    """Return the indices of the points that no constraint refuses; a refused one counts in `refused` for the first.

    left: the points; they get the chosen columns of the request's limits. alive: the index that is returned for each of
    them, in the same order; None: its position. rules: the constraints; None: those that are checked at every point.
    """
    alive = np.arange(left.size) if alive is None else alive
    left = left.having(request.limits.chosen)
    for rule in request.limits.refusals if rules is None else rules:
        if not alive.size:
            break
        bad = rule.mask(request.limits.fixed, left, alive.shape)
        if bad.any():
            refused.add(rule.name, rule.rule, int(bad.sum()))
            alive, left = alive[~bad], left.at(~bad)
    return alive


def in_stages(request: Request, candidates: ConfigurationSet, pp: int) -> ConfigurationSet:
    """Return the points at a pipeline degree: dp takes the GPUs that are left, the interleaving group is pp."""
    dp = request.gpus // (candidates.tp * candidates.cp * pp)
    turns = request.global_batch // (dp * candidates.micro)
    return candidates.having(pp=pp, group=pp, dp=dp, num_microbatches=turns)


def constants(request: Request) -> dict[str, float]:
    """Return by symbol the numbers of model and job that no degree changes; the vocabulary is not padded.

    Sizes of dims, seq_length, and the keys that attention reads, which depend on the job's packing.
    """
    return {
        **dim_sizes(request.model),
        "seq_length": 1.0 * request.seq_length,
        **keys(request.model, request.seq_length, request.job.packing),
    }


def lattice(request: Request, candidates: ConfigurationSet, of_loads: Numbers | None = None) -> Lattice:
    """Return the lattice with a number for every symbol at every point; dp is 1.

    of_loads: numbers of expert loads; None: `loads` for the points' ep. Vocabulary is padded for tp; dims of which
    ranks hold repeated pieces are at least tp x cp. gtp is the request's.
    """
    points = candidates.as_floats()
    numbers: Numbers = dict(constants(request))
    numbers |= {
        "tp": points.tp,
        "gtp": np.full_like(points.tp, request.configuration.gtp),
        "cp": points.cp,
        "ep": points.ep,
        "etp": points.etp,
        "micro_batch": points.micro,
        "dp": np.ones_like(points.tp),
        "padded_vocab_size": request.framework.padded_vocab(request.model.vocab_size, points.tp),
    }
    for name in repeated_pieces(request.model):
        numbers[name] = np.maximum(numbers[name], points.tp * points.cp)
    return Lattice(numbers | (loads(request, points.ep) if of_loads is None else of_loads), points.size)


def loads(request: Request, ep: Values) -> Numbers:
    """Return the numbers of expert load imbalance, by symbol, that a lattice needs: [n] or scalars. ep: [n].

    The load that the job states (`limits.load`); if it states no imbalance, also the load a step waits for; if
    `request.uneven`, also those for memory. Experts with a capacity take the memory of their buffers (`fixed`).
    """
    job, model = request.job, request.model
    numbers: Numbers = dict(stated(model, ep, job.limits.load))
    if job.limits.expert_imbalance is None:
        numbers |= waited(model, ep)
    if request.uneven:
        numbers |= uneven(model, ep, job.task_of(model))
    return fixed(numbers, request.configuration.expert_capacity, request.configuration.paged_stash)


def priced(
    request: Request, candidates: ConfigurationSet, pp: Values | int, chosen: NDArray[np.intp] | slice = slice(None)
) -> ConfigurationSet:
    """Return the chosen points at a pipeline degree (or one each, [n]) as float64 columns, ready to be priced.

    dp and the number of microbatches are quotients that are not rounded. chosen: indices or slice of the candidates.
    """
    dp = request.gpus / (candidates.tp[chosen] * candidates.cp[chosen] * pp)
    turns = request.global_batch / (dp * candidates.micro[chosen])
    return candidates.as_floats(chosen, pp=pp, dp=dp, num_microbatches=turns)
