"""Runs argument lists through Megatron's own checks in a subprocess: never a hang, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from symconfig.plans.plan import Plan
from symconfig.verify.conversation import GRACE_S, START_S, converse
from symconfig.verify.megatron_source import MegatronSource

RUNNER = Path(__file__).with_name("runners") / "megatron_runner.py"
COMMAND = (sys.executable, "-E", "-P", "-u", str(RUNNER))

# torch.cuda.get_device_capability; for ROCm torch answers with the gfx number's first digits, for Ascend
# there is no such call and Megatron's gates are those of an A100.
CAPABILITY = {
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
    "cdna3": (9, 4),
    "cdna4": (9, 5),
    "davinci": (8, 0),
}

# Transformer Engine's release that goes with each Megatron release: the upper end of what its
# pyproject.toml allows from core_v0.14 to core_v0.16; assumed before (NGC 25.04 to 25.07) and after.
TRANSFORMER_ENGINE = {
    (0, 11): "2.1.0",
    (0, 12): "2.2.0",
    (0, 13): "2.5.0",
    (0, 14): "2.7.0",
    (0, 15): "2.9.0",
    (0, 16): "2.11.0",
}
TRANSFORMER_ENGINE_NEWEST = "2.13.0"


@dataclass(frozen=True, slots=True)
class Job:
    """One argument list, with the machine that it is claimed to run on. `env`: what the launcher exports.

    `rank`: of `world_size`. `task`: "check", or a function of megatron_tasks.py for the resolved arguments.
    """

    id: str
    args: tuple[str, ...]
    world_size: int
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 80 * 10**9
    compute_units: int = 132
    env: Mapping[str, str] = field(default_factory=dict)
    transformer_engine: str = TRANSFORMER_ENGINE_NEWEST
    rank: int = 0
    task: str = "check"


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of Megatron's: parse_args, validate_args, transformer_config, …"""

    name: str
    ok: bool
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """Megatron's answer on one list. `crash`: it ended or hung instead; then the rest is empty.

    args, config: what it resolved, by its own names. stages: per pipeline and virtual stage, number of the first
    layer, how many follow, and how many predict further tokens. rank: what the job's task found of its rank.
    """

    id: str
    phases: tuple[Phase, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    num_microbatches: int | None = None
    rank: Mapping[str, Any] = field(default_factory=dict)
    crash: str | None = None
    last_lines: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.crash is None and bool(self.phases) and all(phase.ok for phase in self.phases)

    @property
    def error(self) -> str | None:
        """Return the crash with its last lines, else the first failed phase with its error (and the last line of output
        if it exited), else None.
        """
        if self.crash is not None:
            return f"Megatron {self.crash}; its last lines: " + " | ".join(self.last_lines)
        for phase in self.phases:
            if not phase.ok:  # a phase that exits has said why on its last line
                exits = "exits with status" in str(phase.error) and self.last_lines
                return f"{phase.name}: {phase.error}{f'; {self.last_lines[-1]}' if exits else ''}"
        return None


def job(id: str, plan: Plan, args: Sequence[str], env: Mapping[str, str], source: MegatronSource) -> Job:
    """Return the job that checks `args` with `source` under `env` on the plan's number and type of GPUs: memory,
    compute units, capability (9.0 for an unknown architecture). Transformer Engine is that of the source's release, or
    the newest for an unknown one.
    """
    gpu = plan.cluster.gpu
    return Job(
        id=id,
        args=tuple(args),
        world_size=plan.best.configuration.world_size,
        env=dict(env),
        capability=CAPABILITY.get(gpu.architecture, (9, 0)),
        memory_bytes=int(gpu.memory_bytes.value),
        compute_units=gpu.compute_units,
        transformer_engine=TRANSFORMER_ENGINE.get(source.release, TRANSFORMER_ENGINE_NEWEST),
    )


def run(
    source: MegatronSource,
    jobs: Sequence[Job],
    timeout_s: float,
    heard: Callable[[Result], None] = lambda result: None,
) -> dict[str, Result]:
    """Run the jobs in one subprocess and return every job's result by its id; if it ends early or takes too long, each
    unanswered job gets a result with its crash. timeout_s: limit of each job. heard: called with each result as it
    arrives.
    """
    results: dict[str, Result] = {}
    request = {
        "source": str(source.root),
        "timeout_s": timeout_s,
        "jobs": [{**asdict(item), "env": dict(item.env)} for item in jobs],
    }

    def keep(data: dict[str, Any]) -> None:
        if "ready" not in data:
            results[data["id"]] = _result(data)
            heard(results[data["id"]])

    limits_s = START_S, timeout_s + GRACE_S
    how, last_lines = converse(COMMAND, request, _environment(), limits_s, keep)
    for item in jobs:
        if item.id not in results:
            results[item.id] = Result(item.id, crash=how, last_lines=last_lines)
            heard(results[item.id])
    return results


def _result(data: Mapping[str, Any]) -> Result:
    """Return the runner's answer as a Result, with its lists converted."""
    read: dict[str, Callable[[Any], Any]] = {
        "phases": lambda phases: tuple(Phase(**phase) for phase in phases),
        "stages": lambda stages: tuple(tuple((int(a), int(b), int(c)) for a, b, c in stage) for stage in stages),
        "last_lines": tuple,
    }
    return Result(**{name: read[name](value) if name in read else value for name, value in data.items()})


def _environment() -> dict[str, str]:
    """Return the subprocess's environment: PATH, HOME and the like of this one, no GPU, no network, one thread."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
        if name in os.environ
    }
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
