"""`symconfig list targets`: what plans are written as, what starts them, and which of it can carry a certain plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symconfig.errors import Problem, SymconfigError
from symconfig.format import grouped
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, overlaid, render
from symconfig.render import targets as every_target
from symconfig.render.target import Target
from symconfig.report.grid import Block, Grid


@dataclass(frozen=True, slots=True)
class Carried:
    """A target. problems: why it cannot express the plan; () if it can, None if no plan was given."""

    name: str
    does: str
    problems: tuple[Problem, ...] | None

    @property
    def another(self) -> bool:
        """Return whether only this plan's choices are in the way, so that the target could express another plan."""
        return bool(self.problems) and all(problem.pins for problem in self.problems or ())

    @property
    def carries(self) -> str:
        return "yes" if not self.problems else "another" if self.another else "no"


def targets(plan: Plan | None, templates: Path | None) -> tuple[Carried, ...]:
    """Return all targets, with their problems with the plan if one is given. Raises InputError for an invalid folder
    of templates.
    """
    known: Mapping[str, Target] = every_target() if templates is None else overlaid(templates)
    return tuple(
        Carried(name, source.does, None if plan is None else _problems(plan, name, templates))
        for name, source in known.items()
    )


def _problems(plan: Plan, target: str, templates: Path | None) -> tuple[Problem, ...]:
    try:
        render(plan, target, (), templates)
    except SymconfigError as error:
        return error.problems
    return ()


def blocks(carried: tuple[Carried, ...]) -> list[Block]:
    """Return the tables of targets and launchers, and why some targets cannot express the plan."""
    planned = any(item.problems is not None for item in carried)
    rows = tuple((item.name, *([item.carries] if planned else []), item.does) for item in carried)
    headers = ("target", *(["this plan"] if planned else []), "writes")
    starts = tuple((name, source.does) for name, source in every_launcher().items())
    grids: list[Block] = [
        Grid(headers, rows, left=(0, 1, 2), title="Targets (--target)"),
        Grid(("launcher", "writes"), starts, left=(0, 1), title="Launchers (--launcher)"),
    ]
    reasons = grouped((str(problem), item.name) for item in carried for problem in item.problems or ())
    sharing = grouped((", ".join(names), text) for text, names in reasons.items())
    why = tuple(("" if place else names, text) for names, texts in sharing.items() for place, text in enumerate(texts))
    if any(item.another for item in carried):
        how = "finds the best plan that it can be told, and says what that costs"
        grids.insert(1, f"another: symconfig replan PLAN.json --target T {how}.")
    return [*grids, *([Grid(("target", "cannot say"), why, left=(0, 1), title="Why not")] if why else [])]


def to_dict(carried: tuple[Carried, ...]) -> dict[str, Any]:
    """Return the JSON of `symconfig list targets --json`; without a plan there are no verdicts."""
    return {
        "schema": "symconfig.formats/1",
        "targets": [
            {
                "name": item.name,
                "does": item.does,
                **({} if item.problems is None else {"carries": not item.problems, "another": item.another}),
                **({} if item.problems is None else {"reasons": list(map(str, item.problems))}),
            }
            for item in carried
        ],
        "launchers": [{"name": name, "does": source.does} for name, source in every_launcher().items()],
    }
