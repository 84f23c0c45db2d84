"""Launcher torchrun: its own rendezvous. launch.sh alone is torchrun with ranks of nodes that somebody gives."""

from __future__ import annotations

from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.launchers.by_rank import of_each_rank
from symconfig.render.settings import Chosen, Setting
from symconfig.render.target import Target

NAME = "torchrun"


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return {}. Raises InfeasibleError for a target whose launch.sh starts all processes of a node itself."""
    of_each_rank(NAME, files)
    return {}


LAUNCHER = Target(
    name=NAME,
    does="rendezvous.sh: the same command on every node, torchrun finds out their ranks and starts again what died",
    start="./rendezvous.sh HOST    # on every node, with the same HOST",
    variables=variables,
    settings=(
        Setting(
            "restarts",
            "how often torchrun starts all processes again when one died",
            "0",
            r"[0-9]{1,4}",
            "a whole number",
        ),
    ),
)
