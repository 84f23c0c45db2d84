"""The experts' all-to-all beside another microbatch (Megatron-LM, --overlap-moe-expert-parallel-comm): who can ask."""

from __future__ import annotations

from dataclasses import replace

from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.behaviour import beside_another
from symconfig.solve.limits import Limits
from symconfig.solve.space import Request

PIN = "moe_overlap"


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
    return replace(request, framework=beside_another(request.framework, architecture), limits=_limits(request.limits))


def _limits(limits: Limits) -> Limits:
    """Neither experts nor whole layers are recomputed, and a pipeline is interleaved, as far as the table says so."""

    def runs(**facts: object) -> bool:
        return limits.runs(moe_overlap=True, **facts)

    return replace(
        limits,
        moe_overlap=True,
        modules=tuple(name for name in limits.modules if runs(modules=(name,))),
        full_recompute=runs(recompute="full"),
        block_recompute=runs(recompute="full"),
        least_stages=1 if runs(pp=1) else 2,
        least_chunks=1 if runs(pp=2, vpp=1) else 2,
    )
