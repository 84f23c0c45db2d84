"""Tiny models, and a rendered DeepSpeed folder launched on CPU ranks, with its bytes held against the prediction."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.render import render
from symconfig.render.files import write
from symconfig.verify.rank_states import predicted
from tests.processor import lacking
from tests.sample_plans import sample_model, sample_plan

# Odd sizes: groups and parameters of few of them divide by the ranks.
TINY: dict[str, Any] = {
    "hidden_size": 66, "intermediate_size": 122, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 249, "max_position_embeddings": 128, "huggingface_id": None,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True}
ADAPTER = {"r": 3, "lora_alpha": 8.0, "target_modules": ["q_proj", "v_proj"]}
STEP = re.compile(r"^step (\d+) loss (\S+) lr (\S+) time (\S+) s tokens/s/GPU (\S+)", flags=re.MULTILINE)
ROUGHLY = 0.1  # of a tiny model's optimizer state: padding is much of it
START_S, RUN_S = 900.0, 240.0  # compiling takes a minute of one idle core, once


def tiny(family: str, **fields: Any) -> ModelDescriptor:
    """A model of a family, in the architecture's own class, too small to take time."""
    name, more = {
        "llama": ("llama2-13b", {}),
        "mixtral": ("mixtral-8x7b", {"experts": EXPERTS, "hidden_size": 72}),  # grouped products want 16 bytes
        "qwen lora": ("qwen2.5-7b", {"adapter": ADAPTER}),
    }[family]
    return sample_model(name, **{**TINY, **more, **fields})


@dataclass(frozen=True, slots=True)
class Launcher:
    """environment: for launch.sh with the real torchrun; `quick` puts the one of ranks.py before it."""

    environment: dict[str, str]
    folder: Path

    @property
    def quick(self) -> dict[str, str]:
        return {**self.environment, "PATH": f"{self.folder}:{self.environment['PATH']}"}


def start_ranks(extensions: Path, folder: Path) -> tuple[Launcher, subprocess.Popen[bytes]]:
    """ranks.py, when it is ready. `extensions`: where DeepSpeed's compiled parts are, or will be."""
    environment = {
        **os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(extensions), "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CXX": os.environ.get("CXX", str(Path(__file__).with_name("compiler.sh")))}  # fmt: skip
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen([sys.executable, str(Path(__file__).with_name("ranks.py")), str(folder)],
                                  env=environment, stdout=out, stderr=out, start_new_session=True)  # fmt: skip
    ends = time.monotonic() + START_S
    while not (folder / "ready").exists():
        if server.poll() is not None or time.monotonic() > ends:
            stop(server)
            raise RuntimeError(f"the ranks did not start: {log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.1)
    return Launcher(environment, folder), server


def stop(server: subprocess.Popen[bytes]) -> None:
    """With every rank that it still has."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def train(folder: Path, env: dict[str, str], *arguments: str, model: ModelDescriptor | None = None,
          **fields: Any) -> tuple[list[float], str]:  # fmt: skip
    """Render, launch, hold every rank's bytes against ours, and return each step's loss with all that was said.

    Skips the test where this processor cannot train in the plan's precision.
    """
    plan = sample_plan(model or tiny("llama"), backend="deepspeed", **{
        "micro": 2, "global_batch": 4 * fields.get("dp", 1), "seq_length": 32, "sequence_parallel": False,
        "grad_bytes": 4 if fields.get("zero_stage") else 2,
        "training": {"lr": 1e-3, "min_lr": 0.0, "lr_warmup_iters": 0, "train_iters": 3}, **fields})  # fmt: skip
    if why := lacking(plan.best.configuration.precision):
        pytest.skip(why)
    write(render(plan, "deepspeed"), folder, force=True)
    status, said = launch(folder, env, "--repeat-batch", "--report-states=states.json", *arguments)
    assert status == 0, said[-4000:]
    real = json.loads((folder / "states.json").read_text())
    assert len(real) == plan.best.configuration.world_size
    ours = predicted(plan, 0)
    for found in real:
        before, between = found["before the optimizer"], found["between steps"]
        assert _bytes(between["parameters"]) == _bytes(before["parameters"]) > 0
        assert _bytes(between["optimizer"]) == pytest.approx(ours.optimizer_bytes, rel=ROUGHLY)
    return [float(loss) for _, loss, *_ in STEP.findall(said)], said


def launch(folder: Path, env: dict[str, str], *arguments: str) -> tuple[int, str]:
    """launch.sh's status, and all that it said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(["bash", "launch.sh", *arguments], cwd=folder, env={**env, "MASTER_PORT": port},
                          capture_output=True, text=True, timeout=RUN_S, check=False)  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def falls(losses: list[float], steps: int = 3) -> bool:
    """Finite (nan and inf compare false) and falling."""
    return len(losses) == steps and all(0 < b < a < 1e3 for a, b in pairwise(losses))


def _bytes(places: dict[str, int]) -> int:
    """On CPU ranks host and device are one."""
    return sum(places.values())
