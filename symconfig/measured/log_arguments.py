"""Megatron's printed namespace, read as what a measured row states: degrees, batch, options. Its model: `log_model`.

The namespace has every argument by its destination (`add_bias_linear`), after `validate_args` has settled it; a row's
`megatron_args` has options as they are given (`disable-bias-linear`), so that it is read like any other row's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from symconfig.errors import InputError
from symconfig.frameworks.megatron.flags import Flag, flags, versions
from symconfig.frameworks.megatron.options import precision, recomputed, zero_stage
from symconfig.measured.log_records import TrainingLog, Value

Namespace = Mapping[str, Value]

_PRIVATE = re.compile(r"path|dir|file|save|load|token|wandb|tensorboard|host|port$|url|name|prefix|log|prompt")


def given(names: Namespace) -> dict[str, Any]:
    """Return the options, by name without dashes, whose value is not any version's default.

    Options that may hold paths, hosts, names or tokens are left out, and so are those that are None.
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
    """Return, by destination, the newest version's option and the defaults of all versions; cached."""
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


def whole(names: Namespace, *choices: str) -> int | None:
    """Return the first of these arguments that is a positive integer below 2^40, or None."""
    for name in choices:
        value = names.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None


def parallel_fields(names: Namespace, log: TrainingLog) -> dict[str, int]:
    """Return the degrees from the arguments, else from the log's line about the world size; unknown ones are left out.

    dp is derived from the world size if neither has it.
    """
    world = log.degrees.get("world") or whole(names, "world_size")
    degrees = {
        "tp": whole(names, "tensor_model_parallel_size", "model_parallel_size") or log.degrees.get("tp"),
        "pp": whole(names, "pipeline_model_parallel_size") or log.degrees.get("pp"),
        "cp": whole(names, "context_parallel_size") or log.degrees.get("cp"),
        "ep": whole(names, "expert_model_parallel_size"),
        "etp": whole(names, "expert_tensor_parallel_size"),
        "dp": whole(names, "data_parallel_size") or log.degrees.get("dp"),
        "vpp": whole(names, "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
    }
    if degrees["dp"] is None and world:
        rest = (degrees["tp"] or 1) * (degrees["pp"] or 1) * (degrees["cp"] or 1)
        degrees["dp"] = world // rest or None
    return {name: value for name, value in degrees.items() if value}


def option_fields(names: Namespace) -> dict[str, Any]:
    """Return a row's options, with the rest of the arguments as `megatron_args`. Raise InputError for fp32 runs.

    attention_kernel and cp_comm are left out if the arguments do not say them.
    """
    fields: dict[str, Any] = {
        "precision": _precision(names),
        "sequence_parallel": bool(names.get("sequence_parallel")),
        "overlap": {
            "grad_reduce": bool(names.get("overlap_grad_reduce")),
            "param_gather": bool(names.get("overlap_param_gather")),
            "tp_comm": bool(names.get("tp_comm_overlap")),
        },
        "megatron_args": given(names),
        **_recompute(names),
    }
    fields |= _sharding(names)
    if names.get("transformer_impl", "transformer_engine") != "local":
        backend = str(names.get("attention_backend", "")).removeprefix("AttnBackend.")
        fields["attention_kernel"] = "unfused" if backend in ("unfused", "local") else "flash"
    elif names.get("use_flash_attn"):
        fields["attention_kernel"] = "flash"
    kind = re.findall(r"p2p|all_gather|a2a\+p2p|a2a", str(names.get("cp_comm_type", "")))
    if kind and kind[0] in ("all_gather", "a2a"):
        fields["cp_comm"] = kind[0]
    return fields


def _precision(names: Namespace) -> str:
    name = precision(names)
    if name is None:
        raise InputError("runs in fp32 are not predicted", field="bf16 or fp16", got="neither")
    return name


def _sharding(names: Namespace) -> dict[str, Any]:
    """Return `zero_stage` for FSDP and Megatron-DeepSpeed, else `distributed_optimizer`."""
    if names.get("use_torch_fsdp2"):
        return {"zero_stage": 3}
    stage = names.get("zero_stage")  # of Megatron-DeepSpeed
    if names.get("deepspeed") and isinstance(stage, int) and 0 <= stage <= 3:
        return {"zero_stage": int(stage)}
    if names.get("use_megatron_fsdp") or names.get("use_custom_fsdp"):
        return {"zero_stage": zero_stage(names)}
    return {"distributed_optimizer": bool(zero_stage(names))}


def _recompute(names: Namespace) -> dict[str, Any]:
    """Return the recompute options: granularity, modules of selective recomputing, and layers of the method block."""
    stated = recomputed(names)
    fields: dict[str, Any] = {"recompute": stated.granularity}
    if stated.granularity == "selective":
        fields["recompute_modules"] = list(stated.modules)
    if stated.method == "block":
        fields |= {"recompute_method": "block", "recompute_layers": stated.num_layers}
    return fields
