"""Launcher pytorchjob: Kubeflow's Training Operator, version 1."""

from __future__ import annotations

from symconfig.plan import Plan
from symconfig.render.files import Files
from symconfig.render.launchers import pods
from symconfig.render.settings import Chosen, Setting

NAME = "pytorchjob"
DOES = "pytorchjob.yaml: a PyTorchJob of Kubeflow's Training Operator 1, a pod per node"
START = "kubectl apply --server-side -f pytorchjob.yaml"
SETTINGS = (*pods.SETTINGS, Setting("restarts", "how often pods that failed are started again", "0", r"[0-9]{1,4}",
                                    "a whole number"))


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Those of a pod. Its own variables come from the operator: PET_NNODES, PET_NODE_RANK, MASTER_ADDR, MASTER_PORT.

    Source: Training Operator 1.9, pkg/controller.v1/pytorch/envvar.go and master.go.
    """
    return pods.pod(plan, files, chosen)
