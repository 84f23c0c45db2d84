"""The optimizer that Megatron-LM's options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.optimizer import Optimizer
from symconfig.frameworks.megatron.flags import Value

PRECISE = "use_precision_aware_optimizer"
MUON = ("muon", "dist_muon")  # the second with ranks that share it, by its old name
# As an option has them, and as PyTorch prints them.
_WIDTHS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
_OF_MUON = {
    "momentum": ("muon_momentum",),
    "nesterov": ("muon_nesterov", "muon_use_nesterov"),
    "ns_steps": ("muon_num_ns_steps",),
    "scale_mode": ("muon_scale_mode",),
    "extra_scale_factor": ("muon_extra_scale_factor",),
    "tp_mode": ("muon_tp_mode",),
}


def optimizer(names: Mapping[str, Value]) -> Optimizer | None:
    """Return the optimizer that the options ask for; None if it is not modelled or its settings are invalid.

    names: values by destination.
    """
    name = str(names.get("optimizer") or "adam")
    fields: dict[str, Any] = {"name": "muon" if name in MUON else name}
    if name == "adam" and precise(names):
        fields |= {
            "main_params": _width(names, "main_params_dtype"),
            "exp_avg": _width(names, "exp_avg_dtype"),
            "exp_avg_sq": _width(names, "exp_avg_sq_dtype"),
        }
    if name == "sgd":
        fields["momentum"] = names.get("sgd_momentum")
    if name in MUON:
        given = {
            field: next((names[d] for d in dests if names.get(d) is not None), None)
            for field, dests in _OF_MUON.items()
        }
        fields |= {field: value for field, value in given.items() if value is not None}
    try:
        return Optimizer.model_validate(fields) if name in ("adam", "sgd", *MUON) else None
    except ValidationError:
        return None


def precise(names: Mapping[str, Value]) -> bool:
    """Return whether the precision-aware optimizer is on.

    False with an optimizer on the host, whose states are fp32.
    """
    return bool(names.get(PRECISE)) and not names.get("optimizer_cpu_offload")


def _width(names: Mapping[str, Value], dest: str) -> str:
    word = str(names.get(dest) or "fp32").removeprefix("torch.")
    return _WIDTHS.get(word, word)
