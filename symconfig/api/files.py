"""The files of plans: which are wanted, what is in them, writing them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.plans.plan import Plan

if TYPE_CHECKING:
    from symconfig.render.files import Files

Tell = Callable[[Sequence[str]], None]


def warn_replaced(names: Sequence[str]) -> None:
    """Warn that these edited files were replaced."""
    warnings.warn(f"replaced what was not as symconfig had written it: {', '.join(names)}", stacklevel=4)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The files to write. target: None: the plan's own framework. launchers: None: the target's default. templates:
    folder of own templates; None: none.
    """

    target: str | None = None
    launchers: tuple[str, ...] | None = None
    templates: Path | None = None

    @classmethod
    def of(cls, target: str | None, launchers: Sequence[str] | None, templates: str | Path | None) -> Wanted:
        """Return the choice with types normalised; no launchers become None."""
        return cls(target, tuple(launchers) if launchers else None, Path(templates) if templates is not None else None)

    def of_plan(self, plan: Plan) -> str:
        """Return the target's name: the chosen one or the plan's own."""
        from symconfig.render import own_target

        return self.target or own_target(plan)

    def to_start(self, plan: Plan, target: str) -> tuple[str, ...]:
        """Return the chosen launchers, or the target's default ones. Raises InputError, InfeasibleError."""
        from symconfig.render import usual_launchers

        return usual_launchers(plan, target, self.templates) if self.launchers is None else self.launchers

    def check(self) -> None:
        """Raise InputError for targets, launchers or templates that do not exist; called before the search."""
        from symconfig.render import sources

        sources(self.target, self.launchers or (), self.templates)


def files(plan: Plan, wanted: Wanted) -> Files:
    """Return the files of a plan: the target's and launchers' files, trace.json if the best candidate's schedule can be
    simulated, and a manifest.json of them. REPORT.md gets sections about the plan and its schedule. Raises InputError,
    InfeasibleError if the target cannot express the plan.
    """
    from symconfig.render import manifest, render
    from symconfig.render.files import File, Files
    from symconfig.report.explanation import blocks
    from symconfig.report.grid import narrow, page_section
    from symconfig.report.timeline import TRACE, written

    target = wanted.of_plan(plan)
    launchers = wanted.to_start(plan, target)
    rendered = render(plan, target, launchers, wanted.templates)
    schedule, traced = written(plan)
    sections = f"{page_section('The plan', blocks(plan)[1:])}\n{schedule}"
    items = [
        replace(item, text=narrow(f"{item.text}\n{sections}")) if item.path == "REPORT.md" else item
        for item in rendered
    ]
    done = Files((*items, *([File(TRACE, traced)] if traced is not None else [])))
    return Files((*done, manifest.manifest(done, target, launchers, wanted.templates)))


def page_files(plan: Plan, wanted: Wanted) -> dict[str, str]:
    """Return {name: text} of the files that a page shows; the trace is left out."""
    from symconfig.report.timeline import TRACE

    return {item.path: item.text for item in files(plan, wanted) if item.path != TRACE}


def remarks(plan: Plan, wanted: Wanted) -> tuple[str, ...]:
    """Return lines on the run that the files start: a learning rate that was derived (if so), then the target's own:
    training fields that are not passed on, missing checkpoints.
    """
    from symconfig.descriptor import learning_rate
    from symconfig.render import sources
    from symconfig.solve.run import learning_rate_key

    chosen = learning_rate.short(plan.training, *learning_rate_key(plan.task, plan.model))
    (target,) = sources(wanted.of_plan(plan), (), wanted.templates)
    return (*([chosen] if chosen else []), *target.remarks(plan))


def write(plan: Plan, out: Path, wanted: Wanted, force: bool, tell: Tell = warn_replaced) -> list[Path]:
    """Write a plan's files into `out`, all or none; return the paths. tell: as of `put`."""
    return put(lambda: files(plan, wanted), out, force, tell)


def put(make: Callable[[], Files], out: Path, force: bool, tell: Tell = warn_replaced) -> list[Path]:
    """Write `make()`'s files into a folder, all or none; return the paths. `out` is checked before `make` is called.
    tell: called once with the names of files that were edited since they were written and are replaced, if any. Raises
    InputError if `out` cannot be written or exists without `force`, and what `make` raises.
    """
    from symconfig.render.files import check_folder
    from symconfig.render.files import write as write_files
    from symconfig.runs.replan.frozen import replaced

    check_folder(out, force)
    made, names = make(), list[str]()
    write_files(made, out, force, lambda: names.extend(replaced(out, made)))
    if names:
        tell(names)
    return [out / name for name in made.paths()]
