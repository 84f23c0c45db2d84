"""Starts the process that runs a rank, and hears what it found: never a hang, never a traceback."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from symconfig.errors import SymconfigError
from symconfig.measure.rank import Run
from symconfig.verify.megatron_session import Job
from symconfig.verify.megatron_source import MegatronSource

SILENCE_S = 600.0  # between two things that the process does; compiling kernels in the first step takes minutes
LAST_LINES = 12
WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True, slots=True)
class Memory:
    """Of torch's allocator since the start, and of the whole device as the driver says."""

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
    """What the process found. error: in Megatron's words; crash: it ended or hung instead of answering.

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


def take(
    source: MegatronSource, job: Job, run: Run, progress: Callable[[str], None], silence_s: float = SILENCE_S
) -> Taken:
    """Run it in a process of its own, with this Python."""
    request = {"source": str(source.root), "job": {**asdict(job), "env": dict(job.env), "rank": run.rank},
               "device": run.device, "steps": run.steps, "microbatches": run.microbatches,
               "attention": run.attention, "transformer_impl": run.impl}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([sys.executable, "-P", "-u", str(WORKER)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=errors, env=_environment(run.device), text=True,
                                   encoding="utf-8")
        try:
            result, fate = _converse(process, json.dumps(request), progress, silence_s)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    if result is None:
        return Taken(crash=fate, last_lines=tuple(lines[-LAST_LINES:]))
    return _taken(result)


def _environment(device: str) -> dict[str, str]:
    """The person's own: it is their GPU. On a CPU no GPU is touched."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **offline, **({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})}


def _converse(
    process: subprocess.Popen[str], request: str, progress: Callable[[str], None], silence_s: float
) -> tuple[dict[str, Any] | None, str]:
    """The result, or how the process ended without one."""
    if process.stdin is None or process.stdout is None:
        raise SymconfigError("the process that measures has no pipes")
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_hear, args=(process.stdout, lines), daemon=True).start()
    threading.Thread(target=_say, args=(process.stdin, request), daemon=True).start()
    doing = "starting"
    while True:
        try:
            line = lines.get(timeout=silence_s)
        except queue.Empty:
            return None, f"said nothing for {silence_s:.0f} s while {doing}"
        if line is None:
            return None, f"ended with status {process.wait()} while {doing}"
        data = json.loads(line)
        if "result" in data:
            return data["result"], ""
        doing = data["doing"]
        progress(doing)


def _hear(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _say(stream: IO[str], request: str) -> None:
    try:
        stream.write(request)
        stream.close()
    except OSError:  # it died before it had read all: the reader reports that
        return


def _taken(result: Mapping[str, Any]) -> Taken:
    failed = next((phase for phase in result["phases"] if not phase["ok"]), None)
    wrong = failed is not None and "out_of_memory" not in result
    return Taken(
        tuple(Step(tuple(step["forward_s"]), tuple(step["backward_s"]), step["optimizer_s"], tuple(step["losses"]),
                   step["gradient_norm"]) for step in result.get("steps", ())),
        Memory(**result["memory"]) if result.get("memory") else None, result.get("states_bytes"),
        result.get("software", {}), result.get("args", {}), result.get("rank", {}).get("parameters"),
        result.get("out_of_memory"), result.get("no_gpu"), result.get("not_compiled"),
        f"{failed['name']}: {failed['error']}" if wrong and failed else None,
    )
