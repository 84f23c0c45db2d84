"""The experts' all-to-all beside another microbatch (Megatron-LM, --overlap-moe-expert-parallel-comm): who can ask."""

from __future__ import annotations

from dataclasses import replace

from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.behaviour import beside_another
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.solve.limits import Limits
from symconfig.solve.refusals import Refusal
from symconfig.solve.space import Request

# Before this version a multi-token-prediction layer needs pipeline stages; 0.14 and 0.15 do not say so yet.
_MTP_WITHOUT_STAGES = (0, 18)
PIN = "moe_overlap"

# What a search without the overlap has besides (transformer_config.py, __post_init__).
_EXPERT_PARALLEL: Refusal = (
    "expert overlap",
    "hiding the experts' all-to-all needs expert parallelism",
    lambda m, p: p.ep == 1,
)


def lacking(request: Request) -> str | None:
    """What it would take for the target to have the overlap; None where it has it."""
    model = request.model
    backend = BACKENDS[request.job.backend]
    since, releases = backend.expert_overlap_since, backend.releases
    if since is None:
        return " or ".join(each.label for each in BACKENDS.values() if each.expert_overlap_since)
    if releases.minor(request.version) < releases.minor(since):
        return f"{backend.label} {since} or later"
    if model.experts is None:
        return "a model with experts"
    if model.num_nextn_predict_layers > 1:
        return "one multi-token-prediction layer at most"
    return None


def overlapped(request: Request, architecture: str) -> Request:
    """The same request with the overlap, on GPUs of this architecture."""
    return replace(
        request,
        framework=beside_another(request.framework, architecture),
        limits=_limits(request.limits, request.version, bool(request.model.num_nextn_predict_layers)),
    )


def _limits(limits: Limits, version: str, mtp: bool) -> Limits:
    """Neither experts nor whole layers are recomputed, and a pipeline is interleaved."""
    return replace(
        limits,
        modules=tuple(name for name in limits.modules if name != "moe"),
        full_recompute=False,
        block_recompute=False,
        refusals=(_EXPERT_PARALLEL, *limits.refusals),
        least_stages=2 if mtp and megatron_release(version) < _MTP_WITHOUT_STAGES else 1,
        least_chunks=2,
    )
