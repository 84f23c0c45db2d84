"""SkyPilot's own reading of a task, and what the task starts on each node.

The variables of a node are those of sky/backends/task_codegen.py, SkyPilot 0.14.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from accepting import Values, answer
from nodes import by_node, stage

os.environ["HOME"] = tempfile.mkdtemp()  # it keeps state of its own there
os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"

import sky
from sky.catalog.common import get_catalog_path
from sky.provision.runpod.utils import GPU_NAME_MAP
from sky.utils.gpu_names import CANONICAL_GPU_NAMES

# Its catalog is fetched from the network; in its place the names that the package itself has.
catalog = Path(get_catalog_path("common/accelerators.csv"))
catalog.parent.mkdir(parents=True, exist_ok=True)
catalog.write_text(
    "".join(
        f"{line}\n"
        for line in (
            "AcceleratorName,Clouds",
            *(f"{name},['Any']" for name in dict.fromkeys((*CANONICAL_GPU_NAMES, *GPU_NAME_MAP))),
        )
    )
)


def accept(folder: Path) -> Values:
    os.chdir(folder)  # workdir: . is meant from here
    task = sky.Task.from_yaml("sky.yaml")
    task.validate()
    (resources,) = task.resources
    ((name, gpus),) = resources.accelerators.items()
    assert name
    assert task.workdir is not None
    assert Path(task.workdir).resolve() == folder.resolve()
    ranks = sorted({0, 1, task.num_nodes - 1} & set(range(task.num_nodes)))
    addresses = "\n".join(f"10.0.0.{index}" for index in range(task.num_nodes))
    with stage("torchrun", "accelerate") as running:
        for rank in ranks:
            running.run(
                ["bash", "-c", task.run],
                folder,
                SKYPILOT_NUM_NODES=str(task.num_nodes),
                SKYPILOT_NUM_GPUS_PER_NODE=str(int(gpus)),
                SKYPILOT_NODE_RANK=str(rank),
                SKYPILOT_NODE_IPS=addresses,
                **task.envs,
            )
        values = by_node(running.notes(), ranks)
    assert values["nodes"] == task.num_nodes
    return values


answer(accept)
