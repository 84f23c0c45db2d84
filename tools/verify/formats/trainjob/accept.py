"""Kubeflow Trainer's own models of a TrainJob and its runtime, Kubernetes' schema of their parts, what pods start.

The variables that pods get and what a webhook refuses are those of pkg/runtime/framework/plugins/torch/torch.go, and
the names of pods and containers those of pkg/constants, Kubeflow Trainer 2.3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accepting import Values, answer
from kubeflow_trainer_api import models
from kubernetes_pods import DNS_1035, asked_of, documents, runs, valid, valid_pod
from nodes import by_node, stage

RESERVED = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def _round_trip(model: Any, document: dict[str, Any]) -> None:
    """As the API's model reads it; what it does not know would be gone when it is written again."""
    written = model.from_dict(document).to_dict()
    assert written == document, f"{model.__name__} does not give back what it read"


def accept(folder: Path) -> Values:
    found = documents(folder / "trainjob.yaml")
    valid(found["ConfigMap"])
    _round_trip(models.TrainerV1alpha1TrainingRuntime, found["TrainingRuntime"])
    _round_trip(models.TrainerV1alpha1TrainJob, found["TrainJob"])
    runtime, job = found["TrainingRuntime"], found["TrainJob"]["spec"]
    assert job["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["runtimeRef"]["kind"] == runtime["kind"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    assert replicated["template"]["metadata"]["labels"][STEP] == "trainer"
    template = replicated["template"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["name"] == "node"
    trainer = job["trainer"]
    assert not RESERVED & {each["name"] for each in trainer["env"]}
    given = {name: trainer[name] for name in ("image", "command", "args", "env")}
    container = {**container, **given, "resources": trainer["resourcesPerNode"]}  # as the operator puts them together
    pod = {**template["spec"], "containers": [container], "restartPolicy": "OnFailure"}
    valid_pod({"spec": pod})
    name, nodes = found["TrainJob"]["metadata"]["name"], trainer["numNodes"]
    assert DNS_1035.fullmatch(name), name
    assert len(f"{name}-node-0-{nodes}") <= 63, name
    ranks = sorted({0, 1, nodes - 1} & set(range(nodes)))
    operator = [
        {
            "PET_NNODES": str(nodes),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
        for rank in ranks
    ]
    with stage("torchrun", "accelerate") as running:
        runs(running, container, pod, found["ConfigMap"]["data"], operator)
        values = by_node(running.notes(), ranks)
    assert values["nodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == nodes
    assert asked_of(container["resources"]["limits"]) == {"gpus_per_node": trainer["numProcPerNode"]}
    return values


answer(accept)
