"""Environment variables for Megatron-LM: a table with the reason, the GPUs and the versions of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from symconfig.frameworks.backend import Option
from symconfig.frameworks.constraint import Fixed
from symconfig.frameworks.megatron import flags
from symconfig.frameworks.megatron.maturity import OPTIONS
from symconfig.frameworks.megatron.releases import between
from symconfig.plans.plan import Candidate, Plan

DATA = Path(__file__).with_name("environment.json")


@dataclass(frozen=True, slots=True)
class Variable:
    """One of launch.sh. `value`: as bash would have it between double quotes, a default that the caller's environment
    overrides; `forced`: the run fails or is wrong with another one, so the caller's own is overwritten; `literal`: the
    value is a text as it stands, of which bash reads nothing."""

    name: str
    value: str
    reason: str
    source: str = ""
    forced: bool = False
    literal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Variable):
    """A row of the table.

    option: the name of an option of `maturity.OPTIONS` that a plan must use for it; None: any plan. refused: the values
    that are known to be wrong; None: every other one, and none at all.
    """

    when: str
    option: str | None = None
    architectures: tuple[str, ...]
    since: str | None
    until: str | None
    refused: tuple[str, ...] | None = None


_WHEN: dict[str, Callable[[Candidate], bool]] = {
    "always": lambda best: True,
    "fsdp": lambda best: best.configuration.zero_stage >= 2,
    "moe_overlap": lambda best: best.configuration.overlap_moe_a2a and best.configuration.ep > 1,
    "tp": lambda best: best.configuration.tp > 1,
    "tp_or_cp": lambda best: best.configuration.tp > 1 or best.configuration.cp > 1,
    "activation_offload": lambda best: best.configuration.activation_offload,
    "hybridep": lambda best: best.configuration.moe_flex_backend == "hybridep",
}


@cache
def table() -> tuple[Row, ...]:
    """Return every row of environment.json, cached; of several applicable rows with one name the first counts."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    lists: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows
    ]
    return tuple(Row(**row) for row in lists)


def used(plan: Plan) -> tuple[Option, ...]:
    """Return the options of `maturity.OPTIONS` that the best candidate is known to use."""
    fixed = Fixed.of(plan.model, joined=plan.cluster.joined_gpus, architecture=plan.cluster.gpu.architecture)
    point = plan.best.configuration
    return tuple(option for option in OPTIONS if option.used(fixed, point))


def variables(plan: Plan, megatron_version: str) -> tuple[Row, ...]:
    """Return the environment variables that apply to the plan's GPU, options and this version, one row each."""
    options = [option.name for option in used(plan)]
    c, cluster = plan.best.configuration, plan.cluster
    named = places(c.ep * c.etp, cluster.joined_gpus, cluster.gpus_per_node)
    return applying(megatron_version, cluster.gpu.architecture, lambda when: _WHEN[when](plan.best), options, named)


def places(ranks: int, joined: int, node: int) -> dict[str, int]:
    """Return the numbers by the names that rows' values may have in braces: near, joined and rack.

    near: how many of the `ranks` that exchange tokens of experts the fastest links join. joined: GPUs that these links
    join. rack: 1 if those are of several nodes, else 0. node: GPUs of one.
    """
    return {"near": min(ranks, joined), "joined": joined, "rack": int(joined > node)}


def applying(
    megatron_version: str,
    architecture: str,
    when: Callable[[str], bool],
    options: Collection[str] = (),
    named: Mapping[str, int] | None = None,
) -> tuple[Row, ...]:
    """Return the rows that apply to a version and a GPU architecture; of one name only the first.

    A row without since or until is not bounded there. when: decides for a name of the column `when` whether it holds.
    options: names of the options in use; rows of other options are left out. named: numbers by the names that values
    have in braces (`places`); None: rows with such values are left out. An unknown version raises InputError.
    """
    version, rows = flags.resolve(megatron_version), dict[str, Row]()
    for row in table():
        wanted = between(version, row.since, row.until) and architecture in row.architectures
        wanted &= (row.option is None or row.option in options) and (named is not None or "{" not in row.value)
        if wanted and when(row.when):
            rows.setdefault(row.name, replace(row, value=row.value.format(**named or {})))
    return tuple(rows.values())
