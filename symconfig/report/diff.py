"""Two plans side by side, for a person and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from symconfig.format import gib, seconds, signed, words
from symconfig.plans.plan import Plan
from symconfig.report import table
from symconfig.report.grid import Block, Grid
from symconfig.report.replan import listed, values
from symconfig.runs.replan.diff import Diff, Difference

_TITLES = {
    "inputs": "What was asked for",
    "training": "What is passed on",
    "parallel": "Degrees",
    "batch": "Batch",
    "options": "Options",
    "stages": "Stages",
}


def blocks(diff: Diff) -> list[Block]:
    """Return all blocks of a diff, in order: headlines, both plans, a table for each section with differences, time and
    memory, arguments. A single sentence if the plans are equal; another if the arguments are of two frameworks and not
    compared.
    """
    if diff.same:
        return ["The plans are the same."]
    both = table.compared((("before", diff.before.best), ("after", diff.after.best)))
    sections = {**diff.sections, "stages": _joined(diff.sections["stages"])}
    titled = [values(title, sections[name]) for name, title in _TITLES.items() if sections[name]]
    shown: list[Block] = [table.headline(diff.before), table.headline(diff.after), both, *titled]
    shown += _predicted(diff)
    if diff.sections["arguments"]:
        shown.append(
            values("Options of the framework", diff.sections["arguments"], most=len(diff.sections["arguments"]))
        )
    elif diff.before.best.target.backend != diff.after.best.target.backend:
        shown.append("They are for two frameworks, whose options have nothing in common.")
    return shown


def _joined(stages: Sequence[Difference]) -> list[Difference]:
    """Return runs of neighbouring stages with the same values before and after as one, named `stage 1 to 14`."""
    runs = [list(same) for _, same in groupby(stages, lambda each: (each.before, each.after))]
    return [
        run[0] if len(run) == 1 else replace(run[0], field=f"{run[0].field} to {run[-1].field.removeprefix('stage ')}")
        for run in runs
    ]


def _predicted(diff: Diff) -> Iterator[Block]:
    """Yield tables of step time and memory, each only if a part of it differs: these parts and the sum."""
    one, other = diff.before.best.predicted, diff.after.best.predicted
    if diff.sections["time"]:
        rows = [*_rows(diff.sections["time"], seconds), _sum("step", one.step_s, other.step_s, seconds)]
        yield Grid(("time of a step", "before s", "after s", "change s", ""), tuple(rows), left=(0,))
    if diff.sections["memory"]:
        rows = [
            *_rows(diff.sections["memory"], gib),
            _sum("GPU memory in use", one.device_bytes, other.device_bytes, gib),
        ]
        yield Grid(("memory of the fullest GPU", "before GiB", "after GiB", "change GiB", ""), tuple(rows), left=(0,))


def _rows(differences: Sequence[Difference], shown: Any) -> Iterator[tuple[str, ...]]:
    """Yield rows of parts, the largest change first, then by name. shown: formats a value."""
    for each in sorted(differences, key=lambda each: (-abs(each.delta or 0.0), each.field)):
        yield (words(each.field), shown(each.before), shown(each.after), _signed(each.delta or 0.0, shown), "")


def _sum(name: str, before: float, after: float, shown: Any) -> tuple[str, ...]:
    """Return the row (name, before, after, change, relative change) of a sum; the last is "" if `before` is 0."""
    return (
        name,
        shown(before),
        shown(after),
        _signed(after - before, shown),
        signed(after / before - 1) if before else "",
    )


def _signed(delta: float, shown: Any) -> str:
    return f"{'+' if delta >= 0 else ''}{shown(delta)}"


def to_dict(diff: Diff) -> dict[str, Any]:
    """Return the JSON of `symconfig diff --json`: whether the plans are equal, both, and the differences by section."""
    return {
        "schema": "symconfig.diff/1",
        "same": diff.same,
        "before": _plan(diff.before),
        "after": _plan(diff.after),
        **{name: [listed(each) for each in section] for name, section in diff.sections.items()},
    }


def _plan(plan: Plan) -> dict[str, Any]:
    """Return a plan's model, cluster, GPUs, target and symconfig version."""
    return {
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "gpus": plan.best.configuration.world_size,
        "target": {"backend": plan.best.target.backend, "version": plan.best.target.version},
        "symconfig": plan.symconfig_version,
    }
