"""Measures a GPU's kernels at the sizes that the zoo needs, within a budget of time."""

from __future__ import annotations

import re
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters, zoo_models
from symconfig.errors import InputError, SymconfigError
from symconfig.measured.gpu.kernel_clock import Clock, DeviceClock, HostClock, Timing, timed
from symconfig.measured.gpu.kernel_run import Bench, Make, Way, bench, unsupported, ways
from symconfig.measured.gpu.kernel_shapes import CPU, GPU, WantedKernel, wanted_kernels
from symconfig.measured.gpu.kernel_times import KernelTimes, Launch, Rig, Row, Skipped
from symconfig.units import significant

Progress = Callable[[str, float], None]
OVERRUN = 1.5  # of the budget, after which what is left is not measured
_WARM_UP_S = 0.5  # until clocks have risen
_WARM_UP_SIZE = 4096  # of each side of the product that does it
FREE = 0.9  # of the memory: where less is, somebody else may be on the GPU
INSTALL = "python -m pip install torch"
DIGITS = 5  # of what is measured
LEAST_TORCH = (2, 5)  # the first whose attention takes grouped queries


def import_torch() -> Any:
    """Return the torch module; raise InputError if it is not installed or older than LEAST_TORCH."""
    try:
        import torch
    except ImportError as error:
        raise InputError(f"torch cannot be imported: {error}", hint=INSTALL) from None
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST_TORCH:
        need = ".".join(map(str, LEAST_TORCH))
        raise InputError(
            "this torch is too old", got=str(torch.__version__), need=f"{need} or newer", hint=f"{INSTALL} --upgrade"
        )
    return torch


def choose_device(torch: Any, wanted: str | None) -> str:
    """Return "cuda" or "cpu": as wanted, else cuda. Raise InputError for another name or without a usable GPU."""
    if wanted not in (None, "cuda", "cpu"):
        raise InputError("unknown device", field="--device", got=wanted, need="cuda or cpu")
    if wanted != "cpu" and not torch.cuda.is_available():
        what = f"there is no GPU that torch {torch.__version__} could use"
        raise InputError(what, field="--device", hint="--device cpu, which shows how it goes in seconds")
    return wanted or "cuda"


def zoo_name(product: str) -> str | None:
    """Return the zoo's cluster whose GPU has this product name, as the driver reports it; None if there is none."""
    return next((name for name in zoo_clusters() if load_cluster(name).gpu.product == product), None)


def zoo_kernels(on: Bench) -> tuple[WantedKernel, ...]:
    """Return the kernels that the zoo's models need in the device's 16-bit type; on a CPU only a small sample."""
    selection = GPU if on.cuda else CPU
    if not on.has_bf16:
        selection = replace(selection, precisions={"fp16": selection.precisions["bf16"]})
    return wanted_kernels([load_model(name) for name in zoo_models()], selection)


def measure_kernels(
    torch: Any, device: str, budget_s: float, progress: Progress, kernels: Sequence[WantedKernel] | None = None
) -> KernelTimes:
    """Measure kernels for about budget_s seconds; those that cannot run or are too late are listed with the reason.

    progress: called with a text and the completed fraction. kernels: None: those of the zoo's models.
    """
    with _alone(torch, device) as on:
        return _measured(on, budget_s, progress, zoo_kernels(on) if kernels is None else kernels)


@contextmanager
def _alone(torch: Any, device: str) -> Iterator[Bench]:
    """Yield the device to measure on; a CPU is limited to one thread within the block."""
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield bench(torch, device)
    finally:
        torch.set_num_threads(threads)


def _measured(on: Bench, budget_s: float, progress: Progress, kernels: Sequence[WantedKernel]) -> KernelTimes:
    """Return the times of the kernels, sharing the rest of the budget (s) evenly among those left.

    After OVERRUN times the budget the others are skipped.
    """
    wanted = _interleaved(kernels)
    rig = _rig(on)
    notes = tuple(_notes(on))
    started = time.perf_counter()
    clock: Clock = DeviceClock(on.torch) if on.cuda else HostClock()
    host = HostClock(on.torch.cuda.synchronize if on.cuda else lambda: None)
    if on.cuda:
        x = on.normal(_WARM_UP_SIZE, _WARM_UP_SIZE)
        until = time.perf_counter() + min(_WARM_UP_S, budget_s / 10)
        while time.perf_counter() < until:
            on.torch.mm(x, x)
            on.torch.cuda.synchronize()
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for index, item in enumerate(wanted):
        progress(f"measuring {item.what.family}", index / len(wanted))
        left = started + budget_s - time.perf_counter()
        if left < (1 - OVERRUN) * budget_s:
            skipped.append(Skipped(what=item.what, reason="the budget of time was spent"))
            continue
        share = max(left, 0.0) / (len(wanted) - index)
        mine = host if isinstance(item.what, Launch) and item.what.where == "host" else clock
        row = _one(on, mine, item, share)
        if isinstance(row, Row):
            rows.append(row)
        else:
            skipped.append(row)
    return KernelTimes(rig=rig, cluster=zoo_name(rig.product), rows=tuple(rows), skipped=tuple(skipped), notes=notes)


def _interleaved(kernels: Sequence[WantedKernel]) -> list[WantedKernel]:
    """Return the kernels reordered to alternate between families, so that a short budget covers all of them."""
    seen: Counter[str] = Counter()
    keyed = []
    for item in kernels:
        keyed.append((seen[item.what.family], item))
        seen[item.what.family] += 1
    return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]


def _one(on: Bench, clock: Clock, item: WantedKernel, share_s: float) -> Row | Skipped:
    """Return the time of a kernel's fastest implementation, or why none can run."""
    reason = unsupported(on, item.what)
    if reason is not None:
        return Skipped(what=item.what, reason=reason)
    makes = ways(on, item.what)
    tried = [_tried(on, clock, make, share_s / len(makes)) for make in makes]
    done = [timing for timing in tried if not isinstance(timing, str)]
    if not done:
        reasons = dict.fromkeys(timing for timing in tried if isinstance(timing, str))
        return Skipped(what=item.what, reason="; ".join(reasons), model=item.model)
    timing, how = min(done, key=lambda pair: pair[0].seconds)
    return Row(
        what=item.what,
        seconds=significant(timing.seconds, DIGITS),
        spread=significant(timing.spread, DIGITS),
        samples=timing.samples,
        model=item.model,
        how=how,
    )


def _tried(on: Bench, clock: Clock, make: Make, share_s: float) -> tuple[Timing, str | None] | str:
    """Return an implementation's timing and name, or the first line of the error that stops it; frees its memory.

    Raises SymconfigError if the GPU no longer works.
    """
    way: Way | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says at length why a kernel is not available
            way = make()
            return timed(clock, way.call, share_s), way.how
    except (RuntimeError, NotImplementedError, ImportError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        _check_alive(on, reason)
        return reason
    finally:
        way = None  # its buffers, before the memory is given back
        if on.cuda:
            on.torch.cuda.empty_cache()


def _check_alive(on: Bench, reason: str) -> None:
    """Raise SymconfigError if the GPU no longer works, as it may not after some errors."""
    try:
        if on.cuda:
            on.torch.cuda.synchronize()
    except RuntimeError:
        raise SymconfigError(f"the GPU stopped working in the middle of the measurement: {reason}") from None


def _notes(on: Bench) -> Iterator[str]:
    """Yield warnings about the numbers: measured on a CPU, or on a GPU whose memory is partly in use."""
    if not on.cuda:
        yield "Measured on a CPU: this shows how it goes, and says nothing of a GPU."
        return
    free, total = on.torch.cuda.mem_get_info()
    if free < FREE * total:
        yield (
            f"{1 - free / total:.0%} of the GPU's memory is in use: where somebody else computes on it, the rates "
            "are too low."
        )


def _rig(on: Bench) -> Rig:
    """Return the device's name and the versions of its driver, CUDA or HIP, and torch, with the date."""
    torch = on.torch
    known = {"torch": str(torch.__version__), "date": datetime.now(UTC).date().isoformat()}
    if not on.cuda:
        return Rig(product="CPU, 1 thread", **known)
    cuda = torch.version.cuda or f"(HIP) {torch.version.hip}"
    return Rig(product=torch.cuda.get_device_name(), driver=_driver(), cuda=cuda, **known)


def _driver() -> str | None:
    """Return the version of NVIDIA's driver from its kernel module, else from nvidia-smi; None without either."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=20, check=False)
            text = ended.stdout.decode(errors="replace")
        except (OSError, subprocess.TimeoutExpired):
            return None
    version = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return version[0] if version else None
