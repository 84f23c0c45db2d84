"""Environment variables for Megatron-LM: a table with the reason, the GPUs and the versions of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from symconfig.plan import Candidate, Plan
from symconfig.render import flags

DATA = Path(__file__).parent / "data" / "environment.json"


@dataclass(frozen=True, slots=True)
class Variable:
    """`forced`: the run fails or is wrong with another value, so the caller's own value is overwritten.

    refused: the values that are known to be wrong; None: every other one, and none at all.
    """

    name: str
    value: str
    forced: bool
    when: str
    architectures: tuple[str, ...]
    since: str | None
    until: str | None
    reason: str
    source: str
    refused: tuple[str, ...] | None = None


_WHEN: dict[str, Callable[[Candidate], bool]] = {
    "always": lambda best: True,
    "fsdp": lambda best: best.options.zero_stage >= 2,
    "moe_overlap": lambda best: best.options.overlap.moe_a2a and best.parallel.ep > 1,
    "tp": lambda best: best.parallel.tp > 1,
    "tp_or_cp": lambda best: best.parallel.tp > 1 or best.parallel.cp > 1,
    "activation_offload": lambda best: best.options.activation_offload,
}


@cache
def table() -> tuple[Variable, ...]:
    """Every row. Of several rows with one name, the first that applies counts."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(Variable(**{**row, "architectures": tuple(row["architectures"]),
                             "refused": tuple(row["refused"]) if "refused" in row else None}) for row in rows)


def variables(plan: Plan, megatron_version: str) -> tuple[Variable, ...]:
    """What applies to this plan's GPU, version and options."""
    return applying(megatron_version, plan.cluster.gpu.architecture, lambda when: _WHEN[when](plan.best))


def applying(megatron_version: str, architecture: str, when: Callable[[str], bool]) -> tuple[Variable, ...]:
    """The rows of a version and a GPU whose condition (a name of the column `when`) holds."""
    order = flags.versions()
    version = order.index(flags.resolve(megatron_version))
    found: dict[str, Variable] = {}
    for row in table():
        in_range = (order.index(row.since) if row.since else 0) <= version <= (
            order.index(row.until) if row.until else len(order))
        if in_range and architecture in row.architectures and when(row.when):
            found.setdefault(row.name, row)
    return tuple(found.values())
