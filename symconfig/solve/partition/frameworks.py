"""Which degrees Megatron-LM and DeepSpeed run: the planner's rules, asked of many degrees at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from symconfig.frameworks.known import BACKENDS, facts
from symconfig.solve.partition.degrees import AXES, Way

if TYPE_CHECKING:
    from symconfig.descriptor.model import ModelDescriptor
    from symconfig.frameworks.constraint import Constraint
    from symconfig.frameworks.facts import Fixed


class Framework(StrEnum):
    """By the planner's name."""

    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"

    @property
    def label(self) -> str:
        return BACKENDS[self.value].label


@dataclass(frozen=True, slots=True)
class Step:
    """The properties of a step that rules ask for. batch: examples of one microbatch over all ranks. model, batch: None
    of a program that is not a model's; then only what no model gets around counts.
    """

    turns: int = 1
    model: ModelDescriptor | None = None
    batch: int | None = None
    seq_length: int = 0
    architecture: str = ""
    precision: str = "bf16"
    megatron_version: str = "main"
    attention: str | None = None


def runs(framework: Framework, step: Step, ways: Sequence[Way]) -> NDArray[np.bool_]:
    """Tell for each way whether the framework's plans can have it."""
    result = np.zeros(len(ways), dtype=bool)
    kinds: dict[tuple[bool, str], list[int]] = {}
    for index, one in enumerate(ways):
        kinds.setdefault((one.sequence_parallel, one.cp_comm), []).append(index)
    for (switched, comm), mine in kinds.items():
        wrong = [mask for _, mask in _refusals(framework, step, [ways[index] for index in mine], switched, comm)]
        result[mine] = ~np.any(wrong, axis=0)
    return result


def blockers(framework: Framework, step: Step, ways: Sequence[Way]) -> tuple[str, ...]:
    """Return reasons of which each alone leaves none of some ways, of one scheme."""
    scheme = ways[0].sequence_parallel, ways[0].cp_comm
    return tuple(reason for reason, mask in _refusals(framework, step, ways, *scheme) if mask.all())


def _refusals(
    framework: Framework, step: Step, ways: Sequence[Way], switched: bool, comm: str
) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return reasons, of ways with the same scheme, and which of them each refuses."""
    from symconfig.plans.columns import Columns

    backend = BACKENDS[framework.value]
    table, fixed = _rules(framework, step.megatron_version, step.model, step.architecture, step.attention)
    tp, cp, dp, ep, etp = (np.array([getattr(way.degrees, name) for way in ways]) for name in AXES)
    zero = np.array([way.zero for way in ways])
    batch = step.batch if step.batch is not None else int(np.lcm.reduce(dp))
    point = Columns(
        gpus=tp * cp * dp,
        tp=tp,
        pp=1,
        cp=cp,
        ep=ep,
        etp=etp,
        dp=dp,
        micro=np.maximum(batch // dp, 1),
        num_microbatches=step.turns,
        seq_length=step.seq_length,
        sequence_parallel=switched,
        cp_comm=comm if comm == "a2a" else "p2p",
        precision=step.precision,
        zero=zero,
    )
    adapted = step.model is not None and step.model.adapter is not None and not backend.adapters
    wrong = [
        (f"{backend.label} has no LoRA or other adapters", np.asarray(adapted)),
        ("the planner cuts no expert finer than a dense layer", etp > tp),
        ("a microbatch has whole examples on every rank", np.not_equal(batch % dp, 0)),
        *((constraint.rule, constraint.mask(fixed, point, tp.shape)) for constraint in table),
    ]
    return [(reason, np.broadcast_to(mask, tp.shape)) for reason, mask in wrong]


@lru_cache(maxsize=16)
def _rules(
    framework: Framework, version: str, model: ModelDescriptor | None, architecture: str, attention: str | None
) -> tuple[tuple[Constraint, ...], Fixed]:
    """Return the planner's rules that a point may fail, and what they ask of the model."""
    from symconfig.frameworks.facts import Fixed
    from symconfig.frameworks.tables import constraints
    from symconfig.solve.limits import limits
    from symconfig.solve.unpriced import narrowed

    if model is None:
        fixed = Fixed(architecture=architecture) if architecture else Fixed()
        return tuple(narrowed(framework.value, constraints(framework.value, version))), fixed
    space = limits(framework.value, version, model, facts(framework.value, model, architecture, attention))
    return space.refusals, space.fixed
