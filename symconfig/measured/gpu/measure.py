"""One rank of a folder's plan: what is expected of it, what would run, and what ran."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from symconfig.errors import InputError, Problem
from symconfig.measured.gpu.predict import Expected, expected
from symconfig.measured.gpu.rank import Run
from symconfig.measured.gpu.session import SILENCE_S, Step, Taken, take
from symconfig.plans.plan import Plan
from symconfig.units import GIB
from symconfig.verify import megatron, megatron_session, megatron_source
from symconfig.verify.megatron_arguments import read
from symconfig.verify.megatron_source import MegatronSource
from symconfig.verify.shell import exported

LAUNCH_TIMEOUT_S = 60.0  # of the launcher's dry run, which tells what it exports


@dataclass(frozen=True, slots=True)
class Passes:
    """Measured seconds: medians of a microbatch's passes through all chunks of the stage, and of the optimizer."""

    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """passes: None where no step after the warm-up ended. megatron: its release."""

    plan: Plan
    run: Run
    megatron: str
    expected: Expected
    taken: Taken
    passes: Passes | None

    @property
    def fits(self) -> bool:
        return self.taken.out_of_memory is None

    @property
    def failed(self) -> str | None:
        """Return what went wrong, in Megatron's words; running out of memory is an answer, not a failure."""
        taken = self.taken
        if taken.crash is not None:
            return f"{taken.crash}; its last lines: {' | '.join(taken.last_lines)}"
        return f"refuses: {taken.error}" if taken.error is not None else None

    @property
    def finite(self) -> bool:
        """Tell whether all losses and gradient norms are numbers."""
        values = [
            value for step in self.taken.steps for value in (*step.losses, step.gradient_norm) if value is not None
        ]
        return all(map(math.isfinite, values))

    @property
    def other_gpu(self) -> str | None:
        """Name this GPU, where it is not of the type that the plan was made for."""
        capability = megatron_session.CAPABILITY.get(self.plan.cluster.gpu.architecture)
        wanted = (list(capability) if capability else None, self.plan.cluster.gpu.compute_units)
        software = self.taken.software
        if "gpu" not in software or (software["capability"], software["compute_units"]) == wanted:
            return None
        return str(software["gpu"])


def ready(plan: Plan, named: Path | None) -> MegatronSource:
    """Locate Megatron's code for this plan. Raises InputError that says what is missing and how to get it."""
    source = megatron_source.find(named)
    if (reason := megatron.unfit(source, plan)) is not None or source is None:
        raise InputError(Problem(reason or "there is no Megatron"))
    return source


def measure(
    folder: Path,
    plan: Plan,
    run: Run,
    source: MegatronSource,
    progress: Callable[[str], None] = lambda text: None,
    timeout_s: float | None = None,
) -> Measurement:
    """Run the rank; what goes wrong there is in the result. timeout_s: of silence, for another than the device's."""
    hope = expected(plan, run.stage, run.impl, run.attention)
    if run.device == "cpu" and hope.peak_bytes > (room := _host_bytes()):
        what = f"the rank needs {hope.peak_bytes / GIB:.1f} GiB, and this machine has {room / GIB:.1f} GiB"
        raise InputError(what, field="--device", got="cpu", hint="a plan of a small model")
    env = exported(folder, "launch.sh", LAUNCH_TIMEOUT_S)
    job = megatron_session.job(folder.name, plan, read(folder), env, source)
    taken = take(source, job, run, progress, timeout_s or SILENCE_S[run.device])
    return Measurement(plan, run, source.version, hope, taken, passes(taken.steps, run.microbatches))


def _host_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def passes(steps: Sequence[Step], microbatches: int) -> Passes | None:
    """Return the times of the passes after the first step.

    With several chunks a microbatch's share of each step, since chunks may differ.
    """
    timed = steps[1:]
    if not timed:
        return None

    def typical(name: str) -> float:
        every: list[tuple[float, ...]] = [getattr(step, name) for step in timed]
        if all(len(each) == microbatches for each in every):
            return median(second for each in every for second in each)
        return median(sum(each) / microbatches for each in every)

    return Passes(typical("forward_s"), typical("backward_s"), median(step.optimizer_s for step in timed))
