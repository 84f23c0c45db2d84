"""What starts a target's launch.sh: on every node, or as every process. Templates lie in templates/launchers/NAME/.

A launcher's `variables(plan, files, chosen)` get the target's files and the settings that a person chose.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.plans.plan import Plan
from symconfig.render import shared
from symconfig.render.files import File, Files, slug
from symconfig.render.target import ENVIRONMENT, LAUNCHER_VARIABLES, Chosen, Setting, Target
from symconfig.resources import data_dir

_OURS = LAUNCHER_VARIABLES | {"MASTER_PORT", "DRY_RUN", "SLURM_NODEID", "BASH_SOURCE"}
_READ = re.compile(r"\$\{([A-Z][A-Z0-9_]*)[:+-]")  # ${NAME:-…}, ${NAME-…}, ${NAME+…}: what may be set outside
_SAVE = "SAVE"  # with which some launch.sh are given another folder
_WHOLE = {"pattern": r"[0-9]{1,4}", "need": "a whole number"}


def of_each_rank(launcher: str, files: Files) -> str:
    """Return the text of launch.sh, which runs one process if PER_RANK is set. Raises InfeasibleError if it does not
    mention PER_RANK, as it then starts all processes of a node itself.
    """
    text = files["launch.sh"]
    if "PER_RANK" not in text:
        raise InfeasibleError(
            "this target starts its processes itself",
            field="launcher",
            got=launcher,
            hint="slurm, pytorchjob, trainjob, skypilot or ray, which start nodes",
        )
    return text


def read_variables(text: str) -> tuple[str, ...]:
    """Return the sorted names that a script expands as `${NAME:-…}`, `${NAME-…}` or `${NAME+…}`, without those that
    launchers set."""
    return tuple(sorted(set(_READ.findall(text)) - _OURS))


def _refuse_lost_checkpoints(launcher: str, folder: str, plan: Plan, files: Files, chosen: Chosen) -> None:
    """Raise InputError if checkpoints would go to a relative path below `folder`, which is lost with its node. Nothing
    for no path, an absolute one or a URL. folder: its description for the message. The setting env.SAVE replaces
    training.save if launch.sh reads SAVE.
    """
    movable = _SAVE in read_variables(files["launch.sh"])
    save = chosen.environment.get(_SAVE, plan.training.save) if movable else plan.training.save
    if not save or PurePosixPath(save).is_absolute() or "://" in save:
        return
    need = "an absolute training.save in the job"
    raise InputError(
        f"its checkpoints would go into {folder}, on every node another one, and be lost with it",
        field=f"launcher {launcher}",
        got=f"training.save {save!r}",
        need="a folder on storage that all nodes share",
        hint=f"{need}, or {launcher}:{ENVIRONMENT}{_SAVE}=…" if movable else need,
    )


# Of DeepSpeed 0.19, launcher/runner.py and multinode_runner.py. Which of its ways over the hosts, --launcher, is left
# open: beside pdsh they refuse --num_nodes, or (slurm) start launch.sh with Python and give it no rank. It forwards few
# variables (EXPORT_ENVS, .deepspeed_env); `passed` are the others.
DEEPSPEED = Target(
    name="deepspeed",
    does="deepspeed.sh and hostfile: DeepSpeed's launcher starts every process over ssh",
    start="./deepspeed.sh    # on one node, with your hosts in hostfile",
    variables=lambda plan, files, chosen: {"passed": read_variables(of_each_rank("deepspeed", files))},
)


TORCHRUN = Target(
    name="torchrun",
    does="rendezvous.sh: the same command on every node, torchrun finds out their ranks and starts again what died",
    start="./rendezvous.sh HOST    # on every node, with the same HOST",
    variables=lambda plan, files, chosen: {"launch": of_each_rank("torchrun", files)},
    settings=(Setting("restarts", "how often torchrun starts all processes again when one died", "0", **_WHOLE),),
)

_OPTIONS = ("partition", "account", "qos", "time", "constraint", "reservation")
# sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, or days- and then hours:minutes:seconds, of which
# the last may be left out; or a word.
_TIME = {
    "pattern": r"([0-9]{1,6}-)?[0-9]{1,9}(:[0-9]{1,2}){0,2}|UNLIMITED|INFINITE",
    "need": "a time as sbatch has it, such as 90, 12:00:00 or 2-00:00:00",
}


def _slurm(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return `options`, the sbatch options with a value, and `least`, None: the script takes exactly the plan's nodes.
    `least` is replaced for plans of several numbers of nodes. Raises InputError for container-mounts without
    container-image.
    """
    if chosen.values["container-mounts"] and not chosen.values["container-image"]:
        raise InputError(
            "needs a container to mount them in", field="slurm:container-mounts", hint="slurm:container-image=IMAGE"
        )
    return {"options": {name: chosen.values[name] for name in _OPTIONS if chosen.values[name]}, "least": None}


SLURM = Target(
    name="slurm",
    does="sbatch.sh: one task per node, which starts launch.sh",
    start="sbatch sbatch.sh    # under Slurm",
    variables=_slurm,
    settings=(
        Setting(
            "container-image",
            "the image that launch.sh runs in: srun's --container-image, of Pyxis; the folders of launch.sh and of the "
            "submission are mounted",
            pattern=r"[A-Za-z0-9_.,:@/+#-]+",
            need="letters, digits and any of _ . , : @ / + # -",
        ),
        *(Setting(name, f"sbatch's --{name}", **(_TIME if name == "time" else {})) for name in _OPTIONS),
        Setting("container-mounts", "folders that the container sees besides, HOST:CONTAINER with commas between"),
    ),
)

# Ray counts AMD's as GPU, too. Of Ray 2.60, ray/_private/accelerators.
_OF_RAY = {"nvidia": "GPU", "amd": "GPU", "huawei": "NPU"}


def _ray(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return `resource`, Ray's name of the vendor's GPUs, and `passed`, the variables that launch.sh reads from
    outside. Raises InputError for checkpoints that would be lost with the job's copy of its folder."""
    _refuse_lost_checkpoints("ray", "the job's working_dir", plan, files, chosen)
    return {"resource": _OF_RAY[plan.cluster.gpu.vendor], "passed": read_variables(files["launch.sh"])}


RAY = Target(
    name="ray",
    does="ray.sh and ray_driver.py: a Ray job, a placement group with a bundle of GPUs on every node",
    start="RAY_API_SERVER_ADDRESS=http://HEAD:8265 ./ray.sh    # on a Ray cluster",
    variables=_ray,
    texts=lambda plan: [
        File("ray_driver.py", (data_dir("templates") / "launchers/ray/ray_driver.py").read_text(encoding="utf-8"))
    ],
)

# SkyPilot 0.14, sky/utils/gpu_names.py and catalog/data_fetchers: its name, by words of the product.
_ACCELERATORS = (
    (r"A100\b.*\b80 ?GB", "A100-80GB"),
    (r"A100\b", "A100"),
    (r"V100\b.*\b32 ?GB", "V100-32GB"),
    (r"V100\b", "V100"),
    (r"MI300X\b", "MI300X"),
    (r"RTX 4090\b", "RTX4090"),
    *((rf"{name}\b", name) for name in ("H100", "H200", "B200", "B300", "GB200", "GB300", "L40S", "L40", "L4", "A10G")),
)


def _skypilot(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return `accelerator`, the setting or SkyPilot's name of the GPU, and `name`, the task's, from the model's. Raises
    InfeasibleError for a GPU without either, InputError for checkpoints that would be lost with their node.
    """
    _refuse_lost_checkpoints("skypilot", "the task's workdir", plan, files, chosen)
    product = plan.cluster.gpu.product
    name = chosen.values["accelerator"] or sky_name(product)
    if name is None:
        raise InfeasibleError(
            "SkyPilot has no name for this GPU",
            field="launcher skypilot",
            got=product,
            hint="--launcher skypilot:accelerator=NAME, as your own cluster calls it",
        )
    return {"accelerator": name, "name": label(plan.model.name)}


def sky_name(product: str) -> str | None:
    """Return SkyPilot's name of a GPU product; None if it has none."""
    return next((name for words, name in _ACCELERATORS if re.search(rf"\b{words}", product)), None)


SKYPILOT = Target(
    name="skypilot",
    does="sky.yaml: a SkyPilot task, which starts launch.sh on every node",
    start="sky launch sky.yaml    # in this folder",
    variables=_skypilot,
    settings=(
        Setting("accelerator", "SkyPilot's name of the GPU (default: by the cluster's product)"),
        Setting("infra", "where: aws, gcp/us-central1, k8s/my-context, slurm/…"),
        Setting("image", "image_id, such as docker:nvcr.io/nvidia/pytorch:25.10-py3"),
        Setting("spot", "use_spot", None, r"true|false", "true or false"),
    ),
)

# Jobs on Kubernetes. GPUs as the vendors' device plugins name them: k8s-device-plugin of NVIDIA and of ROCm,
# ascend-device-plugin.
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "huawei": "huawei.com/Ascend910"}
_PLACEHOLDER = "registry.example.com/training:latest"  # of the domain that RFC 2606 keeps free: nobody's image
MOST_BYTES = 1_000_000  # a ConfigMap holds 1 MiB with its names
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_UNUSED = ("plan.json", "REPORT.md")  # for people and for symconfig; a run reads neither
_LABEL = {"pattern": r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?", "need": "at most 53 of a-z, 0-9 and -, a letter first"}
_OF_PODS = (
    Setting("name", "of the job and all that belongs to it (default: the model's)", None, **_LABEL),
    Setting("namespace", "where they go (default: kubectl's own)", None, **_LABEL),
    Setting("image", "the container's, with the framework in it", _PLACEHOLDER),
    Setting("queue", "of Kueue, that admits the job", None, **_LABEL),
    Setting("claim", "a PersistentVolumeClaim for data and checkpoints", None, **_LABEL),
    Setting("mount", "where the claim is seen", "/data", r"/[A-Za-z0-9_./-]*", "an absolute path"),
    Setting(
        "shm", "size of /dev/shm (default: 8 GiB a GPU)", None, r"[1-9][0-9]{0,8}(Mi|Gi|Ti)", "a size such as 64Gi"
    ),
    Setting("resource", "what the cluster calls its GPUs (default: the vendor's device plugin's name)"),
    Setting("rdma", "a network device that every pod takes one of, such as rdma/hca"),
    Setting("restarts", "how often all pods are started again after a failure", "0", **_WHOLE),
)


def _pod(launcher: str, plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return the templates' variables that both kinds of Kubernetes job share: name, keys ({path: key of the
    ConfigMap}), data ({key: text}), limits ({resource: number}), shm, volumes ((name, mount path)…), port.

    plan.json and REPORT.md are left out; keys have `__` for `/`. Limits are a node's GPUs and one `rdma` device if set;
    shm is 8 GiB a GPU by default. Raises InputError for a file name that a ConfigMap refuses and for checkpoints that
    would be lost with their pod, InfeasibleError for more than 1 MB.
    """
    _refuse_lost_checkpoints(launcher, "the container's own folder", plan, files, chosen)
    nodes, values = shared.nodes(plan), chosen.values
    limits = {values["resource"] or _RESOURCES[plan.cluster.gpu.vendor]: nodes.gpus}
    if values["rdma"]:
        limits[values["rdma"]] = 1
    carried = [path for path in files.paths() if path not in _UNUSED]
    keys = {path: path.replace("/", "__") for path in carried}  # the mount puts the slashes back
    if wrong := [
        Problem("is no name for a ConfigMap", file=path, need="letters, digits, - . _ and /")
        for path, key in keys.items()
        if not _KEY.fullmatch(key)
    ]:
        raise InputError(wrong)
    size = sum(len(files[path].encode()) + len(path) for path in carried)
    if size > MOST_BYTES:
        raise InfeasibleError(
            "the files do not fit in a ConfigMap",
            got=f"{size} bytes",
            need=f"at most {MOST_BYTES}",
            hint="put them on a volume, or into the image",
        )
    return {
        "name": values["name"] or label(plan.model.name),
        "keys": keys,
        "data": {key: files[path] for path, key in keys.items()},
        "limits": limits,
        "shm": values["shm"] or f"{8 * nodes.gpus}Gi",
        "volumes": [
            ("files", "/symconfig"),
            ("shm", "/dev/shm"),
            *([("data", values["mount"])] if values["claim"] else []),
        ],
        "port": 29500,
    }


def label(text: str) -> str:
    """Return a Kubernetes name of a text: lower case, a-z, 0-9 and single dashes, cut to 40, with `job-` in front
    unless a letter is first."""
    plain = re.sub(r"[^a-z0-9]+", "-", slug(text).lower()).strip("-")[:40].strip("-")
    return plain if plain[:1].isalpha() else f"job-{plain}".strip("-")


def _pytorchjob(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Return the variables of a pod, and `backoff`: restarts x nodes + 1, as a failure restarts all pods; 0 without
    restarts. (Training Operator 1.9, pkg/core/job.go, PastBackoffLimit; envvar.go sets the pods' variables.) Raises as
    `_pod`."""
    restarts = int(chosen.values["restarts"] or 0)
    backoff = restarts * shared.nodes(plan).count + 1 if restarts else 0
    return {**_pod("pytorchjob", plan, files, chosen), "backoff": backoff}


PYTORCHJOB = Target(
    name="pytorchjob",
    does="pytorchjob.yaml: a PyTorchJob of Kubeflow's Training Operator 1, a pod per node",
    start="kubectl apply --server-side -f pytorchjob.yaml",
    variables=_pytorchjob,
    settings=_OF_PODS,
)
# The pods' own variables come from the operator: PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and _PORT. Its JobSet
# starts all pods anew or none: a Job left to itself starts a single pod again, beside ranks that hang. Of Kubeflow
# Trainer 2.3, pkg/runtime/framework/plugins/torch/torch.go; JobSet, api/jobset/v1alpha2, whose restartPolicy defaults
# to OnFailure, and Kubernetes' Job, whose backoffLimit defaults to 6.
TRAINJOB = Target(
    name="trainjob",
    does="trainjob.yaml: a TrainJob of Kubeflow Trainer 2 with its TrainingRuntime, a pod per node",
    start="kubectl apply --server-side -f trainjob.yaml",
    variables=lambda plan, files, chosen: {
        **_pod("trainjob", plan, files, chosen),
        "restarts": int(chosen.values["restarts"] or 0),
    },
    settings=_OF_PODS,
)
LAUNCHERS = (DEEPSPEED, PYTORCHJOB, RAY, SKYPILOT, SLURM, TORCHRUN, TRAINJOB)
