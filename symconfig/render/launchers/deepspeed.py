"""Launcher deepspeed: DeepSpeed's own, over the hosts of a hostfile."""

from __future__ import annotations

from symconfig.plan import Plan
from symconfig.render.files import Files
from symconfig.render.launchers.by_rank import of_each_rank, read_variables
from symconfig.render.settings import Chosen, Setting

NAME = "deepspeed"
DOES = "deepspeed.sh and hostfile: DeepSpeed's launcher starts every process over ssh"
START = "./deepspeed.sh    # on one node, with your hosts in hostfile"
SETTINGS = (
    Setting("backend", "deepspeed's --launcher", "pdsh", r"pdsh|openmpi|mpich|impi|mvapich|slurm",
            "pdsh, openmpi, mpich, impi, mvapich or slurm"),
)


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """What has to be told to the other hosts, as the launcher passes only a few variables on by itself.

    Source: DeepSpeed 0.19, launcher/runner.py (EXPORT_ENVS, .deepspeed_env). Raises InfeasibleError for a target whose
    launch.sh cannot be one process.
    """
    return {"passed": read_variables(of_each_rank(NAME, files))}
