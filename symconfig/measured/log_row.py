"""A training log as a measured row, which is predicted, scored and fitted to like a published one.

Megatron's printed namespace has every argument by its destination (`add_bias_linear`), after `validate_args` has
settled it; a row's `megatron_args` has options as they are given (`disable-bias-linear`), so that it is read like any
other row's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import MeasuredBatch, MeasuredModel, MeasuredOptions, Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.model import described
from symconfig.existing.recover.namespace import printed_namespace
from symconfig.frameworks.megatron.flags import Flag, flags, versions
from symconfig.frameworks.megatron.options import precision, zero_stage
from symconfig.measured.training_log import TrainingLog, Value
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
    if it has; with an adapter the task is "lora", else "pretrain". gpus, batch, options: override what the log says,
    field by field. Raises InputError for a missing or invalid field, another model, degrees that contradict the GPUs,
    or a log without a steady step time, memory figures and out-of-memory.
    """
    names = log.arguments
    degrees = {
        "tp": whole(log.config, "tensor_parallel.autotp_size", "tensor_parallel.tp_size"),
        "cp": whole(log.config, "sequence_parallel_size"),
        "ep": whole(log.config, "expert_parallel.autoep_size"),
    }
    printed = whole(names, "world_size") or whole(log.config, "world_size")
    fields: dict[str, Any] = {
        "id": Path(log.path).name,
        "task": "lora" if model is not None and model.adapter is not None else "pretrain",
        "model": _model(log, model),
        "cluster": {"gpu": cluster.name, "gpus": gpus or log.degrees.get("world") or printed},
        "software": {"name": log.framework},
        "parallel": _parallel(names, log) | {name: value for name, value in degrees.items() if value},
        "batch": _batch(log) | _stated(batch),
        "options": (_options(names) if names else {}) | _config_options(log) | _stated(options),
        "measured": _measured(log),
        "confidence": "exact",
        "note": _note(log, model),
    }
    _degrees(fields, log)
    if not fields["measured"]:
        raise InputError(f"has neither a steady step time nor memory figures: {'; '.join(log.remarks)}", file=log.path)
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

    Raises InputError if the log prints another number of layers or hidden size than the given one has, or if the
    arguments describe no model, or one with expert layers other than all after the first dense ones.
    """
    if model is not None:
        for argument, field in (("num_layers", "num_hidden_layers"), ("hidden_size", "hidden_size")):
            printed, own = whole(log.arguments, argument), getattr(model, field)
            if printed is not None and printed != own:
                what = f"is not the model of this log ({model.name})"
                raise InputError(what, file=log.path, field=argument, got=str(own), need=str(printed))
        return row_fields(model)
    described = log_model(log)
    if described.experts is not None and described.experts.moe_layer_freq != 1:
        what = "a row has only dense layers before all others"
        raise InputError(what, file=log.path, field="moe_layer_freq", hint="name the model")
    return row_fields(described)


def _note(log: TrainingLog, model: ModelDescriptor | None) -> str | None:
    """Return a note on sliding windows and a gate of the shared expert, which a row cannot hold; None if the log's
    arguments have neither, or if a model is given.
    """
    lost = {"window_size": "sliding windows", "moe_shared_expert_gate": "a gate of the shared expert"}
    notes = [what for name, what in lost.items() if log.arguments.get(name)]
    if not notes or model is not None:
        return None
    return f"the model has {' and '.join(notes)}, which only a named model brings"


def _degrees(fields: dict[str, Any], log: TrainingLog) -> None:
    """Fill in dp = GPUs // (tp x pp x cp), at least 1, or the number of GPUs in `fields`, from the other. Raise
    InputError if both are unknown or tp x pp x cp x dp is not the GPUs.
    """
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
    """Return micro, global, seq_length and grad_accum as far as the log has them; sizes in sequences. The global batch
    is that of the steady steps, else as configured; DeepSpeed's is divided by its tensor-parallel degree, which it
    counts as data ranks.
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
    """Return zero_stage (0 to 3), precision, cp_comm and overlap as far as DeepSpeed's settings have them.

    cp_comm is "a2a" with Ulysses, overlap has `grad_reduce` (overlap_comm). fp16 wins if both widths are enabled.
    """
    config = log.config
    if not config:
        return {}
    fields: dict[str, Any] = {}
    stage = config.get("zero_optimization.stage", config.get("zero_optimization_stage"))
    if isinstance(stage, int) and 0 <= stage <= 3:
        fields["zero_stage"] = int(stage)
    for width, keys in (
        ("bf16", ("bf16.enabled", "bfloat16.enabled", "bfloat16_enabled")),
        ("fp16", ("fp16.enabled", "fp16_enabled")),
    ):
        if any(config.get(key) is True for key in keys):
            fields["precision"] = width
    if whole(config, "sequence_parallel_size") not in (None, 1):
        fields["cp_comm"] = "a2a"  # Ulysses
    overlap = config.get("zero_optimization.overlap_comm")
    if isinstance(overlap, bool):
        fields["overlap"] = {"grad_reduce": overlap}
    return fields


def _measured(log: TrainingLog) -> dict[str, Any]:
    """Return the measured fields that the log has: step_s, tflops_per_gpu, peak memory, memory_rank, and oom (True).

    Peaks are peak_allocated_gib and peak_reserved_gib, the largest in GiB, and the same with _by_rank: a list of all
    ranks', sorted by rank as text. memory_rank is 0 if only rank 0, or an unnamed rank, printed peaks, else "max".
    """
    values: dict[str, Any] = {}
    if log.steady is not None:
        values["step_s"] = log.steady.seconds
        if log.steady.tflops_per_gpu:
            values["tflops_per_gpu"] = log.steady.tflops_per_gpu
    for name in ("allocated", "reserved"):
        peaks = [by_kind[name] for _, by_kind in sorted(log.peaks.items(), key=str) if by_kind.get(name)]
        if peaks:
            values |= {f"peak_{name}_gib": max(peaks) / GIB, f"peak_{name}_gib_by_rank": [peak / GIB for peak in peaks]}
    if log.peaks:
        values["memory_rank"] = 0 if list(log.peaks) in ([0], [None]) else "max"
    if log.out_of_memory:
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


def row_fields(model: ModelDescriptor) -> dict[str, Any]:
    """Return the fields that a measured row has of a model: sizes, MLA ranks, experts, first dense layers and predicted
    tokens, as far as they are set. A position embedding other than rope, learned and alibi is left out.
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


_PRIVATE = re.compile(r"path|dir|file|save|load|token|wandb|tensorboard|host|port$|url|name|prefix|log|prompt")


def _given(names: Mapping[str, Value]) -> dict[str, Any]:
    """Return {option without dashes: value} for arguments of Megatron that differ from every version's default; a
    switch is True. Left out: None, unknown destinations, options whose name suggests a path, host, name or token, and
    the implementation of fused cross entropy unless that is on.
    """
    result: dict[str, Any] = {}
    for dest, (flag, defaults) in _flags().items():
        value = names.get(dest)
        if dest not in names or value is None or str(value) in defaults or _PRIVATE.search(dest):
            continue
        name = flag.name.lstrip("-")
        if flag.kind == "false":
            if value is False:
                result[name] = True
        elif flag.kind == "store" or value is True:
            result[name] = value
    if not names.get("cross_entropy_loss_fusion"):
        result.pop("cross-entropy-fusion-impl", None)
    return result


@cache
def _flags() -> dict[str, tuple[Flag, frozenset[str]]]:
    """Return {destination: (option, defaults of all versions)}; cached. The option is the newest version's, but the
    oldest's for switches that store False. `--no-X` of a pair --X/--no-X is skipped.
    """
    by_name: dict[str, tuple[Flag, frozenset[str]]] = {}
    for version in versions():
        for flag in flags(version).flags.values():
            if flag.kind == "optional" and flag.name.startswith("--no-"):
                continue
            old = by_name[flag.dest][1] if flag.dest in by_name else frozenset()
            # of --no-X and --disable-X with one destination, the first
            keep = by_name[flag.dest][0] if flag.dest in by_name and flag.kind == "false" else flag
            by_name[flag.dest] = (keep, old | {flag.default})
    return by_name


def whole(names: Mapping[str, Value], *choices: str) -> int | None:
    """Return the first of these arguments that is a positive integer below 2^40, or None."""
    for name in choices:
        value = names.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None


def _parallel(names: Mapping[str, Value], log: TrainingLog) -> dict[str, int]:
    """Return the degrees from the arguments, else tp, pp, cp and dp from the log's line about the world size.

    Unknown ones are left out. The arguments' dp includes the ranks of gtp_weight_remat_size. dp, if neither has it, is
    the world size // (tp x pp x cp); left out if that is 0 or the world size is unknown.
    """
    world = log.degrees.get("world") or whole(names, "world_size")
    degrees = {
        "tp": whole(names, "tensor_model_parallel_size", "model_parallel_size") or log.degrees.get("tp"),
        "pp": whole(names, "pipeline_model_parallel_size") or log.degrees.get("pp"),
        "cp": whole(names, "context_parallel_size") or log.degrees.get("cp"),
        "ep": whole(names, "expert_model_parallel_size"),
        "etp": whole(names, "expert_tensor_parallel_size"),
        "dp": (whole(names, "data_parallel_size") or 0) * (whole(names, "gtp_weight_remat_size") or 1)
        or log.degrees.get("dp"),
        "vpp": whole(names, "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
    }
    if degrees["dp"] is None and world:
        rest = (degrees["tp"] or 1) * (degrees["pp"] or 1) * (degrees["cp"] or 1)
        degrees["dp"] = world // rest or None
    return {name: value for name, value in degrees.items() if value}


def _options(names: Mapping[str, Value]) -> dict[str, Any]:
    """Return a row's options, with arguments that are no default as `megatron_args`. Raise InputError for fp32 runs.

    attention_kernel: with Transformer Engine unfused if the backend is unfused or local, else flash; with local layers
    flash if used, else left out. zero_stage: 3 for PyTorch's FSDP2, the stated one for Megatron-DeepSpeed, that of the
    sharding strategy for Megatron FSDP; else distributed_optimizer instead: whether it is used.
    """
    if (width := precision(names)) is None:
        raise InputError("runs in fp32 are not predicted", field="bf16 or fp16", got="neither")
    fields: dict[str, Any] = {
        "precision": width,
        "megatron_args": _given(names),
    }
    stage = names.get("zero_stage")  # of Megatron-DeepSpeed
    if names.get("use_torch_fsdp2"):
        fields["zero_stage"] = 3
    elif names.get("deepspeed") and isinstance(stage, int) and 0 <= stage <= 3:
        fields["zero_stage"] = int(stage)
    elif names.get("use_megatron_fsdp") or names.get("use_custom_fsdp"):
        fields["zero_stage"] = zero_stage(names)
    else:
        fields["distributed_optimizer"] = bool(zero_stage(names))
    if names.get("transformer_impl", "transformer_engine") != "local":
        backend = str(names.get("attention_backend", "")).removeprefix("AttnBackend.")
        fields["attention_kernel"] = "unfused" if backend in ("unfused", "local") else "flash"
    elif names.get("use_flash_attn"):
        fields["attention_kernel"] = "flash"
    return fields
