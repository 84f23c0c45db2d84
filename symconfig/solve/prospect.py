"""One candidate of the search: everything that is needed to compute it again in detail."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.machine import Machine
from symconfig.cost.stages import Offload
from symconfig.cost.table import Choice
from symconfig.frameworks.constraint import Constraint, failing
from symconfig.frameworks.extras import Extras
from symconfig.graph.scheme import Scheme
from symconfig.plans.choices import ZeroStage
from symconfig.plans.columns import Columns
from symconfig.plans.degrees import Degrees
from symconfig.solve.space import Request, shared
from symconfig.solve.split import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Prospect:
    """A candidate of the search: all that is needed to price it again in detail."""

    request: Request
    machine: Machine
    scheme: Scheme
    split: Split
    choice: Choice
    zero: ZeroStage
    offload: Offload
    block_layers: int  # > 0: full recompute of the first layers of every virtual stage
    degrees: Degrees
    micro: int
    step_s: float
    device_bytes: float
    score: float
    uniform_layers: int = 1  # full recompute, method uniform: layers per recomputed group

    @property
    def extras(self) -> Extras:
        """Return the options that are on beside the degrees."""
        return self.request.extras

    @property
    def beside_another(self) -> bool:
        """Return whether the experts' all-to-all overlaps with the computation of another microbatch."""
        return self.request.framework.hide.experts > 0

    @property
    def even(self) -> Prospect:
        """Return the candidate with even expert loads; itself if they are even."""
        return replace(self, request=replace(self.request, uneven=False)) if self.request.uneven else self

    def columns(self, copies: int = 1) -> Columns:
        """Return the candidate's columns: tp, cp, ep, etp, dp, micro and num_microbatches as arrays [copies].

        The others are scalars; the interleaving group is pp.
        """
        p = self.degrees
        tp, cp, ep, etp, dp, micro = (
            np.full(copies, number, dtype=np.int64) for number in (p.tp, p.cp, p.ep, p.etp, p.dp, self.micro)
        )
        return replace(
            shared(self.request, self.scheme),
            tp=tp,
            pp=p.pp,
            vpp=p.vpp,
            cp=cp,
            ep=ep,
            etp=etp,
            dp=dp,
            micro=micro,
            num_microbatches=self.request.global_batch // (dp * micro),
            group=p.pp,
        )

    def refused(self) -> tuple[Constraint, ...]:
        """Return the constraints of the target that its degrees and batch violate; empty if it can run."""
        limits = self.request.limits
        return failing(limits.table, limits.fixed, self.columns())

    @property
    def order(self) -> tuple[object, ...]:
        """Return the sort key: score, then degrees, micro-batch, ZeRO stage, offload, recompute, precision and options.

        The lesser is the better, so ties go to smaller degrees and less offload and recompute.
        """
        p = self.degrees
        return (
            self.score,
            p.tp,
            p.pp,
            p.vpp,
            p.cp,
            p.ep,
            p.etp,
            self.micro,
            self.zero,
            self.offload.optimizer,
            len(self.choice.modules),
            sorted(self.choice.modules),
            self.request.precision,
            self.extras.on,
        )
