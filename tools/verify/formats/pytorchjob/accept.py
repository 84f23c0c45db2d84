"""Kubeflow's own model of a PyTorchJob, Kubernetes' schema of its parts, and what its pods start.

Its webhook's rules are those of pkg/webhooks/pytorch/pytorchjob_webhook.go, the variables that its pods get those of
pkg/controller.v1/pytorch/envvar.go and master.go, Training Operator 1.9.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accepting import Values, answer
from kubeflow.training import models
from kubeflow.training.api_client import ApiClient
from kubernetes_pods import DNS_1035, asked_of, documents, runs, valid, valid_pod
from nodes import by_node, stage


class _Response:
    """What the client reads an answer of the API server from."""

    def __init__(self, data: str) -> None:
        self.data = data


def _round_trip(document: dict[str, Any]) -> models.KubeflowOrgV1PyTorchJob:
    """As the SDK reads it; what it does not know would be gone when it is written again."""
    client = ApiClient()
    job = client.deserialize(_Response(json.dumps(document)), "KubeflowOrgV1PyTorchJob")
    written = client.sanitize_for_serialization(job)
    assert written == document, "the SDK does not give back what it read"
    return job


def accept(folder: Path) -> Values:
    found = documents(folder / "pytorchjob.yaml")
    valid(found["ConfigMap"])
    job = _round_trip(found["PyTorchJob"])
    replicas = job.spec.pytorch_replica_specs
    pods = sum(each.replicas for each in replicas.values())
    name = job.metadata.name
    assert DNS_1035.fullmatch(name), name
    assert len(f"{name}-worker-{pods}") <= 63, name
    assert set(replicas) <= {"Master", "Worker"}
    assert replicas["Master"].replicas == 1
    templates = [each["template"] for each in found["PyTorchJob"]["spec"]["pytorchReplicaSpecs"].values()]
    assert all(template == templates[0] for template in templates)
    valid_pod(templates[0])
    pod = templates[0]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == "pytorchjob-port"]
    ranks = sorted({0, 1, pods - 1} & set(range(pods)))
    operator = [
        {
            "PET_NNODES": str(pods),
            "PET_NODE_RANK": str(rank),
            "RANK": str(rank),
            "MASTER_PORT": str(port),
            "PET_MASTER_PORT": str(port),
            "MASTER_ADDR": f"{name}-master-0",
            "PET_MASTER_ADDR": f"{name}-master-0",
            "PET_NPROC_PER_NODE": job.spec.nproc_per_node,
            "PYTHONUNBUFFERED": "1",
            "WORLD_SIZE": str(pods * int(job.spec.nproc_per_node)),
        }
        for rank in ranks
    ]
    with stage("torchrun", "accelerate") as running:
        runs(running, container, pod, found["ConfigMap"]["data"], operator)
        values = by_node(running.notes(), ranks)
    assert asked_of(container["resources"]["limits"]) == {"gpus_per_node": values["gpus_per_node"]}
    return values


answer(accept)
