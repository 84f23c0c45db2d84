"""The lattice: every point of (tp, cp, ep, etp, micro-batch) under each scheme, and why others are not in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Lattice
from symconfig.cost.stages import Points
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.attended import attended
from symconfig.graph.model import dim_sizes
from symconfig.graph.scheme import Scheme
from symconfig.plans.choices import Precision
from symconfig.plans.columns import Columns
from symconfig.solve.limits import Limits
from symconfig.solve.pins import Pins
from symconfig.solve.refusals import Refusal

Grid = NDArray[np.int64]  # [5, points]: tp, cp, ep, etp, micro-batch


@dataclass(frozen=True, slots=True)
class Request:
    """A job with everything resolved that the search needs."""

    model: ModelDescriptor
    job: Job
    framework: Framework
    version: str
    limits: Limits
    pins: Pins
    gpus: int
    global_batch: int
    seq_length: int
    precision: Precision


@dataclass(slots=True)
class Refused:
    """How many points each named refusal removed."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str, count: int) -> None:
        if count:
            self.counts[name] += count
            self.reasons[name] = reason


def divisors(number: int) -> list[int]:
    """In rising order."""
    low = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return low + [number // i for i in reversed(low) if i * i != number]


def schemes(request: Request) -> Iterator[Scheme]:
    """Templates in the order in which ties are broken: the plainest first."""
    parallel = [False, *([True] if True in request.limits.tensor_with_sequence else [])]
    wanted, comm = request.pins.switch("sp"), request.pins.words.get("cp_comm")
    for sequence_parallel in parallel:
        for cp_comm in request.limits.cp_comms:
            if comm in (None, cp_comm) and wanted in (None, sequence_parallel):
                yield Scheme(sequence_parallel, cp_comm)


def points(request: Request, scheme: Scheme, refused: Refused) -> Grid:
    """Points of a scheme that some pipeline degree may take. Each plan belongs to one scheme only."""
    grid = _grid(request, scheme)
    grid = grid[:, _divides(request, grid)]
    # What one stage of all GPUs refuses, every pipeline refuses.
    return grid[:, _accepted(request, scheme, grid, np.arange(grid.shape[1]), 1, request.limits.refusals, refused)]


def among(request: Request, scheme: Scheme, grid: Grid, refused: Refused) -> NDArray[np.intp]:
    """Indices of those of another request's points that this one may take, too."""
    return _accepted(request, scheme, grid, np.arange(grid.shape[1]), 1, request.limits.refusals, refused)


def _divides(request: Request, grid: Grid) -> NDArray[np.bool_]:
    """Points for which some pipeline degree leaves a dp that divides the batch."""
    tp, cp, _, _, micro = grid
    result = np.zeros(grid.shape[1], dtype=bool)
    for pp in divisors(request.gpus):
        if pp == 1 or (request.limits.pipeline and pp <= request.model.num_hidden_layers):
            dp = np.maximum(request.gpus // (tp * cp * pp), 1)
            result |= (request.gpus % (tp * cp * pp) == 0) & (request.global_batch % (dp * micro) == 0)
    return result


def blockers(request: Request) -> list[str]:
    """Reasons of the refusals that alone leave nothing: no choice of degrees gets around them."""
    reasons: dict[str, str] = {}
    for scheme in schemes(request):
        grid = _grid(request, scheme)
        if not grid.shape[1]:
            continue
        everything = np.arange(grid.shape[1])
        for rule in request.limits.refusals:
            if not _accepted(request, scheme, grid, everything, 1, [rule], Refused()).size:
                reasons[rule[0]] = rule[1]
            else:
                reasons.pop(rule[0], None)
    return list(reasons.values())


def _grid(request: Request, scheme: Scheme) -> Grid:
    pins, model, gpus = request.pins, request.model, request.gpus
    experts = model.experts.num_experts if model.experts else 1
    width = model.experts.moe_intermediate_size if model.experts else 1
    plain_comm = request.limits.cp_comms[0] if request.pins.words.get("cp_comm") is None else scheme.cp_comm

    def allowed(name: str, values: list[int]) -> list[int]:
        return [value for value in values if pins.allows(name, value)]

    axes = [
        allowed(
            "tp",
            [
                tp
                for tp in divisors(gpus)
                if tp <= model.num_attention_heads and (tp > 1 or not scheme.sequence_parallel)
            ],
        ),
        allowed(
            "cp", [cp for cp in divisors(gpus) if cp <= request.seq_length and (cp > 1 or scheme.cp_comm == plain_comm)]
        ),
        allowed("ep", [ep for ep in divisors(experts) if gpus % ep == 0]),
        allowed("etp", [etp for etp in divisors(width) if gpus % etp == 0]),
        allowed("mbs", divisors(request.global_batch)),
    ]
    grid = np.array(np.meshgrid(*axes, indexing="ij"), dtype=np.int64).reshape(5, -1)
    tp, cp, ep, etp, _ = grid
    # An expert is never cut finer than a dense layer: its matrices are smaller.
    kept: Grid = grid[:, (gpus % (tp * cp) == 0) & (gpus % (ep * etp) == 0) & (etp <= tp)]
    return kept


def admitted(request: Request, scheme: Scheme, candidates: Grid, pp: int, refused: Refused) -> NDArray[np.intp]:
    """Indices of the points that the target can run at this pipeline degree, with one chunk a stage."""
    tp, cp, _, _, micro = candidates
    alive = np.flatnonzero(request.gpus % (tp * cp * pp) == 0)
    dp = request.gpus // (tp * cp * pp)[alive]
    low, high = request.pins.ranges.get("dp", (0, 2**62))
    wanted = (dp >= low) & (dp <= high)
    whole = request.global_batch % (dp * micro[alive]) == 0
    refused.add("batch", "the global batch must divide by dp x micro-batch", int((wanted & ~whole).sum()))
    return _accepted(request, scheme, candidates, alive[wanted & whole], pp, request.limits.refusals, refused)


def interleaved(
    request: Request, scheme: Scheme, candidates: Grid, alive: NDArray[np.intp], pp: int, refused: Refused
) -> NDArray[np.intp]:
    """Those of the admitted points that go with several chunks a stage."""
    return _accepted(request, scheme, candidates, alive, pp, request.limits.interleaved, refused)


def _accepted(
    request: Request,
    scheme: Scheme,
    candidates: Grid,
    alive: NDArray[np.intp],
    pp: int,
    rules: Sequence[Refusal],
    refused: Refused,
) -> NDArray[np.intp]:
    """Those of the `alive` points that no named refusal removes."""
    for name, reason, test in rules:
        if not alive.size:
            break
        tp, cp, ep, etp, micro = candidates[:, alive]
        dp = request.gpus // (tp * cp * pp)
        degrees = Columns(
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            etp=etp,
            dp=dp,
            micro=micro,
            num_microbatches=request.global_batch // (dp * micro),
            seq_length=request.seq_length,
            sequence_parallel=scheme.sequence_parallel,
            cp_comm=scheme.cp_comm,
            precision=request.precision,
        )
        bad = np.broadcast_to(np.asarray(test(request.model, degrees), dtype=bool), alive.shape)
        refused.add(name, reason, int(bad.sum()))
        alive = alive[~bad]
    return alive


def constants(request: Request) -> dict[str, float]:
    """Numbers of the model and the job that no degree changes; the vocabulary without padding."""
    packing = request.job.packing
    return {
        **dim_sizes(request.model),
        "seq_length": float(request.seq_length),
        "keys_full": attended(request.seq_length, None, packing),
        "keys_window": attended(request.seq_length, request.model.sliding_window, packing),
    }


def lattice(request: Request, candidates: Grid) -> Lattice:
    """Numbers of every symbol at every point."""
    tp, cp, ep, etp, micro = candidates.astype(np.float64)
    numbers: dict[str, float | NDArray[np.float64]] = dict(constants(request))
    numbers |= {
        "tp": tp,
        "cp": cp,
        "ep": ep,
        "etp": etp,
        "micro_batch": micro,
        "dp": np.ones_like(tp),
        "expert_imbalance": request.job.limits.expert_imbalance,
        "padded_vocab_size": request.framework.padded_vocab(request.model.vocab_size, tp),
    }
    return Lattice(numbers, candidates.shape[1])


def columns(request: Request, candidates: Grid, pp: int) -> Points:
    """Arrays of the points at a pipeline degree."""
    tp, cp, ep, etp, micro = candidates.astype(np.float64)
    dp = request.gpus / (tp * cp * pp)
    return Points(tp, cp, dp, ep, etp, micro, request.global_batch / (dp * micro))
