"""Which degrees Megatron-LM and DeepSpeed run: the planner's rules, asked of many degrees at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from symconfig.solve.partition.degrees import Degrees

if TYPE_CHECKING:
    from symconfig.descriptor.model import ModelDescriptor


class Framework(StrEnum):
    """By the planner's name."""

    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"

    @property
    def label(self) -> str:
        return {"megatron": "Megatron-LM", "deepspeed": "DeepSpeed"}[self.value]


@dataclass(frozen=True, slots=True)
class Step:
    """What of a step the rules ask. batch: examples of one microbatch over all ranks. model, batch: None of a program
    that is not a model's; then only what no model gets around counts."""

    turns: int = 1
    model: ModelDescriptor | None = None
    batch: int | None = None
    seq_length: int = 0
    architecture: str = ""
    precision: str = "bf16"
    megatron_version: str = "dev"


def runs(framework: Framework, step: Step, degrees: Sequence[Degrees]) -> NDArray[np.bool_]:
    """For each degrees whether the framework's plans can have them."""
    result = np.zeros(len(degrees), dtype=bool)
    kinds: dict[tuple[bool, str], list[int]] = {}
    for index, one in enumerate(degrees):
        kinds.setdefault((one.sequence_parallel, one.cp_comm), []).append(index)
    for (switched, comm), mine in kinds.items():
        result[mine] = ~_refused(framework, step, [degrees[index] for index in mine], switched, comm)
    return result


def _refused(
    framework: Framework, step: Step, degrees: Sequence[Degrees], switched: bool, comm: str
) -> NDArray[np.bool_]:
    """Of degrees with the same scheme."""
    from symconfig.solve import limits

    common = limits.COMMON[framework.value]
    tp, cp, dp, ep, etp, zero = np.array([(d.tp, d.cp, d.dp, d.ep, d.etp, d.zero) for d in degrees], dtype=np.int64).T
    batch = step.batch if step.batch is not None else int(np.lcm.reduce(dp))
    refusals: tuple[Any, ...] = common.refusals
    if step.model is not None:
        refusals = limits.limits(framework.value, step.megatron_version, step.model, step.architecture).refusals
    points = limits.Degrees(
        tp, 1, cp, ep, etp, dp, np.maximum(batch // dp, 1), np.full_like(tp, step.turns), step.seq_length, switched,
        comm if comm == "a2a" else "p2p", step.precision,
    )  # fmt: skip
    adapted = step.model is not None and step.model.adapter is not None and framework is Framework.MEGATRON
    wrong = [
        np.asarray(adapted),
        etp > tp,  # the planner cuts no expert finer than a dense layer
        np.not_equal(batch % dp, 0),
        (tp > 1) & (switched not in common.tensor_with_sequence),
        common.fsdp_alone & (zero > 1) & (tp * cp * ep * etp != 1),
        *(np.asarray(test(step.model, points), dtype=bool) for _, _, test in refusals),
    ]
    return np.asarray(np.any(np.broadcast_arrays(tp > 0, *wrong)[1:], axis=0))
