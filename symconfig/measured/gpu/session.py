"""Starts the process that runs a rank, and hears what it found: never a hang, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from symconfig.measured.gpu.rank import Device, Run
from symconfig.verify.conversation import converse
from symconfig.verify.megatron_session import Job, Phase, refusal
from symconfig.verify.megatron_source import MegatronSource

# Between two things that the process does: on a GPU compiling kernels in the first step takes minutes.
SILENCE_S: Mapping[Device, float] = {"cuda": 600.0, "cpu": 300.0}
WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of torch's allocator since the start, and of the whole device by its driver."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    whole_bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of every pass, in the order in which they ran; losses on the last stage only."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: float
    losses: tuple[float, ...]
    gradient_norm: float | None


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of the process. error: in Megatron's words; crash: it ended or hung instead of answering.

    not_compiled: why PyTorch's compiler does not work there. args: the resolved namespace as it ran. states_bytes:
    allocated once the rank was built.
    """

    steps: tuple[Step, ...] = ()
    memory: Memory | None = None
    states_bytes: int | None = None
    software: Mapping[str, Any] = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    out_of_memory: str | None = None
    no_gpu: str | None = None
    not_compiled: str | None = None
    error: str | None = None
    crash: str | None = None
    last_lines: tuple[str, ...] = ()


def take(source: MegatronSource, job: Job, run: Run, progress: Callable[[str], None], silence_s: float) -> Taken:
    """Run it in a process of its own, with this Python."""
    request = {
        "source": str(source.root),
        "job": {**asdict(job), "env": dict(job.env), "rank": run.rank},
        "device": run.device,
        "steps": run.steps,
        "microbatches": run.microbatches,
        "attention": run.attention,
        "transformer_impl": run.impl,
    }
    doing, results = "starting", []

    def heard(data: dict[str, Any]) -> float | None:
        nonlocal doing
        if "result" in data:
            results.append(data["result"])
            return None
        doing = data["doing"]
        progress(doing)
        return silence_s

    ended = converse(WORKER, request, _environment(run.device), silence_s, heard)
    if results:
        return _taken(results[0], ended.last_lines)
    fate = f"ended with status {ended.status}" if ended.silent_s is None else f"said nothing for {ended.silent_s:.0f} s"
    return Taken(crash=f"{fate} while {doing}", last_lines=ended.last_lines)


def _environment(device: str) -> dict[str, str]:
    """Return the process's environment, the person's own: it is their GPU. On a CPU no GPU is touched."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **offline, **({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})}


def _taken(result: Mapping[str, Any], last_lines: Sequence[str]) -> Taken:
    wrong = refusal((Phase(**phase) for phase in result["phases"]), last_lines)
    return Taken(
        steps=tuple(
            Step(
                tuple(step["forward_s"]),
                tuple(step["backward_s"]),
                step["optimizer_s"],
                tuple(step["losses"]),
                step["gradient_norm"],
            )
            for step in result.get("steps", ())
        ),
        memory=Memory(**result["memory"]) if result.get("memory") else None,
        states_bytes=result.get("states_bytes"),
        software=result.get("software", {}),
        args=result.get("args", {}),
        parameters=result.get("rank", {}).get("parameters"),
        out_of_memory=result.get("out_of_memory"),
        no_gpu=result.get("no_gpu"),
        not_compiled=result.get("not_compiled"),
        error=None if "out_of_memory" in result else wrong,
    )
