"""For launchers that start every process themselves: launch.sh with PER_RANK=1 is one of them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.settings import ENVIRONMENT, LAUNCHER_VARIABLES, Chosen

_OURS = LAUNCHER_VARIABLES | {"MASTER_PORT", "DRY_RUN", "SLURM_NODEID", "BASH_SOURCE"}
_READ = re.compile(r"\$\{([A-Z][A-Z0-9_]*)[:+-]")  # ${NAME:-…}, ${NAME-…}, ${NAME+…}: what may be set outside


def of_each_rank(launcher: str, files: Files) -> str:
    """Return the text of launch.sh. Raises InfeasibleError if it starts all processes of a node itself."""
    text = files["launch.sh"]
    if "PER_RANK" not in text:
        raise InfeasibleError(
            "this target starts its processes itself",
            field="launcher",
            got=launcher,
            hint="slurm, pytorchjob, trainjob, skypilot or ray, which start nodes",
        )
    return text


def read_variables(text: str) -> tuple[str, ...]:
    """Return the names of environment variables that a script expands as `${NAME:-…}`, `${NAME-…}` or `${NAME+…}`,
    sorted.

    Variables that launchers set are left out.
    """
    return tuple(sorted(set(_READ.findall(text)) - _OURS))


_VARIABLE = "SAVE"  # with which some launch.sh are told another folder


def outlives_its_node(launcher: str, folder: str, plan: Plan, files: Files, chosen: Chosen) -> None:
    """Raise InputError if checkpoints would be written to a relative path, into a folder that is lost with its node.

    folder: a description of that folder. The variable that replaces the job's path is respected.
    """
    movable = _VARIABLE in read_variables(files["launch.sh"])
    save = chosen.environment.get(_VARIABLE, plan.training.save) if movable else plan.training.save
    if not save or PurePosixPath(save).is_absolute() or "://" in save:
        return
    need = "an absolute training.save in the job"
    raise InputError(
        f"its checkpoints would go into {folder}, on every node another one, and be lost with it",
        field=f"launcher {launcher}",
        got=f"training.save {save!r}",
        need="a folder on storage that all nodes share",
        hint=f"{need}, or {launcher}:{ENVIRONMENT}{_VARIABLE}=…" if movable else need,
    )
