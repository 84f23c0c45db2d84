"""Environment variables for Megatron-LM: a table with the reason, the GPUs and the versions of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Candidate, Plan

DATA = Path(__file__).with_name("environment.json")


@dataclass(frozen=True, slots=True)
class Variable:
    """One of launch.sh. `value`: as bash would have it between double quotes, a default that the caller's environment
    overrides; `forced`: the run fails or is wrong with another one, so the caller's own is overwritten."""

    name: str
    value: str
    reason: str
    source: str = ""
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Variable):
    """A row of the table. refused: the values that are known to be wrong; None: every other one, and none at all."""

    when: str
    architectures: tuple[str, ...]
    since: str | None
    until: str | None
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
def table() -> tuple[Row, ...]:
    """Every row. Of several rows with one name, the first that applies counts."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(
        Row(
            **{
                **row,
                "architectures": tuple(row["architectures"]),
                "refused": tuple(row["refused"]) if "refused" in row else None,
            }
        )
        for row in rows
    )


def variables(plan: Plan, megatron_version: str) -> tuple[Row, ...]:
    """What applies to this plan's GPU, version and options."""
    return applying(megatron_version, plan.cluster.gpu.architecture, lambda when: _WHEN[when](plan.best))


def applying(megatron_version: str, architecture: str, when: Callable[[str], bool]) -> tuple[Row, ...]:
    """The rows of a version and a GPU whose condition (a name of the column `when`) holds."""
    order = flags.versions()
    version = order.index(flags.resolve(megatron_version))
    found: dict[str, Row] = {}
    for row in table():
        in_range = (
            (order.index(row.since) if row.since else 0)
            <= version
            <= (order.index(row.until) if row.until else len(order))
        )
        if in_range and architecture in row.architectures and when(row.when):
            found.setdefault(row.name, row)
    return tuple(found.values())
