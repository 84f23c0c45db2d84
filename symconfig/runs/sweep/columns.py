"""The columns of a sweep's table: what each holds, in which unit, and where it comes from. One list makes the CSV and
the page that documents it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from symconfig.descriptor.task import TASKS
from symconfig.plans.beside import caveats
from symconfig.plans.plan import Plan

Kind = Literal["text", "whole", "number", "yes/no"]
Value = str | int | float | bool | None
TOKENS = 1e9  # costs are given for so many
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Column:
    """unit: empty where there is none. of: from a plan, or where its best candidate has it; None: known without one, or
    made of the others."""

    name: str
    kind: Kind
    unit: str
    says: str
    of: Callable[[Plan], Value] | str | None = None

    def value(self, plan: Plan) -> Value:
        """Return the value of a plan."""
        made: Value = attrgetter(self.of)(plan.best) if isinstance(self.of, str) else self.of(plan) if self.of else None
        return made


def _interval(plan: Plan, name: str, end: int) -> float | None:
    interval = plan.best.predicted.interval.get(name)
    return None if interval is None else interval[end]


def _sha256(plan: Plan) -> str:
    from hashlib import sha256

    return sha256(plan.to_json().encode()).hexdigest()


def gpu_hours(tokens_per_s_per_gpu: float) -> float:
    """Return GPU-hours for a billion tokens."""
    return TOKENS / tokens_per_s_per_gpu / HOUR_S


INPUTS = (
    Column("id", "text", "", "digest of what is asked: the job's fields, and the model and the cluster as described"),
    Column("model", "text", "", "zoo name or path, as asked"),
    Column("cluster", "text", "", "zoo name or path, as asked"),
    Column("gpus", "whole", "GPUs", "all of them used; where auto was asked, what was found"),
    Column("global_batch_size", "whole", "sequences", "of an optimizer step"),
    Column("seq_length", "whole", "tokens", "of a sequence", "batch.seq_length"),
    Column("backend", "text", "", "megatron or deepspeed", "target.backend"),
    Column("framework_version", "text", "", "of the backend", "target.version"),
    Column("task", "text", "", " or ".join(TASKS), lambda p: p.job.task),
    Column("precision", "text", "", "that the plan has; asked is in `fields`", "options.precision"),
    Column("fields", "text", "JSON", "every other field of the job that was set: pins, limits, packing and so on"),
    Column(
        "status",
        "text",
        "",
        "planned; infeasible: nothing fits; refused: can never run; defect: symconfig failed; "
        "lost: its worker died, again and again",
    ),
    Column("reason", "text", "", "why there is no plan"),
)
DEGREES = (
    Column("tp", "whole", "", "tensor-parallel degree", "parallel.tp"),
    Column("pp", "whole", "", "pipeline stages", "parallel.pp"),
    Column("vpp", "whole", "", "virtual stages on each", "parallel.vpp"),
    Column("cp", "whole", "", "context-parallel degree", "parallel.cp"),
    Column("ep", "whole", "", "expert-parallel degree", "parallel.ep"),
    Column("etp", "whole", "", "tensor-parallel degree of experts", "parallel.etp"),
    Column("dp", "whole", "", "data-parallel degree", "parallel.dp"),
    Column("micro_batch_size", "whole", "sequences", "of a data rank at a time", "batch.micro"),
    Column("num_microbatches", "whole", "", "of a step", "batch.num_microbatches"),
)
OPTIONS = (
    Column("sequence_parallel", "yes/no", "", "Megatron's", "options.sequence_parallel"),
    Column("zero_stage", "whole", "", "Megatron's distributed optimizer is 1", "options.zero_stage"),
    Column("recompute", "text", "", "none, selective or full", "options.recompute.granularity"),
    Column(
        "recompute_modules",
        "text",
        "",
        "if selective, joined by +",
        lambda p: "+".join(p.best.options.recompute.modules),
    ),
    Column(
        "recompute_layers",
        "whole",
        "layers",
        "first ones of every virtual stage, if not all",
        "options.recompute.num_layers",
    ),
    Column(
        "cp_comm",
        "text",
        "",
        "how context parallelism communicates",
        lambda p: p.best.options.cp_comm if p.best.parallel.cp > 1 else None,
    ),
    Column("moe_dispatcher", "text", "", "how tokens reach their experts", "options.moe_dispatcher"),
    Column(
        "optimizer_offload",
        "number",
        "share",
        "of the optimizer state in host memory",
        "options.optimizer_offload",
    ),
    Column("activation_offload", "yes/no", "", "activations in host memory", "options.activation_offload"),
    Column("param_offload", "yes/no", "", "weights in host memory", "options.param_offload"),
    Column("schedule", "text", "", "of the pipeline", "options.schedule"),
    Column("stage_layout", "text", "", "where stages have unlike layers", "options.stage_layout"),
)
PREDICTED = (
    Column("step_s", "number", "s", "a steady optimizer step", "predicted.step_s"),
    Column(
        "step_low_s",
        "number",
        "s",
        "nine in ten runs by others lie between this",
        lambda p: _interval(p, "step_s", 0),
    ),
    Column("step_high_s", "number", "s", "and this", lambda p: _interval(p, "step_s", 1)),
    Column(
        "tokens_per_s",
        "number",
        "tokens/s",
        "of all GPUs",
        lambda p: p.best.predicted.tokens_per_s_per_gpu * p.best.parallel.world_size,
    ),
    Column("tokens_per_s_per_gpu", "number", "tokens/s", "of one", "predicted.tokens_per_s_per_gpu"),
    Column(
        "model_tflops_per_gpu",
        "number",
        "TFLOP/s",
        "the model's own FLOPs, nothing run twice",
        "predicted.model_tflops_per_gpu",
    ),
    Column("mfu", "number", "share", "of the dense peak at this precision", "predicted.mfu"),
    Column("peak_bytes", "number", "bytes", "torch's peak allocation on the fullest GPU", "predicted.peak_bytes"),
    Column("reserved_bytes", "number", "bytes", "with what the allocator holds", "predicted.reserved_bytes"),
    Column(
        "device_bytes",
        "number",
        "bytes",
        "with context and libraries; this decides whether it fits",
        "predicted.device_bytes",
    ),
    Column(
        "device_high_bytes",
        "number",
        "bytes",
        "upper end of its interval",
        lambda p: _interval(p, "device_bytes", 1),
    ),
    Column("gpu_bytes", "number", "bytes", "memory of the GPU", lambda p: p.cluster.gpu.memory_bytes.value),
    Column("host_bytes", "number", "bytes", "pinned host memory for each GPU", "predicted.host_bytes"),
)
SEARCHED = (
    Column(
        "caveats", "text", "", "what `plan` says first: options that are not stable", lambda p: " ".join(caveats(p))
    ),
    Column("candidates", "whole", "", "weighed", lambda p: p.search.candidates),
    Column("plan_sha256", "text", "", "of the plan.json that `symconfig plan` writes for this job", _sha256),
)
COSTS = (
    Column(
        "gpu_hours",
        "number",
        "GPU-hours",
        "for a billion tokens of steady steps",
        lambda p: gpu_hours(p.best.predicted.tokens_per_s_per_gpu),
    ),
)
COLUMNS = (*INPUTS, *DEGREES, *OPTIONS, *PREDICTED, *COSTS, *SEARCHED)


def inputs(job: Mapping[str, Any]) -> dict[str, Value]:
    """Return the columns of the inputs."""
    plain = {column.name for column in INPUTS if column.name in job}
    others = {name: value for name, value in job.items() if name not in plain or name == "precision"}
    known = {name: job[name] for name in plain}
    if known.get("gpus") == "auto":
        known["gpus"] = None
        others["gpus"] = "auto"
    return {**known, "fields": json.dumps(others, sort_keys=True) if others else ""}


def planned(plan: Plan) -> dict[str, Value]:
    """Return the columns that a plan fills."""
    return {
        "gpus": plan.best.parallel.world_size,
        **{column.name: column.value(plan) for column in COLUMNS if column.of is not None},
    }
