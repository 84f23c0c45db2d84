"""A candidate over two kinds of GPUs: each stage as its own kind runs it, and what passes between the kinds.

Nothing is priced here: the candidate is worked out once on either kind, and every stage takes its row of its own.
`described` makes it the candidate of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine
from symconfig.cost.optimizer import copies_s
from symconfig.cost.pipeline import Messages, messages
from symconfig.cost.stages import Setting, Stages
from symconfig.cost.step import HOST_SHARE, apart_s, host_bytes
from symconfig.descriptor.cluster import MixedCluster
from symconfig.descriptor.job import Job
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.plans.mixed import Host, MixedCandidate, Span
from symconfig.plans.plan import Predicted
from symconfig.schedule.timeline import Times
from symconfig.solve.candidate import plan_candidate, predicted, tidy
from symconfig.solve.costed import (
    BUBBLE,
    EXCHANGE,
    Costed,
    costed,
    optimizer_start_s,
    shape,
    timeline,
    times,
    without_exchange,
)
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import peak_budget
from symconfig.solve.split import Split
from symconfig.solve.stages import layers


@dataclass(frozen=True)
class Across:
    """A candidate whose first `ahead` stages are on one kind of GPU, and the others on another.

    candidates: the same one as if all stages were on the first kind, and on the second. border: the machine for
    messages between the kinds. order: indices of the cluster's kinds along the pipeline.
    """

    candidates: tuple[Prospect, Prospect]
    ahead: int
    border: Machine
    order: tuple[int, int] = (0, 1)

    def laid(self, split: Split, first: int) -> Across:
        """Return a copy with the chunks of `split`, and `first` layers of each recomputed (`Prospect.cut`)."""
        one, other = (candidate.cut(split, first) for candidate in self.candidates)
        return replace(self, candidates=(one, other))

    @property
    def pp(self) -> int:
        """Return the number of stages."""
        return self.candidates[0].configuration.pp

    @property
    def kinds(self) -> tuple[int, ...]:
        """Return the index of each stage's GPU kind, 0 or 1, [pp]."""
        return tuple(int(stage >= self.ahead) for stage in range(self.pp))

    @property
    def split(self) -> Split:
        """Return the layers of each chunk."""
        return self.candidates[0].split

    @property
    def num_microbatches(self) -> int:
        """Return the number of microbatches in a step."""
        return self.candidates[0].configuration.num_microbatches

    @cached_property
    def parts(self) -> tuple[Costed, Costed]:
        """Return the costs as if all stages were on the first kind, and on the second. Cached."""
        return costed(self.candidates[0]), costed(self.candidates[1])

    def least_s(self, split: Split) -> float:
        """Return a lower bound of the step in seconds with the layers of `split`, from the blocks' own seconds."""
        tables = [parts.table for parts in self.parts]
        seconds = [np.array(split.counts(table.kinds)) @ table.seconds[0, :, 0] for table in tables]
        return self.num_microbatches * float(max(seconds[kind][stage] for stage, kind in enumerate(self.kinds)))

    @property
    def stages(self) -> tuple[slice, slice]:
        """Return the slices of the stages on the first and on the second kind."""
        return slice(0, self.ahead), slice(self.ahead, self.pp)

    def own(self, kind: int) -> tuple[Stages, Setting]:
        """Return the sums and the setting of the stages that are on a kind (0 or 1)."""
        parts, mine = self.parts[kind], self.stages[kind]
        return parts.sums.part(mine), parts.setting.having(parts.setting.pipelines.only.stages[mine])

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """Return the bytes allocated at the peak of each stage on its own kind, [pp]. Cached."""
        return tuple(self.parts[kind].peaks[stage] for stage, kind in enumerate(self.kinds))

    @property
    def excess(self) -> tuple[float, float]:
        """Return by kind the bytes by which its fullest stage exceeds its memory budget; at most 0 if all fit."""
        one, other = (
            max(self.peaks[mine]) - peak_budget(candidate.request, candidate.machine)
            for mine, candidate in zip(self.stages, self.candidates, strict=True)
        )
        return one, other

    @property
    def fits(self) -> bool:
        """Return whether every stage fits in its kind's GPU memory, and offloaded states in its hosts' memory."""
        rooms = (candidate.machine.host_memory_bytes_per_gpu * HOST_SHARE for candidate in self.candidates)
        pinned = (host_bytes(sums, self.parts[0].points, setting) for sums, setting in map(self.own, (0, 1)))
        return max(self.excess) <= 0 and all(one.max() <= room for one, room in zip(pinned, rooms, strict=True))

    @cached_property
    def links_s(self) -> tuple[float, float, float]:
        """Return the seconds of a message within the first kind, within the second, and between the two. Cached."""
        one, other, between = (float(each.busy_s[0]) for each in self._messages)
        return one, other, between

    @cached_property
    def _messages(self) -> tuple[Messages, ...]:
        machines = (*(candidate.machine for candidate in self.candidates), self.border)
        return tuple(
            messages(parts.sums, parts.points, replace(parts.setting, machine=machine))
            for parts, machine in zip((*self.parts, self.parts[0]), machines, strict=True)
        )

    @cached_property
    def arrivals_s(self) -> tuple[Array, Array]:
        """Return (seconds that each chunk waits for its activation, for its gradient), [pp, vpp] each. Cached.

        They are those of a message from the stage before, and after, with wrap-around; 0 for the activation of the
        model's first chunk and the gradient of its last.
        """
        kinds = np.array(self.kinds)
        into, back = (
            np.array(self.links_s)[np.where(kinds == np.roll(kinds, -way), kinds, 2)][:, None].repeat(self.split.vpp, 1)
            for way in (-1, 1)
        )
        into[0, 0] = back[-1, -1] = 0.0  # the model's first chunk receives no activation, its last one no gradient
        return into, back

    @cached_property
    def times(self) -> Times:
        """Return the simulator's input, each stage's row from its own kind. Cached.

        `busy_s` is that of the fastest link; what a message takes longer is added to the forward or backward pass that
        waits for it. `lag_s` is the largest of all links. Other scalars are the first kind's.
        """
        one, other = (times(candidate, parts) for candidate, parts in zip(self.candidates, self.parts, strict=True))
        least_s = min(self.links_s)
        into, back = (np.maximum(arrivals - least_s, 0.0) for arrivals in self.arrivals_s)

        def each(name: str) -> Any:
            return np.where(np.array(self.kinds)[:, None] == 1, getattr(other, name), getattr(one, name))

        return replace(
            one,
            **{name: each(name) for name in ("recompute", "weight", "gather", "reduce", "hide", "paired")},
            forward=each("forward") + into,
            backward=each("backward") + back,
            busy_s=least_s,
            lag_s=max(float(between.lag_s[0]) for between in self._messages),
        )

    @cached_property
    def simulated_s(self) -> float:
        """Return when the optimizer starts, in seconds from the start of the step. Cached.

        All stages are done then, and the gradient of a shared embedding is summed over the border's links.
        """
        parts = self.parts[0]
        over_border = replace(parts, setting=replace(parts.setting, machine=self.border))
        return optimizer_start_s(timeline(self.candidates[0], parts, self.times), over_border)

    @cached_property
    def step_s(self) -> float:
        """Return the step in seconds, with optimizer and overhead of the slower kind. Cached."""
        return self.simulated_s + self._slower(apart_s) + self._slower(copies_s)

    def _slower(self, what: Callable[[Stages, ConfigurationSet, Setting], Array]) -> float:
        """Return the larger of both kinds' values of `what`, in seconds.

        what: called with each kind's stages and setting, and the first kind's points.
        """
        points = self.parts[0].points
        return max(float(np.ravel(what(sums, points, setting))[0]) for sums, setting in map(self.own, (0, 1)))

    @cached_property
    def stage_s(self) -> tuple[float, ...]:
        """Return the seconds of a microbatch's passes on each stage, [pp], messages waited for included. Cached.

        Communication that another microbatch hides is taken off, if the schedule has such pairs.
        """
        made = self.times
        passes = made.forward + made.recompute + made.backward + made.weight
        if made.paired is not None:  # what another microbatch beside it hides
            passes = passes - made.paired
        waits = sum((np.minimum(arrivals, made.busy_s) for arrivals in self.arrivals_s), np.zeros_like(passes))
        return tuple((passes + waits).sum(axis=1).tolist())

    @property
    def time(self) -> dict[str, float]:
        """Return the seconds of a step by part, which sum to `step_s`.

        compute, recompute, layer communication and pipeline send/receive are those of all microbatches on the stage
        that takes longest; the bubble is what a simulation without data-parallel exchange takes more, the exchange what
        one with it adds. The overhead is that stage's kind's; the optimizer has the slower kind's remaining seconds.
        """
        slowest = int(np.argmax(self.stage_s))
        kind, m = self.kinds[slowest], self.num_microbatches
        parts = self.parts[kind]
        alone = timeline(self.candidates[0], self.parts[0], without_exchange(self.times)).step_s
        repeated = float(self.times.recompute[slowest].sum())
        communication = float(parts.sums.communication[slowest, 0, 0])
        waits = sum(float(arrivals[slowest].sum()) for arrivals in self.arrivals_s)
        overhead = float(np.ravel(parts.cost.time["overhead"])[0])
        shares = {
            "recompute": m * repeated,
            "layer communication": m * communication,
            "pipeline send/receive": m * waits,
        }
        whole, shown_s = m * self.stage_s[slowest], self._unpaired_s(slowest)
        return {
            "compute": whole - sum(shares.values()),
            **shares,
            "layer communication": m * communication + shown_s,
            BUBBLE: alone - whole - shown_s,
            EXCHANGE: self.simulated_s - alone + self._slower(copies_s),
            "optimizer": self._slower(apart_s) - overhead,
            "overhead": overhead,
        }

    def _unpaired_s(self, stage: int) -> float:
        """Return the seconds of a stage's communication in a step that no other microbatch is there to overlap with.

        0 where the schedule does not overlap it with another microbatch.
        """
        paired, (m, group) = self.times.paired, shape(self.parts[0])
        if paired is None or not self.candidates[0].beside_another:
            return 0.0
        return float(formulas.alone_s(paired[stage].sum(), m, self.split.vpp, group))


def described(across: Across, mixed: MixedCluster, jobs: Sequence[Job]) -> MixedCandidate:
    """Return the candidate of a mixed plan, with a `Host` (stages, nodes, memory) per kind, in pipeline order.

    The prediction is that of the kind whose GPUs are fuller, relative to their usable memory; its step interval spans
    both kinds', its MFU is against their mean peak, its host memory the larger. Degrees, options and backend are the
    first kind's. jobs: the job as resolved for each kind of the cluster.
    """
    clusters = [mixed.shares[own].cluster for own in across.order]
    fullest = [max(range(across.pp)[mine], key=lambda stage: across.peaks[stage]) for mine in across.stages]
    # Of the whole step, over both kinds, with the memory of the fullest stage of each.
    each = [
        predicted(across.candidates[kind], across.parts[kind], clusters[kind], across.time, fullest[kind])
        for kind in (0, 1)
    ]
    hosts = [_host(across, mixed, jobs, kind, each[kind]) for kind in (0, 1)]
    tightest = max((0, 1), key=lambda kind: each[kind].device_bytes / hosts[kind].usable_bytes)
    spans = [one.interval["step_s"] for one in each]
    interval = {**each[tightest].interval, "step_s": (min(low for low, _ in spans), max(high for _, high in spans))}
    precision = across.candidates[0].request.precision
    peaks = sum(share.gpus * getattr(share.cluster.gpu.peak_flops, precision).value for share in mixed.shares)
    what = replace(
        each[tightest],
        interval=interval,
        mfu=tidy(each[0].model_tflops_per_gpu * 1e12 / float(peaks / mixed.gpus)),
        host_bytes=max(one.host_bytes for one in each),
    )
    return MixedCandidate(plan_candidate(across.candidates[0], jobs[0], across.peaks, what), (hosts[0], hosts[1]))


def _host(across: Across, mixed: MixedCluster, jobs: Sequence[Job], kind: int, what: Predicted) -> Host:
    """Return one kind's part of the pipeline: spans of its stages and nodes, and the layers of each of its stages.

    kind: 0 for the first in the pipeline, 1 for the second. what: prediction with its memory. usable_bytes is that of
    one of its GPUs under its own job.
    """
    share = mixed.shares[across.order[kind]]
    mine = range(across.pp)[across.stages[kind]]
    before = 0 if kind == 0 else mixed.shares[across.order[0]].nodes
    memory = share.cluster.gpu.memory_bytes.value
    return Host(
        share=share,
        stages=Span(mine[0], mine[-1]),
        nodes=Span(before, before + share.nodes - 1),
        layers=tuple(sum(map(layers, across.split.stage(stage))) for stage in mine),
        predicted=what,
        usable_bytes=jobs[across.order[kind]].limits.usable_bytes(memory),
    )
