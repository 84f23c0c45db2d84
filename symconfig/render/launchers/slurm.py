"""Launcher slurm: a batch script with one task per node."""

from __future__ import annotations

from symconfig.plan import Plan
from symconfig.render.files import Files

NAME = "slurm"
DOES = "sbatch.sh: one task per node, which starts launch.sh"


def variables(plan: Plan, files: Files) -> dict[str, object]:
    """Nothing beside what every template has."""
    return {}
