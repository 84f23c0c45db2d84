"""The programs that start a run's processes, and what their options count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher.

    counts: its options, spelled with underscores, by what they count: nodes, GPUs in all, or GPUs of each node.
    one_node: given neither a number of nodes nor a list of them, it starts the processes of this node only.
    includes: options that name hosts with their GPUs, `host:0,1@other:0,1`.
    visible: without a number it starts a process for each GPU of CUDA_VISIBLE_DEVICES.
    """

    counts: Mapping[str, str] = field(default_factory=dict)
    one_node: bool = False
    includes: tuple[str, ...] = ()
    visible: bool = False


SLURM = {
    "N": "nodes",
    "nodes": "nodes",
    "n": "gpus",
    "ntasks": "gpus",
    "ntasks_per_node": "per_node",
    "gpus_per_node": "per_node",
    "gres": "per_node",
    "G": "gpus",
    "gpus": "gpus",
}
# torch/distributed/run.py
_TORCH = Launcher(counts={"nnodes": "nodes", "nproc_per_node": "per_node"}, one_node=True)
_MPI = Launcher(
    counts={"np": "gpus", "n": "gpus", "c": "gpus", "N": "per_node", "npernode": "per_node", "num_proc": "gpus"}
)
_SLURM = Launcher(counts=SLURM)
# By name, the nearest to the program first: srun starts one torchrun a node, which starts the processes.
LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": _TORCH,
    "torch.distributed.run": _TORCH,
    "torch.distributed.launch": _TORCH,
    # deepspeed/launcher/runner.py
    "deepspeed": Launcher(
        counts={"num_nodes": "nodes", "num_gpus": "per_node"}, one_node=True, includes=("include", "i"), visible=True
    ),
    # accelerate/commands/launch.py
    "accelerate": Launcher(counts={"num_processes": "gpus", "num_machines": "nodes"}, visible=True),
    "msrun": Launcher(counts={"worker_num": "gpus", "local_worker_num": "per_node"}),
    "mpirun": _MPI,  # these and the next: their manuals
    "mpiexec": _MPI,
    "horovodrun": _MPI,
    "srun": _SLURM,
    "sbatch": _SLURM,
}
