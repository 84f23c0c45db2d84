"""verl's own workers without a GPU, without Ray and without vLLM: steps of GRPO, as train.sh says them.

Usage: python workers.py RANKS STEPS, in the folder of train.sh, with the Python that has verl; each rank is this file
again. verl composes its configuration from the words of train.sh and builds its worker (workers/engine_workers.py,
ActorRolloutRefWorker: actor and reference on FSDP 2 or on Megatron-Core, the optimizer and its schedule). The worker
hands its weights over, computes log-probabilities, those of the reference, and updates the actor, on samples that
verl's own functions weigh, balance and pack, as its trainer asks it to (steps.py). In the second step each rank counts
what it has.

Stood in for: Ray and what serves vLLM, which are imported and not used; vLLM (generating.py); the GPU, by the CPU under
a name of its own, so that what goes to the host is noted (device.py); pinned memory; and kernels (on_fsdp.py,
on_megatron.py, flash_on_cpu).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FORMATS = str(Path(__file__).resolve().parents[2] / "formats")
sys.path.append(FORMATS)
from absent import stand_in  # noqa: E402
from accepting import dry_run  # noqa: E402

sys.path.remove(FORMATS)  # whose folders would be found as packages

import torch.distributed as dist  # noqa: E402
from counting import Counted, Kind  # noqa: E402
from device import platform  # noqa: E402
from generating import Engine  # noqa: E402
from steps import step  # noqa: E402


def stand_ins() -> None:
    """Put the CPU in the place of a GPU, and what is there in the place of what generates."""
    stand_in("ray", "uvicorn", "fastapi", "zmq")
    for name in ("vllm_rollout", "vllm_rollout.utils"):  # the least rank of adapters that vLLM serves
        sys.modules[f"verl.workers.rollout.{name}"] = ModuleType(name)
    served: Any = sys.modules["verl.workers.rollout.vllm_rollout.utils"]
    served.get_vllm_max_lora_rank = lambda rank: rank
    os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    from verl.plugin.platform import set_platform

    set_platform(platform())
    from verl.workers import engine_workers

    engine_workers.get_rollout_class = lambda *given: Engine


def composed(words: list[str]) -> Any:
    """Return verl's configuration of the words of train.sh."""
    from hydra import compose, initialize_config_module

    start = words.index("--config-name")
    with initialize_config_module(version_base=None, config_module="verl.trainer.config"):
        return compose(config_name=words[start + 1], overrides=words[start + 2 :])


def kind_of(strategy: str) -> Kind:
    """Return the workers of a strategy."""
    if strategy == "megatron":
        from on_megatron import Megatron

        return Megatron()
    from on_fsdp import Fsdp

    return Fsdp()


def in_turn(text: str) -> None:
    """Print a line of each rank, one after the other."""
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == dist.get_rank():
            print(f"\n{text}", flush=True)


def main(steps: int, words: list[str]) -> None:
    stand_ins()
    from verl.workers.engine_workers import ActorRolloutRefWorker

    dist.init_process_group("gloo")
    config = composed(words)
    section = config.actor_rollout_ref
    kind = kind_of(section.actor.strategy)
    kind.stand_in()
    section.actor.optim.total_training_steps = steps  # as the trainer counts them
    reads = section.actor.use_kl_loss and section.model.lora_rank == 0
    worker = ActorRolloutRefWorker(config=section, role="actor_rollout_ref" if reads else "actor_rollout")
    counted = Counted(kind)
    counted.watch()
    worker.init_model()
    for number in range(steps):
        line = step(worker, config, counted, number)
        if dist.get_rank() == 0:
            print("\nlogged " + json.dumps(line), flush=True)
    in_turn("counted " + json.dumps(counted.phases))
    in_turn(f"keeps the states of {kind.stepped(worker.actor.engine)} numbers")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(sys.argv[1]), sys.argv[2:])
    else:
        ranks, steps = sys.argv[1:]
        files = {"TRAIN_FILES": "rows.parquet", "VAL_FILES": "rows.parquet"}
        launcher = [
            "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", os.environ["MASTER_PORT"],
        ]  # fmt: skip
        os.execv(
            sys.executable, [sys.executable, *launcher, __file__, steps, *dry_run(Path.cwd(), "train.sh", **files)]
        )
