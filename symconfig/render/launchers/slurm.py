"""Launcher slurm: a batch script with one task per node."""

from __future__ import annotations

from symconfig.plan import Plan
from symconfig.render.files import Files
from symconfig.render.settings import Chosen, Setting

NAME = "slurm"
DOES = "sbatch.sh: one task per node, which starts launch.sh"
SETTINGS = tuple(
    Setting(name, f"sbatch's --{name}")
    for name in ("partition", "account", "qos", "time", "constraint", "reservation", "container-image")
)


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """The options of sbatch that were set. A container is the step's (Pyxis): the script itself runs outside of it."""
    return {"options": {name: value for name, value in chosen.values.items() if value and name != "container-image"}}
