"""A real Ray cluster of two nodes with eight GPUs each, all of them on this machine: ray.sh submits its job to it.

Plans for more nodes are submitted, too, and the driver has to say that there are not so many.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accepting import Values, answer
from nodes import Stage, by_node, stage

NODES, GPUS = 2, 8
VALUE = "a 'b' $(touch PWNED) \"c\""  # an argument, and a variable, that must arrive as they are


@contextmanager
def cluster(running: Stage) -> Iterator[None]:
    """The environment of the nodes is that in which they are started: programs are the stage's stand-ins."""
    os.environ.update(running.variables, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="1", RAY_USAGE_STATS_ENABLED="0")
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # of GPUs that there are none of, a node would have none
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 4, "num_gpus": GPUS, "include_dashboard": True, "dashboard_port": 28265},
    )
    try:
        for _ in range(NODES - 1):
            made.add_node(num_cpus=4, num_gpus=GPUS)
        yield
    finally:
        made.shutdown()


def submitted(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What ray.sh does."""
    environment = {**os.environ, "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:28265", **variables}
    return subprocess.run(["bash", str(folder / "ray.sh"), *words], env=environment, capture_output=True, text=True)


TRIED: list[Path] = []  # once is enough for what does not depend on the plan


def accept(folder: Path) -> Values:
    driver = (folder / "ray.sh").read_text()
    asked = {name: int(value) for name, value in re.findall(r"--(nodes|gpus) (\d+)", driver)}
    nodes, gpus = asked["nodes"], asked["gpus"]
    values = {"nodes": nodes, "gpus_per_node": gpus, "world": nodes * gpus}
    if nodes > NODES:
        return values
    done = submitted(folder, "--x", VALUE, MEGATRON_PATH=RUNNING.variables["MEGATRON_PATH"])
    if done.returncode:
        raise RuntimeError(f"ray.sh: {(done.stdout + done.stderr)[-1500:]}")
    notes = RUNNING.notes()
    assert by_node(notes, range(nodes)) == values
    assert all(words[-2:] == ["--x", VALUE] for words, _ in notes)
    assert all(len(each["CUDA_VISIBLE_DEVICES"].split(",")) == gpus for _, each in notes)
    if nodes == NODES and not TRIED:
        TRIED.append(folder)
        fails(folder)
        lacks(folder)
    return values


def fails(folder: Path) -> None:
    """Where launch.sh ends badly on one node, the job fails, and the other node is stopped long before its hour."""
    (folder / "launch.sh").write_text("((NODE_RANK == 1)) && exit 7\nexec sleep 3600\n")
    done = submitted(folder)
    assert done.returncode, done.stdout
    assert "launch.sh ended with 7 on a node; the others were stopped" in done.stdout + done.stderr, done.stdout


def lacks(folder: Path) -> None:
    """A job for more nodes than there are says so."""
    text = (folder / "ray.sh").read_text()
    (folder / "ray.sh").write_text(re.sub(r"--nodes \d+", "--timeout 2 --nodes 3", text))
    done = submitted(folder)
    assert done.returncode, done.stdout
    assert "no 3 nodes with 8 free GPU and a CPU each in 2.0 s" in done.stdout + done.stderr, done.stdout


with stage("torchrun", "accelerate") as RUNNING, cluster(RUNNING):
    answer(accept)
