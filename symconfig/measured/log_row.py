"""A training log as a measured row, which is predicted, scored and fitted to like a published one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import MeasuredBatch, MeasuredModel, MeasuredOptions, Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.model import described
from symconfig.existing.recover.namespace import printed_namespace
from symconfig.measured.log_arguments import option_fields, parallel_fields, whole
from symconfig.measured.log_records import TrainingLog
from symconfig.units import GIB


def source_of(log: TrainingLog) -> str:
    """Return the source name under which data/assumptions.yaml lists what logs of this framework leave open."""
    return f"{log.framework}_log"


def as_row(
    log: TrainingLog,
    cluster: ClusterDescriptor,
    model: ModelDescriptor | None = None,
    *,
    gpus: int | None = None,
    batch: MeasuredBatch | None = None,
    options: MeasuredOptions | None = None,
) -> Row:
    """Return the run as a measured row for `judge(source_of(log), row, model, cluster)`.

    Pass the same model and cluster there. model: required unless the log has Megatron's arguments; checked against them
    if it has. gpus, batch, options: override what the log says. Raises InputError for a missing field, another model,
    or a log without a steady step time or memory figures.
    """
    names = log.arguments
    degrees = {
        "tp": whole(log.config, "tensor_parallel.autotp_size", "tensor_parallel.tp_size"),
        "cp": whole(log.config, "sequence_parallel_size"),
        "ep": whole(log.config, "expert_parallel.autoep_size"),
    }
    fields: dict[str, Any] = {
        "id": Path(log.path).name,
        "task": "lora" if model is not None and model.adapter is not None else "pretrain",
        "model": _model(log, model),
        "cluster": {"gpu": cluster.name, "gpus": _gpus(log, gpus)},
        "software": {"name": log.framework},
        "parallel": parallel_fields(names, log) | {name: value for name, value in degrees.items() if value},
        "batch": _batch(log) | _stated(batch),
        "options": (option_fields(names) if names else {}) | _config_options(log) | _stated(options),
        "measured": _measured(log),
        "confidence": "exact",
        "note": _note(log, model),
    }
    _degrees(fields, log)
    if not fields["measured"]:
        why = "; ".join(str(remark) for remark in log.remarks if remark.kind != "left out")
        raise InputError(f"has neither a steady step time nor memory figures: {why}", file=log.path)
    try:
        return Row.model_validate(fields, strict=False)
    except ValidationError as error:
        raise InputError(
            [Problem(item["msg"], file=log.path, field=".".join(map(str, item["loc"]))) for item in error.errors()]
        ) from None


def _stated(section: MeasuredBatch | MeasuredOptions | None) -> dict[str, Any]:
    return section.model_dump(exclude_none=True, by_alias=True) if section is not None else {}


def _model(log: TrainingLog, model: ModelDescriptor | None) -> dict[str, Any]:
    """Return the row's fields of the given model, else of the model in the log's arguments.

    Raises InputError if it is another model, or if the arguments describe none that a row can hold.
    """
    if model is not None:
        check_model(log, model)
        return row_fields(model)
    described = log_model(log)
    if described.experts is not None and described.experts.moe_layer_freq != 1:
        what = "a row has only dense layers before all others"
        raise InputError(what, file=log.path, field="moe_layer_freq", hint="name the model")
    return row_fields(described)


def _note(log: TrainingLog, model: ModelDescriptor | None) -> str | None:
    """Return a note on parts of the log's model that a row cannot hold; None if none, or if a model is named."""
    lost = {"window_size": "sliding windows", "moe_shared_expert_gate": "a gate of the shared expert"}
    notes = [what for name, what in lost.items() if log.arguments.get(name)]
    if not notes or model is not None:
        return None
    return f"the model has {' and '.join(notes)}, which only a named model brings"


def _gpus(log: TrainingLog, gpus: int | None) -> int | None:
    return gpus or log.degrees.get("world") or whole(log.arguments, "world_size") or whole(log.config, "world_size")


def _degrees(fields: dict[str, Any], log: TrainingLog) -> None:
    """Fill in dp or the number of GPUs in `fields` from the other. Raise InputError if both are unknown or disagree."""
    degrees, cluster = fields["parallel"], fields["cluster"]
    rest = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
    gpus = cluster["gpus"]
    if gpus is None and "dp" not in degrees:
        raise InputError("does not say on how many GPUs it ran", file=log.path, field="gpus")
    if "dp" not in degrees:
        degrees["dp"] = max(1, gpus // rest)
    if gpus is None:
        cluster["gpus"] = rest * degrees["dp"]
    elif rest * degrees["dp"] != gpus:
        raise InputError(
            "the degrees do not multiply to the GPUs",
            file=log.path,
            field="parallel",
            got=" x ".join(f"{name} {degrees[name]}" for name in ("tp", "pp", "cp", "dp") if name in degrees),
            need=str(gpus),
        )


def _batch(log: TrainingLog) -> dict[str, int]:
    """Return micro, global, seq_length and grad_accum as far as the log has them; sizes in sequences.

    The global batch is that of the steady steps, else as configured; DeepSpeed's is divided by its tensor-parallel
    degree, which it counts as data ranks.
    """
    names, config = log.arguments, log.config
    batch = {
        "micro": whole(names, "micro_batch_size") or whole(config, "train_micro_batch_size_per_gpu"),
        "global": log.steady.samples if log.steady else None,
        "seq_length": whole(names, "seq_length", "encoder_seq_length") or whole(config, "seq_length"),
        "grad_accum": whole(config, "gradient_accumulation_steps"),
    }
    batch["global"] = batch["global"] or whole(names, "global_batch_size") or whole(config, "train_batch_size")
    tp = whole(config, "tensor_parallel.autotp_size", "tensor_parallel.tp_size")
    if batch["global"] and tp and batch["global"] % tp == 0 and not names:
        batch["global"] //= tp  # DeepSpeed counts its tensor-parallel ranks as data ranks
    return {name: value for name, value in batch.items() if value}


def _config_options(log: TrainingLog) -> dict[str, Any]:
    """Return ZeRO stage, precision, Ulysses and overlap from DeepSpeed's settings; empty without them."""
    config = log.config
    if not config:
        return {}
    fields: dict[str, Any] = {}
    stage = config.get("zero_optimization.stage", config.get("zero_optimization_stage"))
    if isinstance(stage, int) and 0 <= stage <= 3:
        fields["zero_stage"] = int(stage)
    for precision, keys in (
        ("bf16", ("bf16.enabled", "bfloat16.enabled", "bfloat16_enabled")),
        ("fp16", ("fp16.enabled", "fp16_enabled")),
    ):
        if any(config.get(key) is True for key in keys):
            fields["precision"] = precision
    if whole(config, "sequence_parallel_size") not in (None, 1):
        fields["cp_comm"] = "a2a"  # Ulysses
    overlap = config.get("zero_optimization.overlap_comm")
    if isinstance(overlap, bool):
        fields["overlap"] = {"grad_reduce": overlap}
    return fields


def _measured(log: TrainingLog) -> dict[str, Any]:
    """Return the measured fields that the log has: step time (s), TFLOP/s per GPU, peak memory and `oom`.

    Memory peaks are in GiB, by rank and the largest, with the rank that they are of.
    """
    values: dict[str, Any] = {}
    if log.steady is not None:
        values["step_s"] = log.steady.seconds
        if log.steady.tflops_per_gpu:
            values["tflops_per_gpu"] = log.steady.tflops_per_gpu
    for name in ("allocated", "reserved"):
        by_rank = [getattr(item, f"max_{name}") for item in log.memory]
        peaks = [value / GIB for value in by_rank if value]
        if peaks:
            values[f"peak_{name}_gib"] = max(peaks)
            values[f"peak_{name}_gib_by_rank"] = peaks
    ranks = [item.rank for item in log.memory]
    if ranks in ([0], [None]):
        values["memory_rank"] = 0
    elif ranks:
        values["memory_rank"] = "max"
    if log.out_of_memory is not None:
        values["oom"] = True
    return values


_MEASURED = frozenset(MeasuredModel.model_fields) & frozenset(ModelDescriptor.model_fields)
_POSITIONS = ("rope", "learned", "alibi")
# The line about padding has the true size, however the tokenizer came by it.
_TOLD_BY_PADDING = ("padded_vocab_size", "tokenizer_type", "tokenizer_model")


def log_model(log: TrainingLog) -> ModelDescriptor:
    """Return the model that the log's arguments describe. Raise InputError if there are none or they describe no model.

    The true vocabulary size, if logged, replaces the padded one.
    """
    if not log.arguments:
        raise InputError("does not say which model it trains", file=log.path, field="model", hint="name the model")
    names: dict[str, Any] = dict(log.arguments)
    if log.vocab_size:
        names |= {"vocab_size": log.vocab_size, **dict.fromkeys(_TOLD_BY_PADDING)}
    try:
        return described(
            printed_namespace(names), seq_length=whole(names, "seq_length", "encoder_seq_length") or 1
        ).model
    except InputError as error:
        raise InputError(
            [replace(problem, file=log.path, hint=problem.hint or "name the model") for problem in error.problems]
        ) from None


def check_model(log: TrainingLog, model: ModelDescriptor) -> None:
    """Raise InputError if the log prints another number of layers or hidden size than the model has."""
    for argument, field in (("num_layers", "num_hidden_layers"), ("hidden_size", "hidden_size")):
        printed = whole(log.arguments, argument)
        if printed is not None and printed != getattr(model, field):
            what = f"is not the model of this log ({model.name})"
            raise InputError(what, file=log.path, field=argument, got=str(getattr(model, field)), need=str(printed))


def row_fields(model: ModelDescriptor) -> dict[str, Any]:
    """Return the fields that a measured row has of a model: sizes, MLA ranks, experts and predicted tokens.

    A position embedding that rows do not support is left out.
    """
    dump = model.model_dump(mode="json", exclude_none=True)
    fields = {name: dump[name] for name in _MEASURED if name in dump}
    fields |= dump.get("latent", {})
    if model.num_nextn_predict_layers:
        fields["mtp_num_layers"] = model.num_nextn_predict_layers
    if "experts" in dump:
        names = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
        fields |= {name: dump["experts"][name] for name in names}
        fields["first_k_dense"] = dump["experts"]["first_k_dense_replace"]
    if fields.get("position") not in _POSITIONS:
        fields.pop("position", None)
    return fields
