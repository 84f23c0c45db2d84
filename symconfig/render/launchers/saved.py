"""For launchers that start launch.sh in a folder of the node's own: what is saved below it is gone with the node."""

from __future__ import annotations

from pathlib import PurePosixPath

from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.launchers.by_rank import read_variables
from symconfig.render.settings import ENVIRONMENT, Chosen

_VARIABLE = "SAVE"  # with which some launch.sh are told another folder


def outlives_its_node(launcher: str, folder: str, plan: Plan, files: Files, chosen: Chosen) -> None:
    """Raise InputError where checkpoints go into the folder that launch.sh starts in. folder: which one that is."""
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
