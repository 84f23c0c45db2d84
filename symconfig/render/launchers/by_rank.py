"""For launchers that start every process themselves: launch.sh with PER_RANK=1 is one of them."""

from __future__ import annotations

import re

from symconfig.errors import InfeasibleError
from symconfig.render.files import Files
from symconfig.render.settings import LAUNCHER_VARIABLES

_OURS = LAUNCHER_VARIABLES | {"MASTER_PORT", "DRY_RUN", "SLURM_NODEID", "BASH_SOURCE"}
_READ = re.compile(r"\$\{([A-Z][A-Z0-9_]*)[:+-]")  # ${NAME:-…}, ${NAME-…}, ${NAME+…}: what may be set outside


def of_each_rank(launcher: str, files: Files) -> str:
    """Return launch.sh's text. Raises InfeasibleError where it starts the processes in a way of its own only."""
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
    """Return the variables of the caller's environment that a script looks at, beside those that every launcher
    sets.
    """
    return tuple(sorted(set(_READ.findall(text)) - _OURS))
