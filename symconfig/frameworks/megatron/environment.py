"""Environment variables for Megatron-LM: a table with the reason, the GPUs and the versions of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from symconfig.frameworks.constraint import Fixed
from symconfig.frameworks.maturity import Option
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
    return applying(megatron_version, plan.cluster.gpu.architecture, lambda when: _WHEN[when](plan.best), options)


def applying(
    megatron_version: str, architecture: str, when: Callable[[str], bool], options: Collection[str] = ()
) -> tuple[Row, ...]:
    """Return the rows that apply to a version and a GPU architecture; of one name only the first.

    when: decides for a name of the column `when` whether it holds. options: names of the options in use; rows of other
    options are left out. An unknown version raises InputError.
    """
    version, rows = flags.resolve(megatron_version), dict[str, Row]()
    for row in table():
        in_force = between(version, row.since, row.until) and architecture in row.architectures
        if in_force and (row.option is None or row.option in options) and when(row.when):
            rows.setdefault(row.name, row)
    return tuple(rows.values())
