"""Launcher ray: a job that places one launch.sh on every node of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable

from symconfig.plans.plan import Plan
from symconfig.render.files import File, Files
from symconfig.render.launchers.by_rank import outlives_its_node, read_variables
from symconfig.render.settings import Chosen
from symconfig.render.target import Target
from symconfig.resources import data_dir

NAME = "ray"
# Ray counts AMD's as GPU, too. Target: Ray 2.60, ray/_private/accelerators.
RESOURCES = {"nvidia": "GPU", "amd": "GPU", "huawei": "NPU"}


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return Ray's resource name of the GPUs, and the names of variables to pass to the nodes.

    Raises InputError for checkpoints that would be lost with the job's copy of its folder.
    """
    outlives_its_node(NAME, "the job's working_dir", plan, files, chosen)
    return {"resource": RESOURCES[plan.cluster.gpu.vendor], "passed": read_variables(files["launch.sh"])}


def texts(plan: Plan) -> Iterable[File]:
    """Yield the driver script, unchanged."""
    folder = data_dir("templates") / "launchers" / NAME
    return (File("ray_driver.py", (folder / "ray_driver.py").read_text(encoding="utf-8")),)


LAUNCHER = Target(
    name=NAME,
    does="ray.sh and ray_driver.py: a Ray job, a placement group with a bundle of GPUs on every node",
    start="RAY_API_SERVER_ADDRESS=http://HEAD:8265 ./ray.sh    # on a Ray cluster",
    variables=variables,
    texts=texts,
    settings=(),
)
