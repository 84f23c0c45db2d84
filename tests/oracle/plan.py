"""A whole plan from its blocks: what each stage is made of and holds, and the step of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from tests.oracle.ends import embedding, head
from tests.oracle.given import ACTIVATION, CONTEXT, FRAGMENTATION, GRADIENT, OPTIMIZER, QUEUE, WEIGHT, Model, Run
from tests.oracle.layer import LAYER, layer
from tests.oracle.passes import Passes, passes
from tests.oracle.records import Block


@dataclass(frozen=True)
class Stage:
    """Sums over the blocks of a stage: seconds of a microbatch, bytes, parameters on one rank."""

    index: int
    forward: float
    backward: float
    forward_comm: float
    backward_comm: float
    again: float
    without: float
    kept: float  # for each microbatch in flight
    loss: float  # once
    working: float
    dense: float
    expert: float
    vocabulary: float
    largest: float  # parameters of its largest block

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.forward_comm + self.backward_comm

    @property
    def ahead(self) -> float:
        return self.forward + self.forward_comm

    @property
    def back(self) -> float:
        return self.backward + self.backward_comm


@dataclass(frozen=True)
class Plan:
    """A model and how it runs."""

    model: Model
    run: Run

    @property
    def blocks(self) -> tuple[Block, Block, Block]:
        """Embedding, layer and head, once each."""
        return _blocks(self.model, _of_blocks(self.run))

    def passes(self, block: int, modules: frozenset[str]) -> Passes:
        """One microbatch through one of the blocks, with these modules recomputed."""
        return _passes(self.model, _of_blocks(self.run), block, modules)

    @property
    def each(self) -> int:
        """Layers of a chunk."""
        return self.model.layers // (self.run.pp * self.run.vpp)


def plan(model: Model, run: Run) -> Plan:
    return Plan(model, run)


def _of_blocks(run: Run) -> Run:
    """The run without what no block depends on, so that each is worked out once."""
    return replace(run, pp=1, vpp=1, dp=1, microbatches=1, zero=0, modules=frozenset(), first=0, offload=0.0)


@cache
def _blocks(model: Model, run: Run) -> tuple[Block, Block, Block]:
    return embedding(model, run), layer(model, run), head(model, run)


@cache
def _passes(model: Model, run: Run, block: int, modules: frozenset[str]) -> Passes:
    return passes(_blocks(model, run)[block], replace(run, modules=modules))


def stages(what: Plan) -> list[Stage]:
    """Equal numbers of layers; the embedding on the first stage, the head on the last one."""
    run, (first, body, last) = what.run, what.blocks
    often = what.each * run.vpp
    full, mine = what.passes(1, frozenset({LAYER})), what.passes(1, run.modules)
    looks_up, ends = what.passes(0, run.modules), what.passes(2, run.modules)
    result = []
    for index in range(run.pp):
        blocks = [body] * often + [first] * (index == 0) + [last] * (index == run.pp - 1)
        costs: list[Passes] = [mine] * often
        if run.first:  # full recompute of the first layers of each chunk; what it adds is all of it again
            repeated = run.first * run.vpp
            added = full.seconds - mine.seconds
            changed = replace(
                mine, backward=mine.backward + added, again=added, kept=full.kept, transient=full.transient
            )
            costs = [changed] * repeated + [mine] * (often - repeated)
        costs += [looks_up] * (index == 0)
        loss = ends if index == run.pp - 1 else None
        every = costs + ([loss] if loss else [])
        result.append(
            Stage(
                index,
                *(sum(getattr(c, name) for c in every) for name in _SUMS),
                sum(c.kept for c in costs),
                loss.kept if loss else 0.0,
                _working(every, mine, blocks),
                sum(b.dense for b in blocks),
                sum(b.expert for b in blocks),
                sum(b.vocabulary for b in blocks),
                max(b.dense + b.expert for b in blocks),
            )
        )
    return result


_SUMS = ("forward", "backward", "forward_comm", "backward_comm", "again", "without")


def _working(costs: list[Passes], plain: Passes, blocks: list[Block]) -> float:
    """While a block runs backward: its gradients and what it brings back; the buffers of weight gradients, in bf16, of
    one layer, since all layers share them; workspaces of grouped products."""
    transient = max(plain.transient, *(c.transient for c in costs))
    return transient + ACTIVATION * max(b.gradient_buffers for b in blocks) + max(b.libraries for b in blocks)


def in_flight(run: Run, stage: int) -> float:
    """Microbatches of a whole stage at its peak: of 1F1B pp - stage; interleaved as many chunks as Megatron's warm-up
    has and one more (Narayanan 2021, section 2.2; schedules.py, get_pp_rank_microbatches)."""
    if run.vpp == 1:
        return min(run.microbatches, run.pp - stage)
    warm = 2 * (run.pp - stage - 1) + (run.vpp - 1) * run.pp
    return min(run.microbatches * run.vpp, warm + 1) / run.vpp


def shards(run: Run) -> tuple[float, float]:
    """Ranks among which ZeRO shares out what is no expert's (dp x cp), and what is an expert's."""
    return run.dp * run.cp, run.edp


def states(stage: Stage, run: Run) -> dict[str, float]:
    """ZeRO (Rajbhandari 2020, section 3): stage 1 cuts the optimizer's state, 2 gradients too, 3 weights too."""
    over, over_expert = shards(run)

    def share(least: int) -> float:
        if run.zero < least:
            return stage.dense + stage.expert
        return stage.dense / over + stage.expert / over_expert

    # A block's weights are whole while it is computed, and the next one's come meanwhile.
    gathered = 2 * WEIGHT * stage.largest if run.zero == 3 else 0.0
    return {
        "weights": WEIGHT * share(3) + gathered,
        "gradients": GRADIENT * share(2),
        "optimizer state": OPTIMIZER * (1 - run.offload) * share(1),
    }


def memory(what: Plan) -> list[dict[str, float]]:
    """Bytes of each stage at its peak, by part. Megatron-FSDP has whole gradients besides, before it reduces them: at
    ZeRO 2 of the stage, at ZeRO 3 those of a queue. They come as activations go. At ZeRO 3 half as many weights are
    gathered ahead."""

    def queued(stage: Stage) -> tuple[float, float]:
        every, kept = stage.dense + stage.expert, stage.kept * in_flight(what.run, stage.index) + stage.loss
        most = {2: every, 3: min(every, max(QUEUE, 2 * stage.largest))}.get(what.run.zero, 0.0)
        ahead = max(min(QUEUE / 2, every - stage.largest) - stage.largest, 0.0)
        return ahead * (what.run.zero == 3), max(GRADIENT * most - kept, 0.0)

    return [
        {
            "activations": stage.kept * in_flight(what.run, stage.index),
            "head and loss": stage.loss,
            "working set": stage.working,
            **(held := states(stage, what.run)),
            "weights": held["weights"] + WEIGHT * queued(stage)[0],
            "gradients": held["gradients"] + queued(stage)[1],
        }
        for stage in stages(what)
    ]


def device(peak: float) -> float:
    """What the allocator takes for a peak, and the context beside it."""
    return peak * (1 + FRAGMENTATION) + CONTEXT
