"""Plans for a cluster that loses nodes, from Python: `symconfig.replan_lost_nodes(plan, (1, 4))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.api.planning import AnyPlan, Wanted, check_top, files, put, warn_replaced
from symconfig.format import json_text
from symconfig.plans.file import loaded
from symconfig.runs.best import TOP
from symconfig.runs.replan.fallback import Fallback
from symconfig.runs.replan.fallback import fallback as solve

if TYPE_CHECKING:
    from symconfig.render.files import Files

NAME = "fallback.json"


@dataclass(frozen=True, slots=True)
class FallbackResult:
    """The plans for fewer nodes, with methods to write and convert them."""

    fallback: Fallback

    def write(
        self,
        out: str | Path,
        force: bool = False,
        target: str | None = None,
        launchers: Sequence[str] | None = None,
        templates: str | Path | None = None,
    ) -> list[Path]:
        """Write nodes-N/ for each plan, and, if the target has one, a launch.sh that picks the one for the nodes
        present; return the paths. All or none. Otherwise as `PlanResult.write`.
        """
        wanted = Wanted.of(target, launchers, templates)
        return put(lambda: fallback_files(self.fallback, wanted), Path(out), force, warn_replaced)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of `symconfig replan --lose-nodes --json`."""
        from symconfig.report.fallback import to_dict

        return to_dict(self.fallback)


def replan_lost_nodes(
    plan: AnyPlan,
    lose_nodes: int | tuple[int, int] = (1, 4),
    *,
    top: int = TOP,
    progress: Callable[[str, float], None] | None = None,
) -> FallbackResult:
    """Return plans for the cluster without `lose_nodes` nodes; (1, 4) is each of 1 to 4. plan: a plan, its file or
    folder. top: candidates of each. A size on which nothing fits has problems and no plan. Raises InputError, also for
    numbers not from 1 to the plan's nodes less one.
    """
    first, last = (lose_nodes, lose_nodes) if isinstance(lose_nodes, int) else lose_nodes
    check_top(top)
    return FallbackResult(solve(loaded(plan), range(first, last + 1), top=top, progress=progress))


def fallback_files(fallback: Fallback, wanted: Wanted) -> Files:
    """Return the files of all plans in their folders nodes-N/, fallback.json and a manifest of all of them. If the
    first plan's files include launch.sh, a launch.sh (and other launchers) above the folders is added that picks one by
    the number of nodes. Raises InputError, InfeasibleError if the target cannot express a plan.
    """
    from symconfig.render.files import File, Files
    from symconfig.render.manifest import manifest
    from symconfig.render.several import above, node_folder
    from symconfig.render.target import LAUNCH
    from symconfig.report.fallback import advice, to_dict

    target, framework = wanted.of_plan(fallback.plan), fallback.plan.best.target.backend
    launchers = wanted.to_start(fallback.plan, target)
    # Only the framework's own files pass on to it, as they are, the options that launch.sh is given.
    advised = advice(fallback, "bash launch.sh" if target == framework else "")
    made = [
        replace(item, path=f"{node_folder(count)}/{item.path}")
        for count, plan in fallback.runs
        for item in files(plan, wanted)
    ]
    if any(item.path == f"{node_folder(fallback.runs[0][0])}/{LAUNCH}" for item in made):
        made = [*above(fallback.runs, launchers, advised), *made]
    made.append(File(NAME, json_text(to_dict(fallback))))
    done = Files(tuple(made))
    return Files((*done, manifest(done, target, launchers, wanted.templates)))
