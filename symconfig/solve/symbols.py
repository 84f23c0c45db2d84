"""What the symbols of a plan's formulas are: unit, where each comes from, and in words what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType

from symconfig.cost.machine import Machine
from symconfig.cost.uneven import LOAD, OF_STEP
from symconfig.solve.symbolic import FRAMEWORK


class From(StrEnum):
    """Where a symbol's number comes from."""

    JOB = "job"
    DEGREES = "degrees"
    MODEL = "model"
    CLUSTER = "cluster"
    FRAMEWORK = "framework"
    SIMULATION = "simulation"


_LEVELS = tuple(f"level{level}_{what}" for level in range(4) for what in ("size", "bytes_per_s", "latency_s", "mesh"))
_DEGREES = ("tp", "pp", "cp", "ep", "etp", "micro_batch")
_JOB = ("gpus", "global_batch_size", "seq_length", LOAD, OF_STEP)
_SIMULATION = ("simulated_pipeline", "simulated_exchange", "simulated_exchange_s")
_CLUSTER = frozenset((*(one.name for one in fields(Machine)), *_LEVELS))
_UNITS = ("bytes_per_s", "flops", "bytes", "s")
_SHOWN = {"bytes_per_s": "B/s", "flops": "FLOP/s", "bytes": "B", "s": "s"}
_OWN_UNITS: Mapping[str, str] = MappingProxyType(
    {
        "gpus": "GPUs",
        "global_batch_size": "sequences",
        "micro_batch": "sequences",
        "seq_length": "tokens",
        "keys_full": "tokens",
        "keys_window": "tokens",
        "keys_chosen": "tokens",
        "host_memory_bytes_per_gpu": "B",
        **dict.fromkeys(("adam_bytes", "stepped_bytes", "copied_bytes", "cast_bytes"), "B/element"),
        **dict.fromkeys(("transpose_bytes", "quantised_bytes"), "B/element"),
        **{f"level{level}_size": "GPUs" for level in range(4)},
    }
)
_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "tp": "ranks of tensor parallelism",
        "pp": "pipeline stages; the layers of each stay as they are",
        "cp": "ranks of context parallelism",
        "ep": "ranks that the experts are spread over",
        "etp": "ranks that an expert is cut over",
        "micro_batch": "sequences of a microbatch on one data rank",
        "global_batch_size": "sequences of a step",
        "seq_length": "tokens of a sequence",
        "gpus": "GPUs of the run",
        OF_STEP: "tokens of the rank that each layer waits for over the mean, at the plan's ep",
        "peak_flops": "dense peak of most matrix products, of the slowest GPU",
        "high_peak_flops": "dense peak in 16 bits, of the slowest GPU",
        "efficiency": "of the peak, one full wave of tiles",
        "low_efficiency": "of the peak in low precision, one full wave of tiles",
        "k_half": "summed length at which a product reaches half of that",
        "hbm_bytes_per_s": "memory bandwidth that kernels reach",
        "launch_s": "floor of one kernel",
        "attention_flops": "rate of attention forward",
        "attention_backward_flops": "rate of attention backward",
        "compute_units": "of a GPU, over which tiles are dealt out",
        "host_bytes_per_s": "link to the host",
        "launching": "of the launching thread, over an x86 server's",
        "product_rate": "of the framework's products, over the newest libraries'",
        "attention_rate": "of the framework's attention, over the newest kernels'",
        "host_kernel_s": "of the host to launch an operator",
        "adam_bytes": "moved by a step of Adam",
        "step_overhead_s": "once a step: data, logging, Python",
        "microbatch_overhead_s": "once a microbatch",
        "simulated_pipeline": "pipeline by the event simulation of the schedule, over the formula's",
        "simulated_exchange": "exchange beside the pipeline by the simulation, over the formula's",
        "simulated_exchange_s": "exchange beside the pipeline by the simulation",
        **{f"level{level}_bytes_per_s": f"of a GPU at network level {level}, innermost 0" for level in range(4)},
        **{f"level{level}_latency_s": f"of a message at network level {level}" for level in range(4)},
        **{f"level{level}_size": f"in one domain of network level {level}" for level in range(4)},
        **{f"level{level}_mesh": f"1: level {level} links pairs and has no switch" for level in range(4)},
    }
)
# Constants whose effect on the step says something by itself: rates and times. Counts of compute units, say, are tied
# to the peak.
MOVED = frozenset(
    (
        *("peak_flops", "high_peak_flops", "efficiency", "low_efficiency", "k_half", "hbm_bytes_per_s", "launch_s"),
        *("attention_flops", "attention_backward_flops", "host_bytes_per_s", "launching"),
        *(name for name in _LEVELS if name.endswith("_s")),
        *FRAMEWORK,
        "global_batch_size",
        "seq_length",
    )
)


def source(name: str) -> From:
    """Return where a symbol's number comes from."""
    places = {From.DEGREES: _DEGREES, From.JOB: _JOB, From.SIMULATION: _SIMULATION}
    places |= {From.CLUSTER: tuple(_CLUSTER), From.FRAMEWORK: FRAMEWORK}
    return next((place for place, names in places.items() if name in names), From.MODEL)


def unit(name: str) -> str:
    """Return a symbol's unit; nothing for a share, a ratio or a count without one."""
    if name in _OWN_UNITS:
        return _OWN_UNITS[name]
    return next((_SHOWN[each] for each in _UNITS if name.endswith(f"_{each}")), "")


def meaning(name: str) -> str:
    """Return what a symbol is, in words."""
    return _MEANINGS.get(name) or name.replace("_", " ")
