"""Launcher slurm: a batch script with one task per node."""

from __future__ import annotations

from symconfig.plan import Plan
from symconfig.render.files import Files
from symconfig.render.settings import Chosen, Setting

OPTIONS = ("partition", "account", "qos", "time", "constraint", "reservation")

NAME = "slurm"
DOES = "sbatch.sh: one task per node, which starts launch.sh"
SETTINGS = (
    Setting("nodes", "LEAST-MOST, for a launch.sh that takes what it finds (`symconfig fallback`)", None,
            r"[1-9][0-9]{0,5}-[1-9][0-9]{0,5}", "two numbers, such as 4-8"),
    Setting("container-image", "srun's --container-image, of Pyxis"),
    *(Setting(name, f"sbatch's --{name}") for name in OPTIONS),
)


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """The options of sbatch that were set. A container is the step's (Pyxis): the script itself runs outside of it."""
    return {"options": {name: chosen.values[name] for name in OPTIONS if chosen.values[name]}}
