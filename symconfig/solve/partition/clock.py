"""Seconds of a step of a partition as the planner counts those of a plan: with what a framework hides behind what.

The solver's cost is a sum over operators and links, each with what it can know of itself. Here, for one strategy, what
hides does so behind the work of all operators that run at the time: gradients behind a whole backward, and a repeat's
launches behind all of its kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.formulas import overlapped_s
from symconfig.cost.framework import Framework
from symconfig.cost.partition.costs import Costs
from symconfig.descriptor.mesh import Axis
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.graph.layout import Kind
from symconfig.graph.operator import Work
from symconfig.graph.sharding import Phase
from symconfig.solve.partition.collectives import Moved, collectives

_AHEAD = (Phase.FORWARD,)


@dataclass(frozen=True, slots=True)
class Clock:
    """The seconds of a step. waiting_s: for launches. layers_s, weights_s: what shows of activations' collectives, and
    of weights'. overhead_s: of the framework, whatever the graph."""

    computation_s: float
    waiting_s: float
    layers_s: float
    weights_s: float
    optimizer_s: float
    overhead_s: float

    @property
    def step_s(self) -> float:
        parts = (self.computation_s, self.waiting_s, self.layers_s, self.weights_s)
        return sum(parts) + self.optimizer_s + self.overhead_s


@dataclass(slots=True)
class _Pass:
    """Of one microbatch, forward or backward: seconds by repeat."""

    work: defaultdict[int, float]
    moved: defaultdict[int, float]
    host: defaultdict[int, float]

    @property
    def busy_s(self) -> float:
        return sum(self.work.values()) + sum(self.moved.values())

    @property
    def waiting_s(self) -> float:
        """Count the waits where the host takes longer to launch a repeat's kernels than the GPU to run them."""
        return sum(max(host - self.work[run] - self.moved[run], 0.0) for run, host in self.host.items())


def clock(
    costs: Costs, axes: Sequence[Axis], rows: Sequence[Sequence[int]], framework: Framework = FRAMEWORKS["megatron"]
) -> Clock:
    """Count the seconds of a step of a strategy; costs: of the objective time, of a network that is no stage's."""
    assert costs.timed
    turns, optimizer_s = costs.training.turns, 0.0
    launch_s = float(framework.host_kernel_s * costs.machine.launching)
    every = [np.array([row], dtype=np.int64) for row in rows]
    ahead, back = (_Pass(*(defaultdict(float) for _ in range(3))) for _ in range(2))
    for index, node in enumerate(costs.net.nodes):
        if node.parameter is not None:
            optimizer_s += costs.node(index, every[index]).cost.item()
        elif node.operator is not None:
            # Add an operator's work, and its kernels': of a product's backward one for each gradient.
            passes, repeats = costs.passes(node, every[index]), costs.forwards(node) - 1
            forward, backward = float(passes.forward[0]), float(passes.backward[0])
            weight = float(np.asarray(passes.weight).reshape(-1)[0])
            ahead.work[node.run] += node.times * forward
            back.work[node.run] += node.times * (backward + repeats * forward)
            kernels = float(backward > weight) + float(weight > 0)
            ahead.host[node.run] += node.times * launch_s * (forward > 0)
            back.host[node.run] += node.times * launch_s * (kernels + repeats * (forward > 0))
    moved = collectives(costs, axes, rows)
    weights = [one for one in moved if _of_weight(costs, one)]
    for (link, phase), some in groupby((one for one in moved if not _of_weight(costs, one)), key=_way):
        there = ahead if phase in _AHEAD else back
        shown_s, run = _shown_of(costs, list(some), every, link, phase, framework), _run(costs, link)
        there.moved[run] += shown_s / turns
    return Clock(
        computation_s=turns * (sum(ahead.work.values()) + sum(back.work.values())),
        waiting_s=turns * (ahead.waiting_s + back.waiting_s),
        layers_s=turns * (sum(ahead.moved.values()) + sum(back.moved.values())),
        weights_s=_exchanged(costs, weights, ahead.busy_s + ahead.waiting_s, back.busy_s + back.waiting_s, framework),
        optimizer_s=optimizer_s,
        overhead_s=framework.step_overhead_s + turns * framework.microbatch_overhead_s,
    )


def _of_weight(costs: Costs, one: Moved) -> bool:
    return one.link >= 0 and costs.net.nodes[costs.net.links[one.link].producer].parameter is not None


def _way(one: Moved) -> tuple[tuple[int, str], Phase]:
    return (one.link, one.consumer), one.phase


def _run(costs: Costs, link: tuple[int, str]) -> int:
    """Return the repeat of the operator that a collective ends at."""
    number, consumer = link
    if number >= 0:
        return costs.net.nodes[costs.net.links[number].consumer].run
    return next(node.run for node in costs.net.nodes if node.name == consumer and node.operator is not None)


def _shown_of(
    costs: Costs,
    moved: Sequence[Moved],
    rows: Sequence[np.ndarray],
    link: tuple[int, str],
    phase: Phase,
    framework: Framework,
) -> float:
    """Return what shows in a step of a tensor's way over a link.

    As the planner has it, what is gathered again runs beside a product's gradient of its input, that gradient's sum
    beside that of the weight, and a ring beside the attention.
    """
    alone_s, times = sum(one.cost for one in moved), moved[0].times
    if link[0] < 0 or not times or any(one.kind is Kind.ALL_TO_ALL for one in moved):
        return alone_s
    index, hide = costs.net.links[link[0]].consumer, framework.hide
    node = costs.net.nodes[index]
    if node.operator is None:
        return alone_s
    own = costs.passes(node, rows[index])
    forward_s, backward_s = float(own.forward[0]), float(own.backward[0])
    weight_s = float(np.asarray(own.weight).reshape(-1)[0])
    if node.operator.work is Work.ATTENTION:
        first = phase in _AHEAD
        share, work_s = (hide.cp_forward, forward_s) if first else (hide.cp_backward, backward_s)
        return times * float(formulas.exposed_s(alone_s / times, work_s, share))
    if node.operator.work is not Work.MATMUL or phase not in (Phase.KEPT, Phase.BACKWARD):
        return alone_s
    share, work_s = hide.tp_backward, weight_s if phase is Phase.BACKWARD else backward_s - weight_s
    return times * float(overlapped_s(alone_s / times, work_s, share))


def _exchanged(costs: Costs, moved: Iterable[Moved], ahead_s: float, back_s: float, framework: Framework) -> float:
    """Count gathered weights and reduced gradients, each pass's and each step's as one.

    What a pass's own leave of its work hides those of the step.
    """
    alone: defaultdict[Phase, float] = defaultdict(float)
    turns, hide = costs.training.turns, framework.hide
    for one in moved:
        alone[one.phase] += one.cost / (1.0 if one.phase.once else turns)

    def exposed(phases: Sequence[Phase], work_s: float, share: float) -> float:
        seconds = sum(alone[phase] for phase in phases)
        return float(overlapped_s(seconds, max(work_s, 0.0), share)) if seconds else 0.0

    passes = ((Phase.FORWARD,), (Phase.KEPT, Phase.RECOMPUTED, Phase.BACKWARD))
    total = 0.0
    for phases, once, work_s in zip(passes, (Phase.UPDATE, Phase.REDUCTION), (ahead_s, back_s), strict=True):
        each = sum(alone[phase] for phase in phases)
        total += turns * exposed(phases, work_s, hide.sharded_weights)
        total += exposed((once,), work_s - each / (hide.sharded_weights or 1.0), hide.data)
    return total
