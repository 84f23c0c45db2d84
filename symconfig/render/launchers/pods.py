"""What jobs on Kubernetes have in common: names, the files as a ConfigMap, what a node's pod asks for."""

from __future__ import annotations

import re

from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.plans.plan import Plan
from symconfig.render import summary
from symconfig.render.files import Files, slug
from symconfig.render.launchers.by_rank import outlives_its_node
from symconfig.render.settings import LABEL, Chosen, Setting

# As the vendors' device plugins name them: k8s-device-plugin of NVIDIA and of ROCm, ascend-device-plugin.
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "huawei": "huawei.com/Ascend910"}
PLACEHOLDER = "registry.example.com/training:latest"  # of the domain that RFC 2606 keeps free: nobody's image
MOST_BYTES = 1_000_000  # a ConfigMap holds 1 MiB with its names
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_UNUSED = ("plan.json", "REPORT.md")  # for people and for symconfig; a run reads neither
_AMOUNT = {"pattern": r"[1-9][0-9]{0,8}(Mi|Gi|Ti)", "need": "a size such as 64Gi"}

SETTINGS = (
    Setting("name", "of the job and all that belongs to it (default: the model's)", None, **LABEL),
    Setting("namespace", "where they go (default: kubectl's own)", None, **LABEL),
    Setting("image", "the container's, with the framework in it", PLACEHOLDER),
    Setting("queue", "of Kueue, that admits the job", None, **LABEL),
    Setting("claim", "a PersistentVolumeClaim for data and checkpoints", None, **LABEL),
    Setting("mount", "where the claim is seen", "/data", r"/[A-Za-z0-9_./-]*", "an absolute path"),
    Setting("shm", "size of /dev/shm (default: 8 GiB a GPU)", None, **_AMOUNT),
    Setting("resource", "what the cluster calls its GPUs (default: the vendor's device plugin's name)"),
    Setting("rdma", "a network device that every pod takes one of, such as rdma/hca"),
)
RESTARTS = Setting(
    "restarts", "how often all pods are started again after a failure", "0", r"[0-9]{1,4}", "a whole number"
)


def pod(launcher: str, plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return the templates' variables that both kinds of Kubernetes job share.

    Raises InputError or InfeasibleError for files that a ConfigMap cannot hold, InputError for checkpoints that would
    be lost with their pod.
    """
    outlives_its_node(launcher, "the container's own folder", plan, files, chosen)
    nodes, values = summary.nodes(plan), chosen.values
    limits = {values["resource"] or RESOURCES[plan.cluster.gpu.vendor]: nodes.gpus}
    if values["rdma"]:
        limits[values["rdma"]] = 1
    volumes = [("files", "/symconfig"), ("shm", "/dev/shm"), *([("data", values["mount"])] if values["claim"] else [])]
    return {
        "name": values["name"] or label(plan.model.name),
        "keys": {path: _key(path) for path in _carried(files)},
        "data": {_key(path): files[path] for path in _carried(files)},
        "limits": limits,
        "shm": values["shm"] or f"{8 * nodes.gpus}Gi",
        "volumes": volumes,
        "port": 29500,
    }


def restarts(chosen: Chosen) -> int:
    """Return the number of restarts that is set; 0 by default."""
    return int(chosen.values[RESTARTS.name] or 0)


def label(text: str) -> str:
    """Return a valid Kubernetes name: a-z, 0-9 and dashes, a letter first, at most 44 characters."""
    plain = re.sub(r"[^a-z0-9]+", "-", slug(text).lower()).strip("-")[:40].strip("-")
    return plain if plain[:1].isalpha() else f"job-{plain}".strip("-")


def _carried(files: Files) -> list[str]:
    """Return the paths of the files that a run needs.

    Raises InputError for an invalid name, InfeasibleError for too many bytes.
    """
    carried = [path for path in files.paths() if path not in _UNUSED]
    problems = [
        Problem("is no name for a ConfigMap", file=path, need="letters, digits, - . _ and /")
        for path in carried
        if not _KEY.fullmatch(_key(path))
    ]
    if problems:
        raise InputError(problems)
    size = sum(len(files[path].encode()) + len(path) for path in carried)
    if size > MOST_BYTES:
        raise InfeasibleError(
            "the files do not fit in a ConfigMap",
            got=f"{size} bytes",
            need=f"at most {MOST_BYTES}",
            hint="put them on a volume, or into the image",
        )
    return carried


def _key(path: str) -> str:
    """Return a path's key in a ConfigMap: slashes become "__", which the mount reverses."""
    return path.replace("/", "__")
