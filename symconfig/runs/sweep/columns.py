"""The columns of a sweep's table: what each holds, and where it comes from. One list makes the CSV and
the page that documents it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from typing import Any

from symconfig.descriptor.task import TASKS
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import caveats

Value = str | int | float | bool | None
TOKENS = 1e9  # costs are given for so many
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. says: its description, after its unit if it has one. of: a function of the plan, or an
    attribute path in its best candidate; None: not taken from the plan.
    """

    name: str
    says: str
    of: Callable[[Plan], Value] | str | None = None

    def value(self, plan: Plan) -> Value:
        """Return the column's value of a plan; None if the column is not taken from plans."""
        made: Value = attrgetter(self.of)(plan.best) if isinstance(self.of, str) else self.of(plan) if self.of else None
        return made


def _interval(plan: Plan, name: str, end: int) -> float | None:
    interval = plan.best.predicted.interval.get(name)
    return None if interval is None else interval[end]


def gpu_hours(tokens_per_s_per_gpu: float) -> float:
    """Return the GPU-hours for a billion tokens."""
    return TOKENS / tokens_per_s_per_gpu / HOUR_S


INPUTS = (
    Column("id", "digest of what is asked: the job's fields, and the model and the cluster as described"),
    Column("model", "zoo name or path, as asked"),
    Column("cluster", "zoo name or path, as asked"),
    Column("gpus", "GPUs: all of them used; where auto was asked, what was found"),
    Column("global_batch_size", "sequences: of an optimizer step"),
    Column("seq_length", "tokens: of a sequence", "configuration.seq_length"),
    Column("backend", "megatron or deepspeed", "target.backend"),
    Column("framework_version", "of the backend", "target.version"),
    Column("task", " or ".join(TASKS), lambda p: p.job.task),
    Column("precision", "that the plan has; asked is in `fields`", "configuration.precision"),
    Column("fields", "every other field of the job that was set: pins, limits, packing and so on, as JSON"),
    Column(
        "status",
        "planned, infeasible (nothing fits), refused (can never run), defect (of symconfig), or lost with its worker",
    ),
    Column("reason", "why there is no plan"),
)
DEGREES = (
    Column("tp", "tensor-parallel degree", "configuration.tp"),
    Column("pp", "pipeline stages", "configuration.pp"),
    Column("vpp", "virtual stages on each", "configuration.vpp"),
    Column("cp", "context-parallel degree", "configuration.cp"),
    Column("ep", "expert-parallel degree", "configuration.ep"),
    Column("etp", "tensor-parallel degree of experts", "configuration.etp"),
    Column("dp", "data-parallel degree", "configuration.dp"),
    Column("micro_batch_size", "sequences: of a data rank at a time", "configuration.micro"),
    Column("num_microbatches", "of a step", "configuration.num_microbatches"),
)
OPTIONS = (
    Column("sequence_parallel", "Megatron's", "configuration.sequence_parallel"),
    Column("zero_stage", "Megatron's distributed optimizer is 1", "configuration.zero_stage"),
    Column("recompute", "none, selective or full", "configuration.recompute"),
    Column("recompute_modules", "if selective, joined by +",
           lambda p: "+".join(p.best.configuration.recompute_modules)),
    Column("recompute_layers", "layers: first ones of every virtual stage, if not all",
           lambda p: p.best.configuration.recompute_layers if p.best.configuration.recompute == "full" else None),
    Column("cp_comm", "how context parallelism communicates",
           lambda p: p.best.configuration.cp_comm if p.best.configuration.cp > 1 else None),
    Column("moe_dispatcher", "how tokens reach their experts", "configuration.moe_dispatcher"),
    Column("optimizer_offload", "share of the optimizer state in host memory", "configuration.optimizer_offload"),
    Column("activation_offload", "activations in host memory", "configuration.activation_offload"),
    Column("param_offload", "weights in host memory", "configuration.param_offload"),
    Column("schedule", "of the pipeline", "configuration.schedule"),
    Column("stage_layout", "where stages have unlike layers", "configuration.stage_layout"),
)  # fmt: skip
PREDICTED = (
    Column("step_s", "s: a steady optimizer step", "predicted.step_s"),
    Column("step_low_s", "s: lower end of the 90 % interval", lambda p: _interval(p, "step_s", 0)),
    Column("step_high_s", "s: upper end of it", lambda p: _interval(p, "step_s", 1)),
    Column("tokens_per_s", "tokens/s: of all GPUs", "tokens_per_s"),
    Column("tokens_per_s_per_gpu", "tokens/s: of one", "predicted.tokens_per_s_per_gpu"),
    Column("model_tflops_per_gpu", "TFLOP/s: the model's own FLOPs, nothing run twice",
           "predicted.model_tflops_per_gpu"),
    Column("mfu", "share of the dense peak at this precision", "predicted.mfu"),
    Column("peak_bytes", "bytes: PyTorch's peak allocation on the GPU with most", "predicted.peak_bytes"),
    Column("reserved_bytes", "bytes: with what the allocator holds", "predicted.reserved_bytes"),
    Column("device_bytes", "bytes: with context and libraries; this decides whether it fits", "predicted.device_bytes"),
    Column("device_high_bytes", "bytes: upper end of the 90 % interval", lambda p: _interval(p, "device_bytes", 1)),
    Column("gpu_bytes", "bytes: memory of the GPU", lambda p: p.cluster.gpu.memory_bytes.value),
    Column("host_bytes", "bytes: pinned host memory for each GPU", "predicted.host_bytes"),
)  # fmt: skip
SEARCHED = (
    Column("caveats", "what `plan` says first: options that are not stable", lambda p: " ".join(caveats(p))),
    Column("candidates", "weighed", lambda p: p.search.candidates),
    Column("plan_sha256", "of the plan.json that `symconfig plan` writes for this job",
           lambda p: sha256(p.to_json().encode()).hexdigest()),
)  # fmt: skip
COSTS = (
    Column("gpu_hours", "GPU-hours: for a billion tokens of steady steps",
           lambda p: gpu_hours(p.best.predicted.tokens_per_s_per_gpu)),
)  # fmt: skip
COLUMNS = (*INPUTS, *DEGREES, *OPTIONS, *PREDICTED, *COSTS, *SEARCHED)


def inputs(job: Mapping[str, Any]) -> dict[str, Value]:
    """Return {column: value} of the input columns that a job's fields have; all fields without a column, and precision
    once more, go to `fields` as JSON ("" if none). `gpus: auto` is None in its column and kept in `fields`.
    """
    plain = {column.name for column in INPUTS if column.name in job}
    others = {name: value for name, value in job.items() if name not in plain or name == "precision"}
    known = {name: job[name] for name in plain}
    if known.get("gpus") == "auto":
        known["gpus"] = None
        others["gpus"] = "auto"
    return {**known, "fields": json.dumps(others, sort_keys=True) if others else ""}


def planned(plan: Plan) -> dict[str, Value]:
    """Return the columns taken from a plan, with its number of GPUs."""
    return {
        "gpus": plan.best.configuration.world_size,
        **{column.name: column.value(plan) for column in COLUMNS if column.of is not None},
    }
