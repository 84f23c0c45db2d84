"""How each format's folder is started on ranks without a GPU: what is given beside it, and what must be other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from symconfig.plans.plan import Plan
from symconfig.render import render, targets
from symconfig.render.files import Files
from tools.pages import ROOT
from tools.verify.training import logs
from tools.verify.training.material import Material

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
RUNNERS = ROOT / "symconfig" / "verify" / "runners"
GLOO = "gloo for NCCL"
SHARDED = "Accelerate told that its ranks have GPUs"
BF16 = "TrainingArguments told that there is bf16"


@dataclass(frozen=True, slots=True)
class Start:
    """command: what is run in the folder, with `environment`; read: the steps of its log; overrides: what had to be
    other than at a person's start; ahead: steps that the framework's warm-up is before the plan's; counted: its ranks
    say of how many numbers they keep the optimizer's state; held: and what they hold and read in each phase."""

    command: tuple[str, ...]
    environment: dict[str, str]
    read: logs.Reader
    overrides: tuple[str, ...] = ()
    ahead: int = 0
    counted: bool = False
    held: bool = False


def files(plan: Plan, name: str) -> Files:
    """Of a target; of a launcher with the generated script."""
    return render(plan, name) if name in targets() else render(plan, "deepspeed", (name,))


Starter = Callable[[Plan, Path, Material | None], Start]
LAUNCH = ("bash", "launch.sh")
CPU = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def deepspeed(plan: Plan, folder: Path, material: Material | None) -> Start:
    given = {"MODEL": str(material.weights), "DATA": str(material.ids)}
    return Start(LAUNCH, {**CPU, **given}, logs.of_train_py, ("DS_ACCELERATOR=cpu",))


def torchrun(plan: Plan, folder: Path, material: Material | None) -> Start:
    """Every node's command at once."""
    each = 'bash rendezvous.sh "127.0.0.1:$MASTER_PORT" & '
    command = ("bash", "-c", f"{each * _nodes(plan)}wait")
    return replace(deepspeed(plan, folder, material), command=command)


def _nodes(plan: Plan) -> int:
    return plan.best.configuration.world_size // plan.cluster.gpus_per_node


def slurm(plan: Plan, folder: Path, material: Material | None) -> Start:
    base, command = deepspeed(plan, folder, material), (sys.executable, str(HERE / "in_slurm.py"), str(_nodes(plan)))
    more = ("GPUs that slurmd claims", "nodes meet at 127.0.0.1")
    return replace(base, command=command, overrides=(*base.overrides, *more))


def ray(plan: Plan, folder: Path, material: Material | None) -> Start:
    base, sizes = deepspeed(plan, folder, material), (str(_nodes(plan)), str(plan.cluster.gpus_per_node))
    command = ("python3", str(HERE / "in_ray.py"), *sizes)
    return replace(base, command=command, overrides=(*base.overrides, "GPUs that Ray's nodes claim"))


def transformers(plan: Plan, folder: Path, material: Material | None) -> Start:
    environment = _script("with_trainer.py", plan, folder, material)
    return Start(LAUNCH, environment, logs.of_scripts, (*_told(plan), GLOO, BF16), counted=True)


def accelerate(plan: Plan, folder: Path, material: Material | None) -> Start:
    environment = _script("with_accelerator.py", plan, folder, material)
    return Start(LAUNCH, environment, logs.of_scripts, ("DS_ACCELERATOR=cpu", GLOO), counted=True)


def _script(name: str, plan: Plan, folder: Path, material: Material | None) -> dict[str, str]:
    """For a training script of one's own, which gets its files by variables."""
    adapter = {"ADAPTER": str(folder)} if plan.model.adapter is not None else {}
    return {
        **CPU, "SCRIPT": str(SCRIPTS / name), "MODEL": str(material.weights), "DATA": str(material.ids),
        "PLAN": str(folder / "plan.json"), "PYTHONPATH": str(HERE / "trainer_on_cpu"), **adapter,
    }  # fmt: skip


def llamafactory(plan: Plan, folder: Path, material: Material | None) -> Start:
    if plan.training.data_path:
        return tuned(plan, folder, material)
    weights, texts = f"model_name_or_path={material.weights}", f"dataset_dir={material.texts}"
    return Start(
        (*LAUNCH, weights, "train_from_scratch=false", "dataset=texts", texts),
        {**CPU, "PYTHONPATH": str(HERE / "trainer_on_cpu")},
        logs.of_trainer,
        ("DS_ACCELERATOR=cpu", GLOO, BF16, "the weights and the data of the other formats, by its options"),
        counted=True,
    )


def tuned(plan: Plan, folder: Path, material: Material | None) -> Start:
    """A program that finds weights and data in its own files, as they are written."""
    environment = {**CPU, "PYTHONPATH": str(HERE / "trainer_on_cpu")}
    read = logs.of_answers if plan.job.rl is None else logs.of_rewards
    return Start(LAUNCH, environment, read, (*_told(plan), GLOO, BF16), counted=True)


def _told(plan: Plan) -> tuple[str, ...]:
    return (SHARDED,) if plan.best.target.backend == "fsdp" else ("DS_ACCELERATOR=cpu",)


def ms_swift(plan: Plan, folder: Path, material: Material | None) -> Start:
    start = tuned(plan, folder, material)
    command = (*LAUNCH, "--report_to", "none")
    return replace(start, command=command, overrides=(*start.overrides, "no TensorBoard"))


def trl(plan: Plan, folder: Path, material: Material | None) -> Start:
    """Its engine needs a GPU, so Transformers generates."""
    start = tuned(plan, folder, material)
    if plan.job.rl is None:
        return start
    return replace(
        start,
        command=(*LAUNCH, "--use_vllm", "false"),
        environment={**start.environment, "REWARD": "rewards.even"},
        overrides=(*start.overrides, "Transformers generates in vLLM's place"),
    )


def megatron(plan: Plan, folder: Path, material: Material | None) -> Start:
    """On its own mock data, by its own random weights."""
    environment = {
        **CPU,
        "RUNNERS": str(RUNNERS),
        "MEGATRON_PATH": os.environ["MEGATRON_PATH"],
        "PYTHONPATH": str(HERE / "megatron_on_cpu"),
    }
    return Start(LAUNCH, environment, logs.of_megatron, (GLOO, "a GPU's calls of torch.cuda do nothing"))


def bridge(plan: Plan, folder: Path, material: Material | None) -> Start:
    """On its own mock data, by its own random weights."""
    environment = {**CPU, "RUNNERS": str(RUNNERS), "PYTHONPATH": str(HERE / "bridge_on_cpu")}
    return Start(
        LAUNCH,
        environment,
        logs.of_megatron,
        (
            GLOO,
            "a GPU's calls of torch.cuda do nothing",
            "nothing compiled",
            "megatron-core's own layers for Transformer Engine's",
            "Transformer Engine, Triton, modelopt, nvidia_resiliency_ext, wandb and TensorBoard imported only",
        ),
    )


def verl_fsdp(plan: Plan, folder: Path, material: Material | None) -> Start:
    """Its trained workers alone, in the steps that its trainer makes: that needs Ray, and the engine a GPU."""
    ranks, steps = plan.best.configuration.world_size, plan.training.train_iters
    return Start(
        ("python3", str(HERE / "verl_on_cpu" / "workers.py"), str(ranks), str(steps)),
        {**CPU, "PYTHONPATH": str(HERE / "flash_on_cpu")},
        logs.of_scripts,
        (
            "the CPU as verl's device, so that nothing moves to the host",
            GLOO,
            "its workers in ranks of torchrun, called as its trainer calls them through Ray",
            "Transformers generates in vLLM's place, from the weights that the workers hand over",
            "flash attention, its cross-entropy and the entropy's compiled kernel in plain torch",
        ),
        counted=True,
        held=True,
    )


def verl(plan: Plan, folder: Path, material: Material | None) -> Start:
    """The same of its Megatron workers, with Megatron-Bridge, whose GPU bridge_on_cpu stands in for."""
    start, cpu = verl_fsdp(plan, folder, material), bridge(plan, folder, material)
    path = os.pathsep.join([cpu.environment["PYTHONPATH"], start.environment["PYTHONPATH"]])
    return replace(
        start,
        environment={**cpu.environment, "PYTHONPATH": path},
        overrides=(
            "the CPU as verl's device: weights go to the host and come back as copies, optimizer states and the "
            "reference stay",
            *start.overrides[1:-1],
            "flash attention, RMSNorm's kernel and the entropy's compiled one in plain torch",
            *cpu.overrides[1:],
        ),
        counted=False,
    )


_EVERY = (
    deepspeed, transformers, accelerate, llamafactory, trl, verl_fsdp, verl, megatron, bridge, torchrun, slurm, ray,
)  # fmt: skip
STARTS: dict[str, Starter] = {
    **{start.__name__.replace("_", "-"): start for start in _EVERY},
    "ms-swift-deepspeed": ms_swift,
}
