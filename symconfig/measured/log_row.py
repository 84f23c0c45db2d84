"""A training log as a measured row, with the case that is predicted for it.

What Megatron-LM prints of its arguments is read as an audit reads it; DeepSpeed's settings are a row's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem, reworded
from symconfig.existing.recover.run import Run, Supplied
from symconfig.measured.cases import Case, case, of_run, recovered
from symconfig.measured.training_log import TrainingLog, Value
from symconfig.units import GIB

# The line about padding has the true size, however the tokenizer came by it.
_TOLD_BY_PADDING = ("padded_vocab_size", "tokenizer_type", "tokenizer_model")
_RECOMPUTE = ("recompute_granularity", "recompute_activations")


@dataclass(frozen=True, slots=True)
class Additions:
    """A person's additions to a training log: they override what it says. Sizes of batches are in sequences."""

    model: ModelDescriptor | None = None
    gpus: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    seq_length: int | None = None
    recompute: str | None = None


def read_back(log: TrainingLog, cluster: ClusterDescriptor, additions: Additions) -> tuple[Row, Case]:
    """Return the run as a measured row, and its case. Raises InputError for a log without figures, or one that with its
    additions is no run that can be predicted.
    """
    measured = _measured(log)
    if not measured:
        raise InputError(f"has neither a steady step time nor memory figures: {'; '.join(log.remarks)}", file=log.path)
    if log.arguments:
        run = run_of(log, cluster, additions)
        model, fields, what, gpus = run.described.model, {}, of_run(run, cluster), run.configuration.world_size
    else:
        if additions.model is None:
            raise InputError("does not say which model it trains", file=log.path, field="model", hint="name the model")
        model, fields = additions.model, _settings(log, additions)
        gpus, what = _gpus(log, additions), None
        _fill_degrees(fields["parallel"], gpus, log)
    experts = {} if model.experts is None else {"num_experts": model.experts.num_experts}
    fields |= {
        "id": Path(log.path).name,
        "task": "pretrain" if model.adapter is None else "lora",
        "model": {"name": model.name, **experts},
        "cluster": {"gpu": cluster.name, "gpus": gpus},
        "software": {"name": log.framework},
        "measured": measured,
        "confidence": "exact",
    }
    try:
        row = Row.model_validate(fields, strict=False)
    except ValidationError as error:
        raise InputError(
            [Problem(item["msg"], file=log.path, field=".".join(map(str, item["loc"]))) for item in error.errors()]
        ) from None
    # data/assumptions.yaml lists what logs of a framework leave open.
    return row, what or case(f"{log.framework}_log", row, model, cluster)


def run_of(log: TrainingLog, cluster: ClusterDescriptor, additions: Additions) -> Run:
    """Return the run of the arguments that Megatron-LM printed, with the additions in their place. Raises InputError
    with all problems, at the log.
    """
    if log.framework == "deepspeed":
        raise InputError("Megatron-DeepSpeed is not predicted", file=log.path, need="a log of Megatron-LM or DeepSpeed")
    gpus = _gpus(log, additions)
    names: dict[str, Any] = dict(log.arguments)
    if log.vocab_size:
        names |= {"vocab_size": log.vocab_size, **dict.fromkeys(_TOLD_BY_PADDING)}
    given = {
        "micro_batch_size": additions.micro_batch,
        "global_batch_size": additions.global_batch or (log.steady and log.steady.samples),
        "seq_length": additions.seq_length,
    }
    names |= {name: value for name, value in given.items() if value}
    if additions.recompute is not None:
        names |= dict.fromkeys(_RECOMPUTE) | {_RECOMPUTE[0]: additions.recompute}
    with reworded(lambda problem: replace(problem, file=log.path)):
        return recovered(names, gpus, cluster, Supplied(model=additions.model))


def whole(names: Mapping[str, Value], *choices: str) -> int | None:
    """Return the first of these settings that is a positive integer below 2^40, or None."""
    for name in choices:
        value = names.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None


def _gpus(log: TrainingLog, additions: Additions) -> int:
    """Return the number of GPUs: the additions', else that of the line of degrees, else that of the arguments or
    settings. Raise InputError if there is none.
    """
    printed = whole(log.arguments, "world_size") or whole(log.config, "world_size")
    gpus = additions.gpus or log.degrees.get("world") or printed
    if gpus is None:
        raise InputError("does not say on how many GPUs it ran", file=log.path, field="gpus")
    return gpus


def _settings(log: TrainingLog, additions: Additions) -> dict[str, Any]:
    """Return a row's `parallel`, `batch` and `options` by DeepSpeed's settings and Megatron's line of degrees."""
    config = log.config
    tp = whole(config, "tensor_parallel.autotp_size", "tensor_parallel.tp_size")
    batch = (log.steady.samples if log.steady else None) or whole(config, "train_batch_size")
    if batch and tp and batch % tp == 0:
        batch //= tp  # DeepSpeed counts its tensor-parallel ranks as data ranks
    degrees = {
        "tp": tp or log.degrees.get("tp"),
        "pp": log.degrees.get("pp"),
        "cp": whole(config, "sequence_parallel_size") or log.degrees.get("cp"),
        "ep": whole(config, "expert_parallel.autoep_size"),
        "dp": log.degrees.get("dp"),
    }
    sizes = {
        "micro": additions.micro_batch or whole(config, "train_micro_batch_size_per_gpu"),
        "global": additions.global_batch or batch,
        "seq_length": additions.seq_length or whole(config, "seq_length"),
        "grad_accum": whole(config, "gradient_accumulation_steps"),
    }
    options: dict[str, Any] = {"recompute": additions.recompute}
    stage = config.get("zero_optimization.stage", config.get("zero_optimization_stage"))
    if isinstance(stage, int) and 0 <= stage <= 3:
        options["zero_stage"] = int(stage)
    for width, keys in (
        ("bf16", ("bf16.enabled", "bfloat16.enabled", "bfloat16_enabled")),
        ("fp16", ("fp16.enabled", "fp16_enabled")),
    ):
        if any(config.get(key) is True for key in keys):
            options["precision"] = width
    if whole(config, "sequence_parallel_size") not in (None, 1):
        options["cp_comm"] = "a2a"  # Ulysses
    if isinstance(overlap := config.get("zero_optimization.overlap_comm"), bool):
        options["overlap"] = {"grad_reduce": overlap}
    sections = {"parallel": degrees, "batch": sizes, "options": options}
    return {name: {key: value for key, value in each.items() if value is not None} for name, each in sections.items()}


def _fill_degrees(degrees: dict[str, int], gpus: int, log: TrainingLog) -> None:
    """Set dp by the GPUs if it is missing. Raise InputError if the degrees do not multiply to the GPUs."""
    rest = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
    if rest * degrees.setdefault("dp", max(1, gpus // rest)) != gpus:
        got = " x ".join(f"{name} {degrees[name]}" for name in ("tp", "pp", "cp", "dp") if name in degrees)
        what = "the degrees do not multiply to the GPUs"
        raise InputError(what, file=log.path, field="parallel", got=got, need=str(gpus))


def _measured(log: TrainingLog) -> dict[str, Any]:
    """Return the measured fields that the log has: step_s, tflops_per_gpu, the highest peaks of memory, and oom (True).

    memory_rank is 0 if only rank 0, or an unnamed rank, printed peaks, else "max".
    """
    values: dict[str, Any] = {}
    if log.steady is not None:
        values["step_s"] = log.steady.seconds
        if log.steady.tflops_per_gpu:
            values["tflops_per_gpu"] = log.steady.tflops_per_gpu
    for name in ("allocated", "reserved"):
        if peak := max((by_kind.get(name, 0.0) for by_kind in log.peaks.values()), default=0.0):
            values[f"peak_{name}_gib"] = peak / GIB
    if log.peaks:
        values["memory_rank"] = 0 if list(log.peaks) in ([0], [None]) else "max"
    if log.out_of_memory:
        values["oom"] = True
    return values
