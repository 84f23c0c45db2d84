"""Measures a GPU's kernels within a budget of time: warm, alone on the device, never waiting for the host."""

from __future__ import annotations

import re
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.errors import InputError, SymconfigError
from symconfig.measured.gpu.kernel_fit import (
    Attention,
    Dtype,
    HostCopy,
    Kernel,
    KernelTimes,
    Launch,
    Layout,
    Product,
    Rig,
    Row,
    Skipped,
    Stream,
    Streaming,
)
from symconfig.measured.gpu.kernel_run import Bench, Call, Make, bench, implementations, unsupported
from symconfig.units import MIB, significant

Progress = Callable[[str, float], None]
OVERRUN = 1.5  # of the budget, after which what is left is not measured
_WARM_UP_S = 0.5  # until clocks have risen
_WARM_UP_SIZE = 4096  # of each side of the product that does it
FREE = 0.9  # of the memory: where less is, somebody else may be on the GPU
INSTALL = "python -m pip install torch"
DIGITS = 5  # of what is measured
LEAST_TORCH = (2, 5)  # the first whose attention takes grouped queries

# Sizes [in, out] of a rank's weights: from a model of 1 billion parameters at TP 8 to one of 400 billion at TP 4.
_WEIGHTS = (
    (2048, 1536),
    (4096, 1024),
    (4096, 4096),
    (4096, 14336),
    (7168, 2048),
    (8192, 7168),
    (16384, 6656),
    (5120, 17408),
)
_TOKENS = (2048, 8192)  # of a micro-batch on a rank
_GROUPED = ((8, 1024, 4096, 14336), (8, 2048, 6144, 8192), (16, 512, 2048, 768), (32, 1024, 7168, 2048))  # experts, …
# batch, heads, kv_heads, length, channels, value_channels: with grouped queries, narrow heads, latent attention
_ATTENTIONS = (
    (1, 32, 8, 4096, 128, 128),
    (2, 16, 2, 4096, 128, 128),
    (1, 8, 1, 8192, 128, 128),
    (4, 8, 8, 2048, 64, 64),
    (1, 32, 32, 8192, 128, 128),
    (1, 16, 16, 4096, 192, 128),
)
_STREAMS: tuple[Streaming, ...] = ("layernorm", "glu", "gelu")
_ROWS = ((2048, 16384), (4096, 4096), (8192, 8192))
_LAYOUTS: tuple[Layout, ...] = ("forward", "input-gradient", "weight-gradient")
_COPIES, _HOST_COPIES = (64, 256, 1024), (16, 256)  # MiB


def wanted_kernels(on: Bench) -> list[Kernel]:
    """Return the kernels to measure: a launch, products of three passes, grouped products, attention, norms, activation
    functions, copies on the device and to and from the host. With bf16 units products are in bf16, and a few in fp8 (no
    weight gradients) and fp16; else all in fp16. On a CPU only small ones, to show how it goes.
    """
    if not on.cuda:
        products = [Product(dtype="bf16", layout=layout, m=64, n=512, k=256) for layout in _LAYOUTS]
        attention = [
            Attention(backward=way, batch=1, heads=4, kv_heads=2, length=64, channels=64, value_channels=64)
            for way in (False, True)
        ]
        streams = [
            Stream(what=what, backward=way, rows=64, columns=512)
            for what in ("layernorm", "glu")
            for way in (False, True)
        ]
        return [Launch(), *products, *attention, *streams, Stream(what="copy", rows=1024, columns=1024)]
    usual: Dtype = "bf16" if on.has_bf16 else "fp16"
    result: list[Kernel] = [Launch()]
    for layout in _LAYOUTS:
        for inner, outer in _WEIGHTS:
            result += [_of_weight(usual, layout, 1, tokens, inner, outer) for tokens in _TOKENS]
            if on.has_bf16 and layout != "weight-gradient":  # of which fp8 reads copies that torch has no cast for
                result.append(_of_weight("fp8", layout, 1, _TOKENS[-1], inner, outer))
        result += [_of_weight(usual, layout, *sizes) for sizes in _GROUPED]
        if on.has_bf16:
            result += [_of_weight("fp16", layout, 1, _TOKENS[-1], *sizes) for sizes in _WEIGHTS[2:4]]
    for way in (False, True):
        names = ("batch", "heads", "kv_heads", "length", "channels", "value_channels")
        result += [
            Attention.model_validate({"backward": way, **dict(zip(names, sizes, strict=True))}) for sizes in _ATTENTIONS
        ]
        result += [
            Stream(what=what, backward=way, rows=rows, columns=columns) for what in _STREAMS for rows, columns in _ROWS
        ]
    result += [Stream(what="copy", rows=int(size * MIB) // 2 // 8192, columns=8192) for size in _COPIES]
    return result + [HostCopy(to_device=way, bytes=int(size * MIB)) for way in (True, False) for size in _HOST_COPIES]


def _of_weight(dtype: Dtype, layout: Layout, batch: int, tokens: int, inner: int, outer: int) -> Product:
    """Return the product of one pass of a linear layer with weight [outer, inner]: `batch` experts, `tokens` each."""
    m, n, k = {
        "forward": (tokens, outer, inner),
        "input-gradient": (tokens, inner, outer),
        "weight-gradient": (inner, outer, tokens),
    }[layout]
    return Product(dtype=dtype, layout=layout, batch=batch, m=m, n=n, k=k)


SAMPLE_S = 5e-3  # of one sample, of as many runs as that takes
MOST_RUNS = 50  # of a sample: all of them wait in the device's queue, which holds about a thousand
STABLE = 0.03  # two samples this close: the clock and the caches have settled
LEAST_SAMPLES, MOST_SAMPLES = 3, 11
_LEAD_S, _MOST_LEAD_S = 5e-4, 0.05
_LEAD = 1.5  # over what the host took to queue the runs before
_CYCLES_PER_S = 2e9  # of the fastest GPUs; a slower one waits longer, which does no harm


class Clock(Protocol):
    def sample(self, call: Call, runs: int) -> float:
        """Return the mean seconds of one of `runs` calls back to back."""


class HostClock:
    """A clock for a CPU."""

    def sample(self, call: Call, runs: int) -> float:
        started = time.perf_counter()
        for run in range(runs):
            call(run)
        return (time.perf_counter() - started) / runs


class DeviceClock:
    """CUDA events around runs that are all queued while the device is kept busy: it never waits for the host."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._queue_s = 0.0  # of the host, for one run

    def sample(self, call: Call, runs: int) -> float:
        """Return the device's mean seconds of one call, measured by events around `runs` calls that are queued behind a
        sleep. Repeats with twice the sleep, up to _MOST_LEAD_S, while the device had started before all were queued and
        took less than twice the queueing. Records the host's seconds per call for the next sleep.
        """
        lead_s = min(max(_LEAD_S, _LEAD * self._queue_s * runs), _MOST_LEAD_S)
        while True:
            start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
            self._cuda._sleep(int(lead_s * _CYCLES_PER_S))
            start.record()
            queued = time.perf_counter()
            for run in range(runs):
                call(run)
            end.record()
            queued = time.perf_counter() - queued
            late = start.query()
            end.synchronize()
            seconds: float = 1e-3 * start.elapsed_time(end)
            self._queue_s = queued / runs
            if not late or seconds >= 2 * queued or lead_s >= _MOST_LEAD_S:
                return seconds / runs
            lead_s = min(2 * lead_s, _MOST_LEAD_S)


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one run; half the interquartile range of the samples over it; how many samples."""

    seconds: float
    spread: float
    samples: int


def timed(clock: Clock, call: Call, share_s: float, now: Callable[[], float] = time.perf_counter) -> Timing:
    """Return the median time of a call over repeated samples, taking about `share_s` seconds, and its spread. Two
    untimed runs come first, then samples until two agree within STABLE, or a third of the time is over; only later ones
    count: LEAST_SAMPLES in any case, up to MOST_SAMPLES while time is left.
    """
    for run in range(2):  # what first runs do besides: libraries loaded, memory taken, kernels compiled
        call(run)
    started = now()
    runs = max(1, min(MOST_RUNS, int(SAMPLE_S / max(clock.sample(call, 1), 1e-9))))
    before = clock.sample(call, runs)
    while now() - started < share_s / 3:
        after = clock.sample(call, runs)
        settled = abs(after - before) <= STABLE * after
        before = after
        if settled:
            break
    samples: list[float] = []
    while len(samples) < LEAST_SAMPLES or (len(samples) < MOST_SAMPLES and now() - started < share_s):
        samples.append(clock.sample(call, runs))
    middle = median(samples)
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return Timing(middle, (high - low) / 2 / middle, len(samples))


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
    """Return "cuda" or "cpu": as wanted, else cuda. Raise InputError for another name, and for cuda (also as default)
    without a usable GPU.
    """
    if wanted not in (None, "cuda", "cpu"):
        raise InputError("unknown device", field="--device", got=wanted, need="cuda or cpu")
    if wanted != "cpu" and not torch.cuda.is_available():
        what = f"there is no GPU that torch {torch.__version__} could use"
        raise InputError(what, field="--device", hint="--device cpu, which shows how it goes in seconds")
    return wanted or "cuda"


def zoo_name(product: str) -> str | None:
    """Return the zoo's cluster whose GPU has this product name, as the driver reports it; None if there is none."""
    return next((name for name in zoo_clusters() if load_cluster(name).gpu.product == product), None)


def measure_kernels(
    torch: Any, device: str, budget_s: float, progress: Progress, kernels: Sequence[Kernel] | None = None
) -> KernelTimes:
    """Return the times of kernels (None: `wanted_kernels`), measured for about budget_s seconds.

    Those that cannot run or are too late are listed with the reason. On a CPU it is one thread, whatever torch has
    before and after. progress: called with a text and the completed share.
    """
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        on = bench(torch, device)
        return _measured(on, budget_s, progress, wanted_kernels(on) if kernels is None else kernels)
    finally:
        torch.set_num_threads(threads)


def _measured(on: Bench, budget_s: float, progress: Progress, kernels: Sequence[Kernel]) -> KernelTimes:
    """Return the times of the kernels, sharing the rest of the budget (s) evenly among those left, after a warm-up on a
    GPU. Families take turns, so that a short budget covers all. A kernel that cannot run, or whose turn comes after
    OVERRUN times the budget, is listed as skipped.
    """
    seen: Counter[str] = Counter()
    turns = []
    for kernel in kernels:
        turns.append((seen[kernel.family], kernel))
        seen[kernel.family] += 1
    rig, notes, started = _rig(on), tuple(_notes(on)), time.perf_counter()
    clock: Clock = DeviceClock(on.torch) if on.cuda else HostClock()
    if on.cuda:
        x = on.normal(_WARM_UP_SIZE, _WARM_UP_SIZE)
        until = time.perf_counter() + min(_WARM_UP_S, budget_s / 10)
        while time.perf_counter() < until:
            on.torch.mm(x, x)
            on.torch.cuda.synchronize()
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for index, (_, kernel) in enumerate(sorted(turns, key=lambda turn: turn[0])):
        progress(f"measuring {kernel.family}", index / len(turns))
        left = started + budget_s - time.perf_counter()
        if left < (1 - OVERRUN) * budget_s:
            skipped.append(Skipped(what=kernel, reason="the budget of time was spent"))
            continue
        row = _fastest(on, clock, kernel, max(left, 0.0) / (len(turns) - index))
        if isinstance(row, Row):
            rows.append(row)
        else:
            skipped.append(row)
    return KernelTimes(rig=rig, cluster=zoo_name(rig.product), rows=tuple(rows), skipped=tuple(skipped), notes=notes)


def _fastest(on: Bench, clock: Clock, kernel: Kernel, share_s: float) -> Row | Skipped:
    """Return the time of a kernel's fastest implementation, each tried for an equal part of share_s, or why none can
    run (all distinct reasons).
    """
    if (reason := unsupported(on, kernel)) is not None:
        return Skipped(what=kernel, reason=reason)
    able = implementations(on, kernel)
    tried = {name: _tried(on, clock, make, share_s / len(able)) for name, make in able.items()}
    done = [(timing, name) for name, timing in tried.items() if isinstance(timing, Timing)]
    if not done:
        return Skipped(what=kernel, reason="; ".join(dict.fromkeys(map(str, tried.values()))))
    timing, how = min(done, key=lambda pair: pair[0].seconds)
    seconds, spread = (significant(value, DIGITS) for value in (timing.seconds, timing.spread))
    return Row(what=kernel, seconds=seconds, spread=spread, samples=timing.samples, how=how)


def _tried(on: Bench, clock: Clock, make: Make, share_s: float) -> Timing | str:
    """Return an implementation's timing, or the first line of the error that stops it; frees its memory. Raises
    SymconfigError if the GPU no longer works.
    """
    call: Call | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says at length why a kernel is not available
            call = make()
            return timed(clock, call, share_s)
    except (RuntimeError, NotImplementedError, ImportError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        _check_alive(on, reason)
        return reason
    finally:
        call = None  # its buffers, before the memory is given back
        if on.cuda:
            on.torch.cuda.empty_cache()


def _check_alive(on: Bench, reason: str) -> None:
    """Raise SymconfigError if the GPU no longer works, as it may not after some errors; nothing on a CPU."""
    try:
        if on.cuda:
            on.torch.cuda.synchronize()
    except RuntimeError:
        raise SymconfigError(f"the GPU stopped working in the middle of the measurement: {reason}") from None


def _notes(on: Bench) -> Iterator[str]:
    """Yield a warning if measured on a CPU, or on a GPU whose free memory is below FREE of its total."""
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
    """Return the device's name, torch's version and the date; of a GPU also the versions of driver and CUDA or HIP."""
    torch = on.torch
    known = {"torch": str(torch.__version__), "date": datetime.now(UTC).date().isoformat()}
    if not on.cuda:
        return Rig(product="CPU, 1 thread", **known)
    cuda = torch.version.cuda or f"(HIP) {torch.version.hip}"
    return Rig(product=torch.cuda.get_device_name(), driver=_driver(), cuda=cuda, **known)


def _driver() -> str | None:
    """Return the version of NVIDIA's driver from its kernel module, or, if that cannot be read, from nvidia-smi; None
    if neither works or has a version.
    """
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
