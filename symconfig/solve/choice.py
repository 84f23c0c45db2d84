"""The best candidates of a search (`Incumbents`): which are kept, how they are refined, and which one is chosen.

The search prices candidates under a few layouts of stages and a formula for the schedule. `refine` distributes the
layers of the best of each family, and of those that nearly fit, by seconds and bytes of their own blocks, and simulates
the schedule of each. The choice is the fastest plan after a premium for choices that hardly any published layout has;
within 2 % the one with fewer options and axes, then the better score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from symconfig.cost.blocks import TRANSIENT
from symconfig.cost.framework import device_bytes
from symconfig.cost.pipeline import messages
from symconfig.cost.stages import GRADIENT_BUFFER_BYTES, Pipeline, Pipelines, StageShape, stages
from symconfig.cost.step import HOST_SHARE, host_bytes, states
from symconfig.cost.table import Choice
from symconfig.cost.weights import WEIGHTS
from symconfig.frameworks.extras import on
from symconfig.graph.model import sequence
from symconfig.plans.configuration import Precision
from symconfig.plans.pipeline_layout import is_uneven
from symconfig.schedule.timeline import held
from symconfig.solve.costed import Costed, costed, refined_s
from symconfig.solve.pieces import PLAIN, WHOLE, recompute_choices
from symconfig.solve.prospect import Prospect, recomputing
from symconfig.solve.space import Refused, peak_budget
from symconfig.solve.split import plainest
from symconfig.solve.stages import Array, Blocks, StageProblem, fastest_cut
from symconfig.solve.usual import premium

TIE = 1.02  # times the best score: plans up to here count as equally fast
KEPT_WITHIN = 1.1  # times the best score: families up to here are kept in addition to those shown
NEARLY = 1.1  # times the budget: a candidate up to here may fit with other layers per stage
MOST_NEARLY = 8  # such candidates that are kept
_ORDER = attrgetter("order")


@dataclass(frozen=True, order=True, slots=True)
class Family:
    """The degrees by which plans count as different; micro-batch, vpp, layers per stage, recompute and offload do not.

    zero: 1 stands for stages 0 and 1, which differ only in the optimizer's memory.
    """

    tp: int
    cp: int
    pp: int
    ep: int
    etp: int
    zero: int
    precision: Precision


def family(prospect: Prospect) -> Family:
    """Return the family of a candidate; ZeRO stages 0 and 1 are one, and all stages if there is one replica."""
    p = prospect.configuration
    zero = max(p.zero_stage, 1) if p.dp * p.cp > 1 else 1
    return Family(p.tp, p.cp, p.pp, p.ep, p.etp, zero, prospect.request.precision)


def ranked(candidates: Iterable[Prospect], top: int) -> list[Prospect]:
    """Return up to `top` candidates, the best first, one of each family: repeatedly the `first` of those left."""
    left, result = list(candidates), list[Prospect]()
    while left and len(result) < top:
        result.append(first(left))
        left = [each for each in left if family(each) != family(result[-1])]
    return result


def first(candidates: Sequence[Prospect]) -> Prospect:
    """Return the least complex of the candidates within TIE of the best score, ties by `order`.

    Raises ValueError if there are none.
    """
    limit = TIE * min(each.score for each in candidates)
    return min((each for each in candidates if each.score <= limit), key=lambda each: (complexity(each), each.order))


def scored(prospect: Prospect, step_s: float, device_bytes: float) -> Prospect:
    """Return a copy of the candidate with the given step in seconds and bytes in use on the device, and its score.

    The score is the step times the premium for its unusual choices.
    """
    score = step_s * float(premium(len(unusual(prospect))))
    return replace(prospect, step_s=step_s, device_bytes=device_bytes, score=score)


def unusual(prospect: Prospect) -> tuple[str, ...]:
    """Return the names of a candidate's choices that are rare in published layouts; empty without data on them."""
    c, usual = prospect.configuration, prospect.request.usual
    rare = {} if usual is None else usual.rare_choices(c, prospect.request.configuration, c.recompute)
    return tuple(name for name, is_rare in rare.items() if is_rare)


def complexity(prospect: Prospect) -> int:
    """Return the number of a candidate's deviations from a plain layout: fewer is simpler.

    One each for tp, pp, vpp, cp, ep and etp above 1, an option on, recompute (twice if of the first layers only),
    offload of activations, optimizer states and weights, a layout string, and uneven chunks (first or last stage set,
    or such a layout).
    """
    p, split = prospect.configuration, prospect.split
    ends = split.first_stage_layers is not None or split.last_stage_layers is not None
    return (
        sum(size > 1 for size in (p.tp, p.pp, p.vpp, p.cp, p.ep, p.etp))
        + len(on(prospect.request.configuration))
        + recomputed_and_offloaded(prospect.choice, some_layers=bool(prospect.block_layers))
        + bool(prospect.offload.optimizer)
        + bool(prospect.offload.weights)
        + (split.pipeline_layout is not None)
        + (ends or (split.pipeline_layout is not None and is_uneven(split.chunks)))
    )


def recomputed_and_offloaded(choice: Choice, *, some_layers: bool = False) -> int:
    """Return 0 to 3: one each for recompute, for recompute of some layers only, and for activation offload."""
    return bool(choice.modules or some_layers) + some_layers + bool(choice.offload)


@dataclass(slots=True)
class Incumbents:
    """The state of a search: its best candidates and counts.

    top: number of families to keep; shown: number of families kept however slow they are, others only if near the best.
    families: for each family and micro-batch the best candidate by complexity. nearly: candidates that do not fit but
    may with other layers per stage, the best first. leanest: the one of least memory, while none fits. any_will_do:
    stop at the first plan that fits. worst_s: score that a candidate must beat to be shown; branches whose lower bound
    is above it are pruned.
    """

    top: int
    shown: int
    any_will_do: bool = False
    families: dict[tuple[Family, int], dict[int, Prospect]] = field(default_factory=dict)
    nearly: list[Prospect] = field(default_factory=list)
    leanest: Prospect | None = None
    candidates: int = 0
    feasible: int = 0
    simulated: int = 0
    refused: Refused = field(default_factory=Refused)
    worst_s: float = float("inf")

    def add(self, prospect: Prospect) -> None:
        """Add a candidate unless one of its group is at least as simple and not behind it in `order`; update `worst_s`.

        A group is a family with a micro-batch. Those of its group that the candidate dominates are removed; then, with
        more than `top` groups, the worst group if it is beyond TIE times the best score. worst_s: the last group's
        score once there are `top`, else infinite; with `shown` groups at most the larger of the score of number `shown`
        and KEPT_WITHIN times the best; at least TIE times the best.
        """
        plain, name = complexity(prospect), (family(prospect), prospect.configuration.micro)
        mine = self.families.setdefault(name, {})
        if any(level <= plain and known.order <= prospect.order for level, known in mine.items()):
            return
        for level in [level for level, known in mine.items() if level >= plain and prospect.order <= known.order]:
            del mine[level]
        mine[plain] = prospect
        best = {name: min(each.values(), key=_ORDER) for name, each in self.families.items()}
        scores = sorted(one.score for one in best.values())
        if len(best) > self.top and scores[-1] > TIE * scores[0]:
            del self.families[max(best, key=lambda name: best[name].order)]
            scores.pop()
        # Set what a candidate must beat: the last of the families, or where enough of them are near the best, all that
        # is not near.
        last = scores[-1] if len(scores) >= self.top else float("inf")
        if len(scores) >= self.shown:
            last = min(last, max(scores[self.shown - 1], KEPT_WITHIN * scores[0]))
        self.worst_s = max(last, TIE * scores[0])  # all that may be taken for the best

    @property
    def best(self) -> list[Prospect]:
        """Return all incumbents, the best score first."""
        return sorted((prospect for each in self.families.values() for prospect in each.values()), key=_ORDER)

    def add_nearly(self, prospect: Prospect) -> None:
        """Add a candidate that does not fit with its layers per stage; only the MOST_NEARLY best are kept."""
        self.nearly = sorted([*self.nearly, prospect], key=_ORDER)[:MOST_NEARLY]


def refine(weighed: Incumbents) -> int:
    """Replace the formula's step times in `weighed` by simulated ones; return the number of simulations.

    Incumbents and `worst_s` are reset. Each incumbent and nearly fitting candidate is added again if it fits, and so is
    its variant with the layers per stage that the stage solver finds (`_with_fastest_layers`), even if only the variant
    fits. Those beyond KEPT_WITHIN times the best of their family, or of the last family to be shown, are dropped.
    """
    best = dict[Family, float]()
    for prospect in weighed.best:
        best.setdefault(family(prospect), prospect.score)
    last = [*best.values(), *[np.inf] * weighed.shown][weighed.shown - 1]
    every = [
        each
        for each in (*weighed.best, *weighed.nearly)
        if each.score <= KEPT_WITHIN * min(best.get(family(each), np.inf), last)
    ]
    simulated = 0
    weighed.families.clear()
    weighed.worst_s = np.inf
    for prospect in every:
        parts = costed(prospect)
        own = [(prospect, parts)] if _fits(prospect, parts) else []
        for each, its in (*own, *_with_fastest_layers(prospect, parts)):
            device = device_bytes(max(its.peaks), each.machine, each.request.framework)
            weighed.add(scored(each, refined_s(each, its), device))
            simulated += 1
    return simulated


def _with_fastest_layers(prospect: Prospect, parts: Costed) -> Iterator[tuple[Prospect, Costed]]:
    """Yield at most one (candidate, its costs): with the layers per stage that the stage solver finds, if it fits.

    None for one stage, a pinned layout, or if the solver finds none, the target cannot express it, or nothing changes.
    If the target can recompute first layers only, full recompute becomes that of the fewest that fit, or no recompute
    if that fits and is allowed.
    """
    request, pp = prospect.request, prospect.split.pp
    if pp == 1 or request.pins.layout is not None:
        return
    if prospect.choice == WHOLE and not prospect.block_layers and request.limits.block_recompute:
        prospect = prospect.having(**recomputing(WHOLE, prospect.split.longest_chunk))
        parts = costed(prospect)
    least = int(PLAIN not in recompute_choices(request))
    received = np.full(pp, 2.0 * prospect.split.vpp)  # messages: two per chunk, of the first and the last one less
    received[[0, -1]] -= 1
    message_s = float(messages(parts.sums, parts.points, parts.setting).busy_s[0])
    problem = fewest_recomputed(stages_of([prospect], [parts], (0,) * pp, received * message_s), least)
    chunks = fastest_cut(problem)
    split = None if chunks is None else plainest(pp, chunks, request.limits.layouts)
    if split is None or (split == prospect.split and problem.first == prospect.block_layers):
        return
    laid = prospect.cut(split, problem.first)
    its = costed(laid)
    if _fits(laid, its):
        yield laid, its


def fewest_recomputed(problem: StageProblem, least: int = 0) -> StageProblem:
    """Return the problem with `first`, the recomputed layers per chunk, lowered to the fewest with which a cut fits.

    By bisection from `least`; `problem.first` is the upper limit and is returned untested if no fewer fit.
    """
    low, high = min(least, problem.first), problem.first
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fastest_cut(replace(problem, first=middle)) else (middle + 1, high)
    return replace(problem, first=low)


def _fits(prospect: Prospect, parts: Costed) -> bool:
    room = prospect.machine.host_memory_bytes_per_gpu * HOST_SHARE
    on_host = host_bytes(parts.sums, parts.points, parts.setting).max()
    return max(parts.peaks) <= peak_budget(prospect.request, prospect.machine) and bool(on_host <= room)


def stages_of(
    prospects: Sequence[Prospect], parts: Sequence[Costed], on: tuple[int, ...], wait_s: Array
) -> StageProblem:
    """Return the problem of distributing a candidate's layers over stages, which lie on one or several kinds of GPUs.

    prospects, parts: the same candidate and its costs on each kind. on: index of each stage's kind; wait_s: seconds
    that each stage waits for a microbatch's messages, [pp]. Layouts, model and recomputed first layers are those of
    prospects[0].
    """
    one, setting = prospects[0], parts[0].setting
    m, pp, vpp = int(parts[0].points.num_microbatches[0]), one.split.pp, one.split.vpp
    moments = [held(stage, pp, vpp, int(setting.microbatch_group), m) for stage in range(pp)]
    return StageProblem(
        sequence=sequence(one.request.model),
        pp=pp,
        vpp=vpp,
        layouts=one.request.limits.layouts,
        blocks=tuple(map(_blocks, prospects, parts)),
        on=on,
        wait_s=wait_s,
        # On the last stage only the first moment counts: only then is the loss's memory in use.
        held=(*moments[:-1], moments[-1][:1]),
        first=one.block_layers,
    )


def _blocks(prospect: Prospect, parts: Costed) -> Blocks:
    """Return seconds and bytes of the blocks of a candidate's model, [2, blocks], with the memory budget as limit.

    Row 0 is under the table's first recompute policy, row 1 under its last: full recompute if there are `block_layers`,
    else the same as row 0. Working bytes include the largest buffers and workspaces of any block.
    """
    table, setting, alone = parts.table, parts.setting, np.eye(len(parts.table.kinds), dtype=np.int64)
    shapes = tuple(StageShape(0, tuple(row), 1) for row in alone)
    pipelines = replace(Pipelines.of([Pipeline(1, 1, shapes)]), pp=np.broadcast_to(parts.points.pp, 1))
    sums = stages(table, pipelines, np.arange(1), setting.tied)
    state: Array = sum(states(sums.divisible(), parts.points, setting).values(), np.zeros(1))[:, 0]
    buffers, workspaces = (float(table.weights[WEIGHTS.index(name)].max()) for name in ("buffers", "workspaces"))
    working = table.passes[TRANSIENT][..., 0].T + GRADIENT_BUFFER_BYTES * buffers + workspaces
    places = [table.kinds.index(kind) for kind in sequence(prospect.request.model)]

    def each(of_kinds: Array) -> Array:
        """Return values by kind, [kinds, policies], as [2, blocks] of the model: first and last policy."""
        return of_kinds[places][:, [0, -1]].T

    return Blocks(
        seconds=each((sums.ahead + sums.back)[..., 0]),
        fixed_bytes=each(state + sums.ends[..., 0]),
        kept_bytes=each(sums.kept[..., 0]),
        working_bytes=each(working),
        limit_bytes=peak_budget(prospect.request, prospect.machine),
    )
