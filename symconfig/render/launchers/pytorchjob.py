"""Launcher pytorchjob: Kubeflow's Training Operator, version 1."""

from __future__ import annotations

from symconfig.plans.plan import Plan
from symconfig.render import summary
from symconfig.render.files import Files
from symconfig.render.launchers import pods
from symconfig.render.settings import Chosen
from symconfig.render.target import Target

NAME = "pytorchjob"


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return the variables of a pod.

    Its own come from the operator: PET_NNODES, PET_NODE_RANK, MASTER_ADDR, MASTER_PORT. backoff: the operator ends a
    job whose pods that run were started again so often, all of them taken together (PastBackoffLimit). A process that
    dies takes those of the other nodes with it, so a failure is a restart of all.

    Target: Training Operator 1.9, pkg/controller.v1/pytorch/envvar.go and master.go, pkg/core/job.go.
    """
    restarts = pods.restarts(chosen)
    backoff = restarts * summary.nodes(plan).count + 1 if restarts else 0
    return {**pods.pod(NAME, plan, files, chosen), "backoff": backoff}


LAUNCHER = Target(
    name=NAME,
    does="pytorchjob.yaml: a PyTorchJob of Kubeflow's Training Operator 1, a pod per node",
    start="kubectl apply --server-side -f pytorchjob.yaml",
    variables=variables,
    settings=(*pods.SETTINGS, pods.RESTARTS),
)
