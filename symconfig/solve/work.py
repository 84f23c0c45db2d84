"""Where the seconds of the blocks go: matmuls, attention, memory traffic, and each kind of collective."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from symconfig.cost.policies import Policies
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.block import Place
from symconfig.graph.derived import AttentionWork, Matmul, Phase
from symconfig.graph.model import sequence
from symconfig.graph.recompute import apply
from symconfig.solve.configuration import Configuration
from symconfig.solve.costed import costed
from symconfig.solve.predict import as_found


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of a step on one GPU, mean over the pipeline's stages. hidden_s: of a collective, behind other work.
    Among them those for which the GPU waits for the host to launch its kernels.

    Without the pipeline's bubble, and without what recompute runs again.
    """

    name: str
    forward_s: float
    backward_s: float
    hidden_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


_ENDS = ("of the layers", "of both ends", "of the vision tower")


def _end(place: Place) -> str:
    return _ENDS[1 if place.outermost else 2 if place is Place.ENCODER else 0]


def work(model: ModelDescriptor, cluster: ClusterDescriptor, configuration: Configuration) -> tuple[Work, ...]:
    """Return the layers' kinds of work, that of both ends of the model and of its encoders, then the collectives."""
    prospect = as_found(model, cluster, configuration)
    table = costed(prospect).table
    c = configuration
    times = c.global_batch / (c.degrees.dp * c.micro) / c.degrees.pp
    counts = Counter(sequence(model))
    seconds: dict[str, list[float]] = {}

    def add(name: str, phase: Phase, value: float, hidden: float = 0.0) -> None:
        entry = seconds.setdefault(name, [0.0, 0.0, 0.0])
        entry[phase is not Phase.FORWARD] += value
        entry[2] += hidden

    for block in sorted(table.blocks, key=lambda block: _ENDS.index(_end(block.derived.place))):
        often = times * counts[block.derived.name]
        end = _end(block.derived.place)
        kinds = {work.op: "memory traffic" for work in block.derived.work}
        for kind, name in ((AttentionWork, "attention"), (Matmul, "matmuls")):  # a bias apart goes with its matmul
            kinds |= {work.op: name for work in block.derived.work if isinstance(work, kind)}
        for (op, phase), value in block.work_s.items():
            add(f"{kinds[op]} {end}", phase, often * float(value[0]))
    for block in table.blocks:
        often = times * counts[block.derived.name]
        # Nothing is offloaded here, so the host's link does not matter.
        passes = block.passes(Policies([apply(block.derived, frozenset())]), 1.0, c.framework)[:, 0, 0]
        for phase, whole in zip((Phase.FORWARD, Phase.INPUT), passes, strict=False):
            busy = sum(
                float(value[0])
                for (_, when), value in block.work_s.items()
                if (when is Phase.FORWARD) is (phase is Phase.FORWARD)
            )
            add("waiting for the host to launch kernels", phase, often * max(0.0, float(whole) - busy))
    for block in table.blocks:
        often = times * counts[block.derived.name]
        for collective, full, exposed in zip(block.derived.collectives, block.full_comm_s, block.comm_s, strict=True):
            shown, whole = often * float(exposed[0]), often * float(full[0])
            add(f"{collective.kind.value} over {' x '.join(collective.axes)}", collective.phase, shown, whole - shown)
    return tuple(Work(name, *values) for name, values in seconds.items() if any(values))
