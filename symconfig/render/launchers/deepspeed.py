"""Launcher deepspeed: DeepSpeed's own, over the hosts of a hostfile."""

from __future__ import annotations

from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.launchers.by_rank import of_each_rank, read_variables
from symconfig.render.settings import Chosen
from symconfig.render.target import Target

NAME = "deepspeed"
# Not which of its ways over the hosts, --launcher: beside pdsh they refuse --num_nodes, or (slurm) start launch.sh with
# Python and tell it no rank. Target: DeepSpeed 0.19, launcher/runner.py and multinode_runner.py.


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return the names of variables to pass to the other hosts, as the launcher forwards only a few.

    Target: DeepSpeed 0.19, launcher/runner.py (EXPORT_ENVS, .deepspeed_env). Raises InfeasibleError for a target whose
    launch.sh starts all processes of a node itself.
    """
    return {"passed": read_variables(of_each_rank(NAME, files))}


LAUNCHER = Target(
    name=NAME,
    does="deepspeed.sh and hostfile: DeepSpeed's launcher starts every process over ssh",
    start="./deepspeed.sh    # on one node, with your hosts in hostfile",
    variables=variables,
    settings=(),
)
