"""torchrun's own reading of its words, and, once for one node and for two, a rendezvous of as many real torchruns."""

from __future__ import annotations

import subprocess
from pathlib import Path

from accepting import Values, answer
from nodes import Stage, by_rank, stage
from torch.distributed.run import config_from_args, parse_args

MOST_NODES = 2  # that are started for real, side by side on this machine, for the first plan with so many
TRIED: set[int] = set()


def accept(folder: Path) -> Values:
    with stage("torchrun") as running:
        running.run(["bash", str(folder / "rendezvous.sh"), "localhost:29617", "--x", "a b"])
        ((words, variables),) = running.notes()
    assert variables["PER_RANK"] == "1"
    config, command, arguments = config_from_args(parse_args(words))
    assert (command, arguments[-2:]) == ("bash", ["--x", "a b"])
    assert (config.rdzv_backend, config.rdzv_endpoint) == ("c10d", "localhost:29617")
    assert config.min_nodes == config.max_nodes
    nodes, gpus = config.max_nodes, config.nproc_per_node
    values = {"nodes": nodes, "gpus_per_node": gpus, "world": nodes * gpus}
    if nodes <= MOST_NODES and nodes not in TRIED:
        TRIED.add(nodes)
        with stage("python3") as running:
            assert _met(running, folder, nodes, gpus) == values
    return values


def _met(running: Stage, folder: Path, nodes: int, gpus: int) -> Values:
    """What the processes were told, started by a torchrun for every node."""
    command = ["bash", str(folder / "rendezvous.sh"), "localhost:29617"]
    agents = [subprocess.Popen(command, env=running.variables, stderr=subprocess.PIPE, text=True) for _ in range(nodes)]
    for agent in agents:
        _, said = agent.communicate(timeout=120)
        if agent.returncode:
            raise RuntimeError(f"torchrun: {said.strip()[-800:]}")
    notes = running.notes()
    found = []
    for node in range(nodes):
        mine = [note for note in notes if int(note[1]["GROUP_RANK"]) == node]
        found.append(by_rank(mine, node, gpus))
    assert all(each == found[0] for each in found)
    return found[0]


answer(accept)
