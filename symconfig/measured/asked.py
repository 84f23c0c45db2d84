"""What a measured row states of how it ran, and what its source's assumption gives where it does not."""

from __future__ import annotations

import re
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Row
from symconfig.errors import InputError, Problem
from symconfig.frameworks.megatron.releases import MEGATRON_VOCAB_MULTIPLE, SHARDING_STAGES
from symconfig.measured.assumptions import Assumption
from symconfig.measured.row_cluster import cluster_of
from symconfig.plans.choices import ZeroStage
from symconfig.units import MIB

# --data-parallel-sharding-strategy of Megatron's FSDP -> ZeRO stage.
_GRAPHS = re.compile(r"(?P<which>full|router/preprocess)? ?CG\b")  # or "partial CG"
_GRAPHED = {"full": "all", "router/preprocess": "router"}


class Asked:
    """Options of a row, then of its source's assumption; keeps what was assumed."""

    def __init__(self, row: Row, assumption: Assumption, cluster: ClusterDescriptor | None = None) -> None:
        self.row, self.assumption = row, assumption
        self.cluster = cluster or cluster_of(row, assumption)
        self.stated: dict[str, Any] = row.options.model_dump(exclude_none=True)
        if self.stated.get("megatron_args"):
            arguments = _from_arguments(self.stated["megatron_args"])
            self.stated = arguments | {"deferred_gradients": _deferred(row)} | self.stated
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


def _from_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Options that a Megatron-LM argument list states; what it leaves out is Megatron's default."""
    local = arguments.get("transformer-impl") == "local"
    kernel = "torch-unfused" if arguments.get("no-masked-softmax-fusion") else "fused-softmax"
    result: dict[str, Any] = {
        "kept_gradient_buffers": not (local or arguments.get("no-gradient-accumulation-fusion")),
        "quantised_weights": bool(arguments.get("fp8-param-gather")),
        "loss": "fused" if arguments.get("cross-entropy-fusion-impl") == "te" else "parallel",
        "vocab_multiple": int(arguments.get("make-vocab-size-divisible-by", MEGATRON_VOCAB_MULTIPLE)),
        "engine": not local,
        "layout": arguments.get("pipeline-model-parallel-layout") or "",
        "moe_a2a": bool(arguments.get("overlap-moe-expert-parallel-comm")),
        "activation_offload": bool(arguments.get("fine-grained-activation-offloading")),
        "etp": arguments.get("expert-tensor-parallel-size") or arguments.get("tensor-model-parallel-size", 1),
    }
    result["microbatch_group"] = int(arguments.get("microbatch-group-size-per-virtual-pipeline-stage") or 0)
    result["optimizer_instances"] = int(arguments.get("num-distributed-optimizer-instances") or 1)
    if arguments.get("use-megatron-fsdp"):
        result["zero_stage"] = SHARDING_STAGES[str(arguments.get("data-parallel-sharding-strategy", "no_shard"))]
    if arguments.get("num-experts") and not arguments.get("moe-grouped-gemm"):
        result["grouped_streams"] = 0
    if arguments.get("recompute-granularity") == "selective":
        result["recompute_modules"] = str(arguments.get("recompute-modules", "[core_attn]")).strip("[]").split()
    if arguments.get("deterministic-mode"):  # wants CUBLAS_WORKSPACE_CONFIG=:4096:8, eight buffers of 4 MiB
        result["torch_workspace"] = 32 * MIB
        result["attention_kernel"] = "deterministic"
    if arguments.get("no-gradient-accumulation-fusion"):  # a bf16 gradient is read and added to the fp32 one
        result["accumulated_bytes"] = 10.0
    if local and not arguments.get("use-flash-attn"):
        result["attention_kernel"] = kernel
    if arguments.get("account-for-embedding-in-pipeline-split") or arguments.get("account-for-loss-in-pipeline-split"):
        ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
        result["ends_as_layers"] = [int(bool(arguments.get(name))) for name in ends]
    for end in ("first", "last"):
        result[f"{end}_layers"] = int(arguments.get(f"decoder-{end}-pipeline-num-layers") or 0) or None
    return result


def _deferred(row: Row) -> int:
    """Microbatches whose gradient of the logits waits beside the one that is running."""
    arguments, batch = row.options.megatron_args or {}, row.batch
    if not arguments.get("defer-embedding-wgrad-compute"):
        return 0
    ran = (batch.global_ or 1) // ((batch.micro or 1) * row.parallel.get("dp", 1))
    return min(int(arguments.get("wgrad-deferral-limit") or ran), ran - 1)
