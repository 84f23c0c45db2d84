"""The answers that the oracle judges: the one file here that imports symconfig's costs, graph and solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from symconfig.cost.framework import device_bytes
from symconfig.cost.machine import Machine, machine
from symconfig.cost.table import Choice
from symconfig.cost.work import flops_per_token
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.format import picked
from symconfig.frameworks.megatron.behaviour import MEGATRON, beside_another
from symconfig.graph.derived import Phase
from symconfig.graph.model import sequence
from symconfig.plans.configuration import DEGREES
from symconfig.solve.costed import Costed, costed, refined_time, sizes
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Prospect, Setup, recomputing
from symconfig.solve.space import constants
from tests.oracle import given
from tests.oracle.given import Model, Run
from tests.oracle.records import FORWARD, GRADIENT_OF_WEIGHT, INPUT

PHASES = {FORWARD: Phase.FORWARD, INPUT: Phase.INPUT, GRADIENT_OF_WEIGHT: Phase.WEIGHT}


def _quantity(value: float) -> dict[str, Any]:
    return {"value": value, "source": "by hand"}


@cache
def model_of(what: Model) -> ModelDescriptor:
    experts = {
        "num_experts": what.experts,
        "num_experts_per_tok": what.chosen,
        "moe_intermediate_size": what.width,
        "norm_topk_prob": True,
    }
    fields = {
        "schema": "symconfig.model/1",
        "name": what.name,
        "source": "by hand",
        "model_type": "mixtral" if what.experts else "llama",
        "hidden_size": what.hidden,
        "intermediate_size": 0 if what.experts else what.width,
        "num_hidden_layers": what.layers,
        "num_attention_heads": what.heads,
        "num_key_value_heads": what.kv_heads,
        "head_dim": what.channels,
        "vocab_size": what.vocabulary,
        "max_position_embeddings": given.SEQUENCE,
        "experts": experts if what.experts else None,
        "qk_norm": what.qk_norm,
    }
    return ModelDescriptor.model_validate(fields)


@cache
def cluster() -> ClusterDescriptor:
    gpu = {
        "product": "NVIDIA A100-SXM4-80GB",
        "vendor": "nvidia",
        "architecture": "ampere",
        "compute_units": given.UNITS,
        "memory_bytes": _quantity(given.MEMORY),
        "memory_bandwidth_bytes_per_s": _quantity(given.MEMORY_RATE),
        "peak_flops": {"bf16": _quantity(given.PEAK), "fp16": _quantity(given.PEAK)},
        "context_bytes": _quantity(given.CONTEXT),
    }
    kernels = {
        "gemm_efficiency": given.PRODUCT_SHARE, "gemm_k_half": given.HALF_K, "hbm_efficiency": given.MEMORY_SHARE,
        "launch_s": given.LAUNCH, "attention_efficiency": given.ATTENTION_SHARE,
        "attention_backward_ratio": given.ATTENTION_BACKWARD, "link_efficiency": given.LINK_SHARE,
    }  # fmt: skip
    levels = [
        ("nvlink", given.NODE, given.LINK, given.LINK_LATENCY),
        ("spine", None, given.NETWORK, given.NETWORK_LATENCY),
    ]
    return ClusterDescriptor.model_validate(
        {
            "schema": "symconfig.cluster/1",
            "name": "by hand",
            "source": "by hand",
            "gpus_per_node": given.NODE,
            "gpu": gpu,
            "host": {"memory_bytes": _quantity(2.0**40), "link_bytes_per_s": _quantity(given.HOST_LINK)},
            "levels": tuple(
                {"name": name, "size": size, "bandwidth_bytes_per_s": _quantity(rate), "latency_s": _quantity(wait)}
                for name, size, rate, wait in levels
            ),
            "kernels": {name: _quantity(value) for name, value in kernels.items()},
        }
    )


def gpu() -> Machine:
    """The cluster's GPU in bf16, a middling one: the oracle's GPUs are all alike."""
    return machine(cluster(), "bf16")


@dataclass(frozen=True)
class Judged:
    """The judged program's answer for one run."""

    found: Prospect
    parts: Costed
    device: float

    def time(self) -> dict[str, float]:
        return {name: float(part.item()) for name, part in self.parts.cost.time.items()}

    def simulated(self) -> dict[str, float]:
        """Seconds of a step by part, the pipeline's schedule simulated."""
        return refined_time(self.found, self.parts)

    def memory(self) -> list[dict[str, float]]:
        """Of every stage."""
        named = self.parts.cost.memory
        return [
            {name: float(part[min(index, len(part) - 1)].item()) for name, part in named.items()}
            for index in range(self.parts.setting.pipelines.only.pp)
        ]

    def work(self, kind: str) -> dict[tuple[str, str], float]:
        """Seconds of every operator of a block, by its name and phase."""
        names = {phase: name for name, phase in PHASES.items()}
        return {(op, names[phase]): float(t[0]) for (op, phase), t in self.block(kind).work_s.items()}

    def messages(self, kind: str) -> list[tuple[str, str, str, float, float]]:
        """Kind, axis, phase, seconds before any overlap and what shows, of those of several ranks."""
        names = {phase: name for name, phase in PHASES.items()}
        block = self.block(kind)
        every = zip(block.derived.collectives, block.full_comm_s, block.comm_s, strict=True)
        return [
            (c.kind.value, c.axes[0], names[c.phase], float(whole[0]), float(shown[0]))
            for c, whole, shown in every
            if float(whole[0])
        ]

    def block(self, kind: str) -> Any:
        """What the program says of one kind of block."""
        return next(block for block in self.parts.table.blocks if block.derived.name == kind)


@cache
def judged(model: Model, run: Run) -> Judged:
    found = _found(model, run)
    parts = costed(found)
    return Judged(found, parts, device_bytes(max(parts.peaks), found.machine, found.request.framework))


def flops(model: Model, run: Run, kind: str) -> dict[tuple[str, str], float]:
    """FLOP of matrix products and attention of a block on one rank, by operator and phase."""
    found, answer = _found(model, run), judged(model, run)
    numbers = {
        name: float(max([value] if isinstance(value, float | int) else value))
        for name, value in sizes(found, 1).numbers.items()
    }
    block = answer.block(kind).derived
    names, result = {phase: name for name, phase in PHASES.items()}, {}
    for work in block.work:
        if hasattr(work, "queries"):
            products, channels = (2, 5)[work.phase is not Phase.FORWARD], numbers[work.channels[0]]
            result[work.op, names[work.phase]] = (
                products * 2 * work.queries.value(numbers) * numbers[work.keys] * channels
            )
        elif hasattr(work, "k"):
            m, n, k, batch = (getattr(work, name).value(numbers) for name in ("m", "n", "k", "batch"))
            result[work.op, names[work.phase]] = 2 * batch * m * n * k
    return result


def model_flops(model: Model, run: Run) -> float:
    """FLOP of a token, as the MFU counts them."""
    found = _found(model, run)
    kinds = {block.derived.name: block.derived for block in judged(model, run).parts.table.blocks}
    return flops_per_token(kinds, sequence(found.request.model), constants(found.request))


def _found(model: Model, run: Run) -> Prospect:
    framework = beside_another(MEGATRON, "ampere") if run.beside else MEGATRON
    configuration = Setup(
        **picked(run, *DEGREES),
        micro=run.micro,
        global_batch=run.micro * run.microbatches * run.dp,
        seq_length=run.sequence,
        sequence_parallel=run.sp,
        cp_comm="a2a" if run.ulysses else "p2p",
        **recomputing(Choice(run.modules), run.first),
        zero_stage=run.zero,  # type: ignore[arg-type]
        optimizer_offload=run.offload,
        framework=framework,
    )
    found = as_found(model_of(model), cluster(), configuration)
    job = found.request.job
    limits = job.limits.model_copy(update={"expert_imbalance": run.imbalance})
    request = replace(found.request, job=job.model_copy(update={"limits": limits}))
    return replace(found, request=request, machine=gpu())
