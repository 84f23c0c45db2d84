"""Plans for several numbers of nodes in one folder: the launch.sh above them, which takes the one that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symconfig.plans.plan import Plan
from symconfig.render import sources, summary
from symconfig.render.files import File, Files
from symconfig.render.fill import filled
from symconfig.render.settings import split
from symconfig.render.target import Target
from symconfig.resources import data_dir


def folder(nodes: int) -> str:
    """Return the name of the folder with the plan for this number of nodes."""
    return f"nodes-{nodes}"


def above(plans: Sequence[tuple[int, Plan]], launchers: Sequence[str], advice: Sequence[str] = ()) -> list[File]:
    """Return launch.sh, which starts the plan for the nodes found, and sbatch.sh if Slurm is among the launchers.

    plans: by number of nodes, largest first. advice: sentences on saving, for the comments of launch.sh.
    """
    plan, counts = plans[0][1], [count for count, _ in plans]
    values = {"plan": plan, "nodes": summary.nodes(plan), "counts": counts, "advice": advice}
    made = filled((data_dir("templates") / "fallback",), ("launch.sh.j2",), values)
    for launcher in launchers:
        if split(launcher)[0] == "slurm":
            (source,) = sources(None, [launcher], None)
            made += _of_a_range(source, counts[-1]).files(plan, Files(tuple(made)))
    return made


def _of_a_range(slurm: Target, least: int) -> Target:
    """Return the Slurm launcher requesting from `least` nodes up to those of its plan."""
    inner = slurm.variables
    return replace(slurm, variables=lambda plan, files: {**inner(plan, files), "least": least})
