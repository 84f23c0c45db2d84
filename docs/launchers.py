"""Every launcher with its settings, into docs/launchers.md: `python docs/launchers.py`."""

from __future__ import annotations

from pathlib import Path

from symconfig.render import every_launcher
from symconfig.render.target import Source

PAGE = Path(__file__).with_suffix(".md")
INTRO = """# Launchers

Every target writes a `launch.sh`, which is run once on every node. A launcher is what does that: `--launcher`,
which may be repeated, beside `--target`; without it, Slurm's. All of them can start all targets, but for two that
start processes instead of nodes (`torchrun`, `deepspeed`): those need a target that torchrun runs, and say so.

    symconfig plan JOB.yaml --out run --launcher slurm:partition=big,time=2-00:00:00 --launcher ray
    symconfig render run/plan.json --out k8s --launcher pytorchjob:namespace=team,image=registry/train:7,claim=data

## Settings

What people change of a launcher follows its name: `NAME:setting=value,setting=value`. A comma belongs to the value
unless a setting and `=` follow it. `env.NAME=VALUE` is a variable that launch.sh finds on every node, with every
launcher:

    --launcher pytorchjob:env.MEGATRON_PATH=/opt/megatron-lm,env.NCCL_DEBUG=INFO

What the launcher itself tells launch.sh (`NNODES`, `GPUS_PER_NODE`, `NODE_RANK`, `MASTER_ADDR`, `PER_RANK`, `RANK`,
`LOCAL_RANK`, `WORLD_SIZE`) is refused there; `MASTER_PORT` may be set.

Pods, SkyPilot and Ray start launch.sh in a folder of each node's own. A `training.save` that is not absolute is refused
with them: the checkpoints would be lost with the node.

The whole text stands in `manifest.json`, and so `symconfig check` renders the same again.

## What launch.sh is given

| variable | is | default |
|---|---|---|
| `NNODES`, `GPUS_PER_NODE` | the nodes, and GPUs of each; another product than the plan's is refused | the plan's |
| `NODE_RANK` | which one this is | `SLURM_NODEID`, or 0 |
| `MASTER_ADDR`, `MASTER_PORT` | where all meet | `localhost`, 29500 |
| `PER_RANK=1` | be one process, as a launcher of processes starts it, with `RANK`, `LOCAL_RANK` and `WORLD_SIZE` | |
| `DRY_RUN=1` | print the command, one argument a line, quoted for bash, and stop | |
| `LOG_DIR` | a folder: what is printed goes there, too, a file per rank and start (per node without torchrun) | |
| `PROFILE=nsys`, `torch` | record with Nsight Systems, or PyTorch's profiler where the program has a switch for it | |
| `PROFILE_DIR` | the folder of what is recorded | `profiles` |
| `PROFILE_START`, `PROFILE_END` | the steps, of Megatron-LM, Megatron-Bridge and DeepSpeed's train.py | 10, 12 |
| `PROFILE_DELAY_S`, `PROFILE_DURATION_S` | seconds behind the start and after that, of other programs | 120, 30 |
| `SKIP_PREFLIGHT=1` | do not look for the Python modules that a Megatron plan's options want | |

All scripts take `DRY_RUN=1`, and what follows their names goes to the training program. To write a launcher of
one's own is to set these and run `launch.sh`.

## Clusters that lose nodes

    symconfig fallback run/plan.json --lose-nodes 1..4 --out spare --launcher slurm:partition=big
    sbatch spare/sbatch.sh

plans for one to four nodes fewer with the same model, global batch, pins and limits, and says what is lost beside
the nodes themselves, whether the checkpoint of the whole cluster loads there and how, and where nothing fits, why.
`spare/nodes-N/` is a folder as `symconfig plan --out` writes it. `spare/launch.sh` takes the largest plan for the
nodes that it finds: `NNODES`, `SLURM_JOB_NUM_NODES`, `PET_NNODES`, or the hosts of a hostfile. Nodes beyond that
plan end with status 0 and a sentence; fewer than the smallest plan needs is status 2. `spare/sbatch.sh` asks Slurm
for the range (`--nodes=4-8`). `symconfig check spare` covers all of it.

Whether a smaller run goes on by itself is decided when the large one saves. Megatron-LM's distributed optimizer saves
its buffers as they lie, which another grid cannot read: where an option changes that, `fallback` names it, what it
costs and what loads with it, and `spare/launch.sh` and `spare/fallback.json` say the same:

    bash launch.sh --dist-ckpt-optim-fully-reshardable

Where no option helps, that is said. A plan that is as fast as the best (within 0.1 %) and loads more of the checkpoint
is preferred to it. The step that a new run still needs is told, and not taken: what is saved is yours.
"""
NOTES = {
    "slurm": (
        "Run it from its folder: `sbatch sbatch.sh`. With `container-image` each task runs in it (Pyxis), "
        "which sees this folder, the one of the submission and those of `container-mounts`: "
        "`--launcher slurm:container-image=nvcr.io#nvidia/pytorch:26.01-py3,container-mounts=/data:/data`."
    ),
    "torchrun": (
        "`./rendezvous.sh HOST` on every node, with the same HOST; `HOST:PORT` and `[IPv6]:PORT` name a port, too. "
        "`launch.sh` alone is torchrun, too, with ranks that you give."
    ),
    "deepspeed": (
        'Put your hosts into `hostfile`, then `./deepspeed.sh` on one of them. Words with `$`, `"`, `` ` `` '
        "or `\\` are refused: DeepSpeed hands them through a remote shell, by pdsh; its other ways refuse the number "
        "of nodes, or lose the ranks. The other variables that launch.sh "
        "knows are told to every host through `.deepspeed_env` where they are set."
    ),
    "pytorchjob": (
        "`kubectl apply --server-side -f pytorchjob.yaml`. The files travel in a ConfigMap, at most 1 MB. "
        "`image` is a placeholder until you set it. `restarts` are of all pods: a process that dies ends those of the "
        "other nodes, and the operator adds up the restarts of every pod (`backoffLimit`)."
    ),
    "trainjob": (
        "`kubectl apply --server-side -f trainjob.yaml`. It brings a TrainingRuntime of its own, so that it "
        "does not depend on what a cluster has. `restarts` are its JobSet's, of all pods at once; the rest is as of "
        "`pytorchjob`."
    ),
    "skypilot": (
        "`sky launch sky.yaml` from its folder, which is the task's `workdir`. GPUs that SkyPilot has no name "
        "for need `accelerator`."
    ),
    "ray": (
        "`./ray.sh`, with `RAY_API_SERVER_ADDRESS`. Nothing starts before all nodes are free; when launch.sh "
        "fails on one, the others are stopped and the job fails."
    ),
}


def page() -> str:
    """docs/launchers.md."""
    return INTRO + "".join(_section(source) for source in every_launcher().values())


def _section(source: Source) -> str:
    text = f"\n## {source.name}\n\nWrites {source.does}. {NOTES[source.name]}\n"
    if source.settings:
        text += "\n| setting | is | default |\n|---|---|---|\n"
    for each in source.settings:
        text += f"| `{each.name}` | {each.does} | {f'`{each.default}`' if each.default is not None else ''} |\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
