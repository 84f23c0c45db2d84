"""The degree search as nested loops: one candidate at a time, rules in plain Python, no bounds and no vectors.

Seconds and bytes come from tests/oracle, which imports nothing of what is judged, wherever it describes the candidate
(Transformer Engine's layers in equal stages with nothing in host memory). Those of other models and stages come from
solve.costed, so that of them only the search is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any
from unittest.mock import patch

from symconfig.cost.machine import Machine, machine
from symconfig.cost.stages import Offload
from symconfig.cost.table import Choice
from symconfig.cost.work import block_flops
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.format import picked
from symconfig.frameworks.extras import on
from symconfig.frameworks.known import facts
from symconfig.graph.model import derived, sequence
from symconfig.graph.scheme import Scheme
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Candidate
from symconfig.solve import costed as details
from symconfig.solve.choice import Incumbents
from symconfig.solve.limits import Limits, limits, offloaded, policies
from symconfig.solve.pieces import WHOLE
from symconfig.solve.prospect import Prospect, effective, recomputing
from symconfig.solve.run import requests, weigh_all
from symconfig.solve.search import resolved
from symconfig.solve.space import Request, constants
from symconfig.solve.split import SAID_BY, Split, most_chunks, splits
from tests.oracle import given
from tests.oracle import plan as by_hand
from tests.oracle.step import time
from tests.sample_models import sample_cluster, sample_model

Key = tuple[int, ...]  # tp, pp, vpp, cp, ep, etp, dp, micro

_SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def tiny(name: str = "llama2-13b", /, **overrides: Any) -> ModelDescriptor:
    """A sample model made small enough to weigh by hand, but of the same family."""
    return sample_model(name, **{**_SMALL, **overrides})


def tight(model: ModelDescriptor, gib: float, name: str = "a100-80gb") -> ClusterDescriptor:
    """The sample cluster with so little memory that tiny models, too, must choose what to keep."""
    cluster = sample_cluster(name)
    gpu = cluster.gpu.model_dump(mode="json")
    gpu["memory_bytes"]["value"] = gib * 2**30
    gpu["context_bytes"]["value"] = 0.1 * 2**30
    data = {**cluster.model_dump(mode="json", by_alias=True), "gpu": gpu}
    return ClusterDescriptor.model_validate(data, strict=False)


def limits_of(backend: str, version: str, model: ModelDescriptor) -> Limits:
    """A target's space on Hopper."""
    return limits(backend, version, model, facts(backend, model, "hopper"))


# Options beside the degrees: the oracle describes none of them but the experts' overlap.
KERNELS = ("user_buffers", "deepep", "hybridep", "cuda_graphs", "bf16_gradients", "fp8_param_gather", "fused_loss")


def job(gpus: int | str, batch: int, seq_length: int = 2048, **fields: Any) -> Job:
    """With every option of layouts open, no kernels but the usual ones, and any risk of running out."""
    return Job.model_validate(
        {
            "model": "tiny",
            "cluster": "test",
            "gpus": gpus,
            "global_batch_size": batch,
            "seq_length": seq_length,
            "allow": ("all",),
            "without": KERNELS if fields.get("backend", "megatron") == "megatron" else (),
            "limits": {"memory_risk": 1.0},
            **fields,
        }
    )


def place(found: Prospect) -> Key:
    """The degrees of a found candidate, as `key` has those of a plan's."""
    p = found.configuration
    return (p.tp, p.pp, p.vpp, p.cp, p.ep, p.etp, p.dp, p.micro)


def key(candidate: Candidate) -> Key:
    p = candidate.configuration
    return (p.tp, p.pp, p.vpp, p.cp, p.ep, p.etp, p.dp, candidate.configuration.micro)


@dataclass(frozen=True)
class Weighed:
    """Fastest candidate of each choice of degrees; how many there were and fitted.

    The numbers of recomputed layers count as one candidate.
    """

    best: dict[Key, tuple[float, Prospect]]
    candidates: int
    feasible: int
    by_hand: int  # how many times the oracle gave the costs


def weigh(model: ModelDescriptor, cluster: ClusterDescriptor, asked: Job) -> Weighed:
    """Every candidate of `asked`, one at a time."""
    asked = resolved(model, cluster, asked)
    ways = requests(model, cluster, asked, str(asked.precision))
    gpu = machine(cluster, ways[0].precision, gpus=ways[0].gpus)
    limit = cluster.gpu.memory_bytes.value * (1 - asked.limits.memory_margin)
    by_hand = 0
    best: dict[Key, tuple[float, Prospect]] = {}
    all_: set[Any] = set()
    fits: set[Any] = set()
    for found in (found for wanted in ways for found in _candidates(wanted, gpu)):
        point = (found.scheme, found.split, found.having(recompute_layers=1).configuration)
        candidate = (point, found.block_layers > 0, found.request.configuration)
        all_.add(candidate)
        seconds, peak = price(found)
        by_hand += described(found)
        if peak * (1 + ways[0].framework.fragmentation) + cluster.gpu.context_bytes.value > limit:
            continue
        fits.add(candidate)
        degrees = place(found)
        if degrees not in best or seconds < best[degrees][0]:
            best[degrees] = (seconds, found)
    return Weighed(best, len(all_), len(fits), by_hand)


def described(found: Prospect) -> bool:
    """Whether the oracle knows such models and stages."""
    model, request = found.request.model, found.request
    same = ("attention", "norm", "position", "gated_mlp", "hidden_act", "qkv_bias", "tie_word_embeddings", "adapter")
    chunks = {sum(kind in ("dense", "moe") for kind in chunk) for chunk in found.split.chunks}
    return (
        request.job.backend == "megatron"
        and request.precision == "bf16"
        and all(getattr(model, name) == getattr(_llama(), name) for name in same)
        and len(set(model.layer_kinds)) == len(chunks) == 1
        and not any((*model.sliding_layers, model.num_nextn_predict_layers))
        and not (model.experts and model.experts.shared_expert_intermediate_size)
        and found.offload == Offload()
        and not found.choice.offload
        and set(on(found.request.configuration)) <= {"overlap_moe_a2a"}
    )


@cache
def _llama() -> ModelDescriptor:
    return tiny()


def price(found: Prospect) -> tuple[float, float]:
    """Seconds of a step, and bytes at the peak of the fullest stage."""
    if not described(found):
        cost = details.costed(found).cost
        return float(cost.step_s.max()), float(cost.peak_bytes.max())
    plan = by_hand.plan(_model_by_hand(found.request.model), _run_by_hand(found))
    return sum(time(plan).values()), max(sum(parts.values()) for parts in by_hand.memory(plan))


def _model_by_hand(model: ModelDescriptor) -> given.Model:
    experts = model.experts
    return given.Model(
        model.name,
        model.num_hidden_layers,
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
        experts.moe_intermediate_size if experts else model.intermediate_size,
        model.vocab_size,
        experts.num_experts if experts else 0,
        experts.num_experts_per_tok if experts else 1,
        model.qk_norm,
    )


def _run_by_hand(found: Prospect) -> given.Run:
    d, micro = found.configuration, found.configuration.micro
    tp, pp, cp, ep, etp, dp = d.tp, d.pp, d.cp, d.ep, d.etp, d.dp
    return given.Run(
        tp,
        found.scheme.sequence_parallel,
        pp,
        found.split.vpp,
        cp,
        found.scheme.cp_comm == "a2a",
        ep,
        etp,
        dp,
        micro,
        found.request.global_batch // (dp * micro),
        d.zero_stage,
        frozenset() if found.block_layers else found.choice.modules,
        found.block_layers,
        beside=found.beside_another,
        sequence=found.request.seq_length,
    )


def _candidates(wanted: Request, gpu: Machine) -> Iterator[Prospect]:
    model = wanted.model
    deepspeed = wanted.job.backend == "deepspeed"
    experts = model.experts.num_experts if model.experts else 1
    width = model.experts.moe_intermediate_size if model.experts else 1
    ranks = range(1, wanted.gpus + 1)
    weights, kinds = cache(partial(_weights, wanted)), sequence(model)
    for tp, cp, pp, ep, etp in product(ranks, ranks, [1] if deepspeed else ranks, ranks, ranks):
        if wanted.gpus % (tp * cp * pp) or experts % ep or width % etp:
            continue
        dp = wanted.gpus // (tp * cp * pp)
        degrees = {"tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp, "dp": dp}
        if not all(wanted.pins.allows(name, value) for name, value in degrees.items()):
            continue
        for micro in range(1, wanted.global_batch + 1):
            if wanted.global_batch % (dp * micro) or not wanted.pins.allows("mbs", micro):
                continue
            for sp, comm in product([False] if deepspeed else [False, True], ["p2p", "a2a"]):
                for vpp in range(1, most_chunks(model.num_hidden_layers, pp, wanted.limits.layouts) + 1):
                    if (_runs_deepspeed if deepspeed else _runs_megatron)(
                        wanted, tp, cp, pp, vpp, ep, etp, dp, micro, sp, comm
                    ):
                        scheme = Scheme(sp, comm, shared_heads=tp > model.num_key_value_heads)  # type: ignore[arg-type]
                        cut = splits(kinds, pp, vpp, weights(scheme), wanted.limits.layouts)
                        for split in cut:
                            at = Configuration(
                                **degrees, vpp=vpp, micro=micro, global_batch=wanted.global_batch,
                                seq_length=wanted.seq_length, precision=wanted.precision, sequence_parallel=sp,
                                cp_comm=comm,
                            )  # fmt: skip
                            yield from _policies(wanted, gpu, scheme, split, at)


def _runs_anywhere(model: ModelDescriptor, tp: int, cp: int, ep: int, etp: int, dp: int) -> bool:
    shared = model.experts.shared_expert_intermediate_size if model.experts else 0
    sizes = (model.num_attention_heads, model.intermediate_size, shared)
    return all(size % tp == 0 for size in sizes) and (tp * cp * dp) % (ep * etp) == 0 and etp <= tp


def _runs_megatron(
    wanted: Request, tp: int, cp: int, pp: int, vpp: int, ep: int, etp: int, dp: int, micro: int, sp: bool, comm: str
) -> bool:
    model, length, keys = wanted.model, wanted.seq_length, wanted.model.num_key_value_heads
    if not _runs_anywhere(model, tp, cp, ep, etp, dp):
        return False
    if keys % tp and (tp % keys or wanted.version < "core_v0.16"):
        return False
    if (model.num_attention_heads + 2 * keys) * model.head_dim % tp or (model.adapter and tp > keys):
        return False
    if sp and (tp == 1 or length % (tp * cp)):
        return False
    if model.experts and tp > 1 and not sp:
        return False
    if cp == 1 and comm != "p2p":
        return False  # the same plan as p2p
    if wanted.framework.hide.experts and (ep == 1 or (pp > 1 and vpp == 1)):
        return False
    if cp > 1 and (length % (2 * cp) or any(model.sliding_layers)):
        return False
    if comm == "a2a" and (model.num_attention_heads % (tp * cp) or model.num_key_value_heads % (tp * cp)):
        return False
    microbatches = wanted.global_batch // (dp * micro)
    return vpp == 1 or (pp > 1 and microbatches % pp == 0)


def _runs_deepspeed(
    wanted: Request, tp: int, cp: int, pp: int, vpp: int, ep: int, etp: int, dp: int, micro: int, sp: bool, comm: str
) -> bool:
    model = wanted.model
    if not _runs_anywhere(model, tp, cp, ep, etp, dp) or model.num_key_value_heads % tp or vpp > 1 or etp > 1:
        return False
    if (comm == "a2a") != (cp > 1):
        return False
    if cp > 1 and (tp > 1 or ep > 1 or wanted.seq_length % cp):
        return False
    if cp > 1 and (model.num_attention_heads % cp or model.num_key_value_heads % cp):
        return False
    if model.experts and tp > 1:
        return False
    return not (model.adapter and (tp > 1 or ep > 1))


def _policies(
    wanted: Request, gpu: Machine, scheme: Scheme, split: Split, degrees: Configuration
) -> Iterator[Prospect]:
    sharded = degrees.tp * degrees.cp * degrees.pp == 1 and not wanted.framework.hide.experts
    for zero in filter(partial(wanted.pins.allows, "zero"), wanted.limits.zero):
        if zero >= 2 and wanted.job.backend == "megatron" and not sharded:
            continue  # beside Megatron-FSDP only experts are split, on Hopper
        for away in wanted.limits.offloads[zero]:
            if wanted.pins.fraction not in (None, away.optimizer):
                continue
            for choice, layers in _recomputes(wanted, split):
                yield Prospect(
                    request=wanted, machine=gpu, scheme=scheme, split=split,
                    configuration=effective(
                        replace(
                            degrees, **recomputing(choice, layers), **picked(split, *SAID_BY), zero_stage=zero,
                            optimizer_offload=away.optimizer, param_offload=away.weights,
                        ), wanted,
                    ),
                )  # fmt: skip


def _recomputes(wanted: Request, split: Split) -> Iterator[tuple[Choice, int]]:
    pinned, offload = wanted.pins.words.get("recompute"), wanted.pins.switch("activation_offload")
    assert pinned in (None, "none")
    for modules in policies(wanted.limits, wanted.precision):
        if pinned == "none" and modules:
            continue
        yield Choice(modules), 0
        if wanted.limits.activation_offload and offload is not False and modules != WHOLE.modules:
            yield Choice(modules, offloaded(wanted.model)), 0
    if wanted.limits.block_recompute and pinned is None:
        for layers in range(1, split.longest_chunk):
            yield WHOLE, layers


def _weights(wanted: Request, scheme: Scheme) -> dict[str, float]:
    """FLOPs of each kind of block, by which uneven splits are balanced."""
    return block_flops(derived(wanted.model, wanted.framework.implementation, scheme), constants(wanted))


class Unpruned(Incumbents):
    """Incumbents that no candidate must beat."""

    @property
    def worst_s(self) -> float:  # type: ignore[override]
        return float("inf")

    @worst_s.setter
    def worst_s(self, value: float) -> None: ...


def unpruned(model: ModelDescriptor, cluster: ClusterDescriptor, asked: Job, top: int) -> Incumbents:
    """Return the incumbents of a search that prunes nothing by its bounds."""
    with patch("symconfig.solve.run.Incumbents", Unpruned):
        return weigh_all(model, cluster, asked, top)
