"""The experts' all-to-all beside another microbatch (Megatron-LM, --overlap-moe-expert-parallel-comm): who can ask."""

from __future__ import annotations

from dataclasses import replace

from symconfig.frameworks.constraint import Constraint, failing
from symconfig.frameworks.megatron.behaviour import beside_another
from symconfig.plans.columns import Columns
from symconfig.solve.limits import Limits
from symconfig.solve.space import Request

PIN = "moe_overlap"


def lacking(request: Request) -> Constraint | None:
    """Return what keeps the target from the overlap at all degrees; None where nothing does."""
    limits = request.limits
    return next(iter(failing(limits.table, limits.fixed, Columns(moe_overlap=True))), None)


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
