"""Launcher trainjob: Kubeflow Trainer, version 2."""

from __future__ import annotations

from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.launchers import pods
from symconfig.render.settings import Chosen
from symconfig.render.target import Target

NAME = "trainjob"


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return the variables of a pod.

    Its own come from the operator: PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and _PORT. Its JobSet starts all pods
    anew or none: a Job left to itself starts a single pod again, beside ranks that hang.

    Target: Kubeflow Trainer 2.3, pkg/runtime/framework/plugins/torch/torch.go; JobSet, api/jobset/v1alpha2, whose
    restartPolicy defaults to OnFailure, and Kubernetes' Job, whose backoffLimit defaults to 6.
    """
    return {**pods.pod(NAME, plan, files, chosen), "restarts": pods.restarts(chosen)}


LAUNCHER = Target(
    name=NAME,
    does="trainjob.yaml: a TrainJob of Kubeflow Trainer 2 with its TrainingRuntime, a pod per node",
    start="kubectl apply --server-side -f trainjob.yaml",
    variables=variables,
    settings=(*pods.SETTINGS, pods.RESTARTS),
)
