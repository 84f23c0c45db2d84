"""Launcher skypilot: a task for any cloud, Kubernetes or Slurm that SkyPilot knows."""

from __future__ import annotations

import re

from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.launchers.by_rank import outlives_its_node
from symconfig.render.launchers.pods import label
from symconfig.render.settings import Chosen, Setting
from symconfig.render.target import Target

NAME = "skypilot"
# SkyPilot 0.14, sky/utils/gpu_names.py and catalog/data_fetchers: its name, where words of the product tell the GPU.
ACCELERATORS = (
    (r"A100\b.*\b80 ?GB", "A100-80GB"),
    (r"A100\b", "A100"),
    (r"V100\b.*\b32 ?GB", "V100-32GB"),
    (r"V100\b", "V100"),
    (r"MI300X\b", "MI300X"),
    (r"RTX 4090\b", "RTX4090"),
    *((rf"{name}\b", name) for name in ("H100", "H200", "B200", "B300", "GB200", "GB300", "L40S", "L40", "L4", "A10G")),
)


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return SkyPilot's name of the GPU, or the one that is set, and a name for the task.

    Raises InfeasibleError for a GPU without a name, InputError for checkpoints that would be lost with their node.
    """
    outlives_its_node(NAME, "the task's workdir", plan, files, chosen)
    product = plan.cluster.gpu.product
    name = chosen.values["accelerator"] or named(product)
    if name is None:
        raise InfeasibleError(
            "SkyPilot has no name for this GPU",
            field="launcher skypilot",
            got=product,
            hint="--launcher skypilot:accelerator=NAME, as your own cluster calls it",
        )
    return {"accelerator": name, "name": label(plan.model.name)}


def named(product: str) -> str | None:
    """Return SkyPilot's name of a GPU product; None if it has none."""
    return next((name for words, name in ACCELERATORS if re.search(rf"\b{words}", product)), None)


LAUNCHER = Target(
    name=NAME,
    does="sky.yaml: a SkyPilot task, which starts launch.sh on every node",
    start="sky launch sky.yaml    # in this folder",
    variables=variables,
    settings=(
        Setting("accelerator", "SkyPilot's name of the GPU (default: by the cluster's product)"),
        Setting("infra", "where: aws, gcp/us-central1, k8s/my-context, slurm/…"),
        Setting("image", "image_id, such as docker:nvcr.io/nvidia/pytorch:25.10-py3"),
        Setting("spot", "use_spot", None, r"true|false", "true or false"),
    ),
)
