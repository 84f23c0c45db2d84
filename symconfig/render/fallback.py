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
    """Return where the files of the plan for so many nodes are."""
    return f"nodes-{nodes}"


def above(plans: Sequence[tuple[int, Plan]], launchers: Sequence[str], advice: Sequence[str] = ()) -> list[File]:
    """Return launch.sh, and sbatch.sh where Slurm is among the launchers. plans: by number of nodes, the most first;
    advice: sentences on how the run on most nodes has to save, for those who read launch.sh.
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
    """Return the launcher as it asks for `least` nodes, up to those of its plan: this launch.sh takes what it finds."""
    inner = slurm.variables
    return replace(slurm, variables=lambda plan, files: {**inner(plan, files), "least": least})
