"""Launcher slurm: a batch script with one task per node."""

from __future__ import annotations

from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.settings import Chosen, Setting
from symconfig.render.target import Target

OPTIONS = ("partition", "account", "qos", "time", "constraint", "reservation")
# sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, or days- and then hours:minutes:seconds, of which
# the last may be left out; or a word.
_TIME = {
    "pattern": r"([0-9]{1,6}-)?[0-9]{1,9}(:[0-9]{1,2}){0,2}|UNLIMITED|INFINITE",
    "need": "a time as sbatch has it, such as 90, 12:00:00 or 2-00:00:00",
}


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return the options of sbatch that are set, and `least`: None, as a plan's own script takes exactly its nodes.

    `render.fallback` replaces `least` by a number. Raises InputError for mounts without a container.
    """
    if chosen.values["container-mounts"] and not chosen.values["container-image"]:
        raise InputError(
            "needs a container to mount them in", field="slurm:container-mounts", hint="slurm:container-image=IMAGE"
        )
    return {"options": {name: chosen.values[name] for name in OPTIONS if chosen.values[name]}, "least": None}


LAUNCHER = Target(
    name="slurm",
    does="sbatch.sh: one task per node, which starts launch.sh",
    start="sbatch sbatch.sh    # under Slurm",
    variables=variables,
    settings=(
        Setting(
            "container-image",
            "the image that launch.sh runs in: srun's --container-image, of Pyxis; the folders of launch.sh and of the "
            "submission are mounted",
            pattern=r"[A-Za-z0-9_.,:@/+#-]+",
            need="letters, digits and any of _ . , : @ / + # -",
        ),
        *(Setting(name, f"sbatch's --{name}", **(_TIME if name == "time" else {})) for name in OPTIONS),
        Setting("container-mounts", "folders that the container sees besides, HOST:CONTAINER with commas between"),
    ),
)
