"""What a measured row states of how it ran, and what its source's assumption gives where it does not."""

from __future__ import annotations

import re
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Row
from symconfig.errors import InputError, Problem
from symconfig.frameworks.megatron.behaviour import MEGATRON, MEGATRON_LOCAL
from symconfig.frameworks.megatron.options import by_destination, instances, kernels, recomputed, zero_stage
from symconfig.frameworks.megatron.releases import MEGATRON_VOCAB_MULTIPLE
from symconfig.measured.assumptions import Assumption
from symconfig.measured.row_cluster import cluster_of
from symconfig.plans.choices import ZeroStage
from symconfig.units import MIB

_GRAPHS = re.compile(r"(?P<which>full|router/preprocess)? ?CG\b")  # or "partial CG"
_GRAPHED = {"full": "all", "router/preprocess": "router"}


class Asked:
    """Options of a row, then of its source's assumption; keeps what was assumed."""

    def __init__(self, row: Row, assumption: Assumption, cluster: ClusterDescriptor | None = None) -> None:
        self.row, self.assumption = row, assumption
        self.cluster = cluster or cluster_of(row, assumption)
        self.stated: dict[str, Any] = row.options.model_dump(exclude_none=True)
        if self.stated.get("megatron_args"):
            self.stated = _from_arguments(row) | {"deferred_gradients": _deferred(row)} | self.stated
        if graphs := _GRAPHS.search(str(self.stated.get("features", ""))):
            self.stated["graphed"] = _GRAPHED.get(graphs["which"], "outside experts")
        self.taken: dict[str, str] = {}
        self.documented: dict[str, str] = {}
        self.guess("gpu", assumption.gpu, row.cluster.gpu is None)
        nodes = row.cluster.gpus is None or row.cluster.gpus > (row.cluster.gpus_per_node or 8)
        self.guess("network_ports", assumption.network_ports, nodes)

    def guess(self, name: str, value: object, matters: bool) -> None:
        """Keep an assumed value, where it can change the prediction."""
        if matters and value is not None:
            into = self.documented if name in self.assumption.documented else self.taken
            into[name] = str(value).lower() if isinstance(value, bool) else str(value)

    def option(self, name: str, default: Any, matters: bool = True) -> Any:
        if name in self.stated:
            return self.stated[name]
        value = self.assumption.options.get(name, default)
        self.guess(name, value, matters)
        return value

    def batch(self, name: str) -> int:
        value = getattr(self.row.batch, name)
        if value is not None:
            return int(value)
        value = getattr(self.assumption.batch, name)
        if name == "micro" and value is None and self.assumption.batch.grad_accum:
            p, whole = self.row.parallel, self.row.batch.global_ or 0
            value = max(1, whole // (p.get("dp", 1) * self.assumption.batch.grad_accum))
        if value is None:
            raise InputError(Problem("is not stated, and nothing is assumed for this source", field=f"batch.{name}"))
        tuned = self.assumption.tuned_micro if name == "micro" else ()
        self.guess(name, f"the best of {', '.join(map(str, (value, *tuned)))}" if tuned else value, True)
        return int(value)

    def zero(self, replicated: bool) -> ZeroStage:
        if "zero_stage" not in self.stated and "distributed_optimizer" in self.stated:
            return 1 if self.stated["distributed_optimizer"] else 0
        if self.stated.get("fsdp") and "zero_stage" not in self.stated:
            return 3
        stage: ZeroStage = self.option("zero_stage", 0, replicated)
        return stage


def _from_arguments(row: Row) -> dict[str, Any]:
    """Options that the row's list of Megatron-LM's arguments states; what it leaves out is Megatron's default."""
    names = by_destination(row.options.megatron_args or {})
    local, added_apart = names.get("transformer_impl") == "local", names.get("gradient_accumulation_fusion") is False
    result: dict[str, Any] = {
        "loss": "parallel",
        **dict(kernels(names, MEGATRON, row.model.attention == "mla")),
        "kept_gradient_buffers": not (local or added_apart),
        "quantised_weights": bool(names.get("fp8_param_gather")),
        "vocab_multiple": names.get("make_vocab_size_divisible_by") or MEGATRON_VOCAB_MULTIPLE,
        "engine": not local,
        "layout": names.get("pipeline_model_parallel_layout") or "",
        "moe_a2a": bool(names.get("overlap_moe_expert_parallel_comm")),
        "activation_offload": bool(names.get("fine_grained_activation_offloading")),
        "etp": names.get("expert_tensor_parallel_size") or names.get("tensor_model_parallel_size") or 1,
        "microbatch_group": names.get("microbatch_group_size_per_vp_stage") or 0,
        "optimizer_instances": instances(names),
    }
    if names.get("use_megatron_fsdp"):
        result["zero_stage"] = zero_stage(names)
    if (recompute := recomputed(names)).granularity == "selective":
        result["recompute_modules"] = recompute.modules
    if names.get("deterministic_mode"):  # wants CUBLAS_WORKSPACE_CONFIG=:4096:8, eight buffers of 4 MiB
        result |= {"torch_workspace": 32 * MIB, "attention_kernel": "deterministic"}
    if added_apart:
        result["accumulated_bytes"] = MEGATRON_LOCAL.accumulated_bytes
    if local and not names.get("use_flash_attn"):
        fused = names.get("masked_softmax_fusion") is not False
        result["attention_kernel"] = "fused-softmax" if fused else "torch-unfused"
    ends = [f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
    if any(names.get(end) for end in ends):
        result["ends_as_layers"] = [int(bool(names.get(end))) for end in ends]
    for end in ("first", "last"):
        result[f"{end}_layers"] = names.get(f"decoder_{end}_pipeline_num_layers")
    return result


def _deferred(row: Row) -> int:
    """Microbatches whose gradient of the logits waits beside the one that is running."""
    arguments, batch = row.options.megatron_args or {}, row.batch
    if not arguments.get("defer-embedding-wgrad-compute"):
        return 0
    ran = (batch.global_ or 1) // ((batch.micro or 1) * row.parallel.get("dp", 1))
    return min(int(arguments.get("wgrad-deferral-limit") or ran), ran - 1)
