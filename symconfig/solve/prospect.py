"""One configuration with all that prices it: a candidate of the search (`Prospect`), or one that is given (`Setup`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from symconfig.cost.framework import Framework
from symconfig.cost.machine import Machine
from symconfig.cost.stages import Offload
from symconfig.cost.table import Choice
from symconfig.descriptor.job import Backend, Packing
from symconfig.format import picked
from symconfig.frameworks.constraint import Constraint, failing
from symconfig.frameworks.extras import NAMES, on
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.block import LAYER
from symconfig.graph.scheme import Scheme
from symconfig.plans.configuration import DEGREES, FIELDS, Configuration
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.plans.plan import Candidate
from symconfig.schedule.timeline import Start
from symconfig.solve.limits import offloaded
from symconfig.solve.space import Request, shared
from symconfig.solve.split import SAID_BY, Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Prospect:
    """A candidate of the search: its configuration, and what prices it again in detail.

    split: the layers of its stages, as the configuration has them.
    """

    request: Request
    machine: Machine
    scheme: Scheme
    split: Split
    configuration: Configuration
    step_s: float = 0.0
    device_bytes: float = 0.0
    score: float = 0.0

    @property
    def choice(self) -> Choice:
        """Return the recomputed modules ({"layer"}: full), and the operators whose activations are offloaded."""
        c = self.configuration
        modules = frozenset({LAYER}) if c.recompute == "full" else frozenset(c.recompute_modules)
        return Choice(modules, offloaded(self.request.model) if c.activation_offload else frozenset())

    @property
    def offload(self) -> Offload:
        return Offload(self.configuration.optimizer_offload, self.configuration.param_offload)

    @property
    def block_layers(self) -> int:
        """Return how many first layers of every virtual stage alone are recomputed in full; 0: it is not so."""
        return self.configuration.recompute_layers if self.configuration.recompute_method == "block" else 0

    @property
    def uniform_layers(self) -> int:
        """Return the layers of a group that is recomputed together."""
        return self.configuration.recompute_layers if self.configuration.recompute_method == "uniform" else 1

    def having(self, *, split: Split | None = None, **fields: Any) -> Prospect:
        """Return a copy with these fields of its configuration, and those that a split decides, replaced."""
        of_split = {} if split is None else picked(split, *SAID_BY)
        return replace(self, split=split or self.split, configuration=replace(self.configuration, **of_split | fields))

    def cut(self, split: Split, first: int) -> Prospect:
        """Return a copy with the chunks of `split` and, if it recomputes first layers, the first `first` of each chunk.

        For 0 layers it recomputes none, for the longest chunk's all. Other policies stay.
        """
        recomputed = dict[str, Any]()
        if self.block_layers:
            policy = self.choice if first else Choice()
            recomputed = recomputing(policy, first if first < split.longest_chunk else 0)
        return self.having(split=split, vpp=split.vpp, **recomputed)

    @property
    def beside_another(self) -> bool:
        """Return whether the experts' all-to-all overlaps with the computation of another microbatch."""
        return self.request.framework.hide.experts > 0

    @property
    def even(self) -> Prospect:
        """Return the candidate with even expert loads; itself if they are even."""
        return replace(self, request=replace(self.request, uneven=False)) if self.request.uneven else self

    def columns(self, copies: int = 1) -> ConfigurationSet:
        """Return the candidate as columns: tp, cp, ep, etp, dp, micro and num_microbatches as arrays, [copies].

        pp, vpp, and what all points of its scheme share (`shared`) are scalars; `group`, the interleaving group, is pp.
        """
        p, names = self.configuration, ("tp", "cp", "ep", "etp", "dp", "micro")
        point = {name: np.full(copies, getattr(p, name), dtype=np.int64) for name in names}
        turns = self.request.global_batch // (point["dp"] * point["micro"])
        return shared(self.request, self.scheme).having(point, pp=p.pp, vpp=p.vpp, num_microbatches=turns, group=p.pp)

    def refused(self) -> tuple[Constraint, ...]:
        """Return the constraints of the target that its degrees and batch violate; empty if it can run."""
        limits = self.request.limits
        return failing(limits.table, limits.fixed, self.columns())

    @property
    def order(self) -> tuple[object, ...]:
        """Return the sort key: score, then degrees, micro-batch, ZeRO stage, offload, recompute, precision and options.

        The lesser is the better, so ties go to smaller degrees and less offload and recompute.
        """
        c, modules = self.configuration, self.choice.modules
        return (
            self.score,
            *(getattr(c, name) for name in DEGREES),
            c.micro,
            c.zero_stage,
            c.optimizer_offload,
            len(modules),
            sorted(modules),
            c.precision,
            on(self.request.configuration),
        )


def recomputing(choice: Choice, block_layers: int = 0) -> dict[str, Any]:
    """Return the fields of a `Configuration` that a recompute policy sets, activation_offload included.

    Full recompute: method uniform, layers 1; selective, of recompute_modules, and none: no method, layers 1.
    block_layers > 0: full recompute, by method block, of so many first layers of each virtual stage, whatever the
    modules of `choice`.
    """
    full = LAYER in choice.modules
    return {
        "recompute": "full" if full or block_layers else "selective" if choice.modules else "none",
        "recompute_modules": () if full or block_layers else tuple(sorted(choice.modules)),
        "recompute_method": "block" if block_layers else "uniform" if full else None,
        "recompute_layers": block_layers or 1,
        "activation_offload": bool(choice.offload),
    }


_SAME = [name for name in NAMES if name not in ("overlap_tp_comm", "moe_flex_backend")]


def effective(c: Configuration, request: Request) -> Configuration:
    """Return the configuration with what follows from its degrees, the request's options (EXTRAS) and the framework.

    Gradient reduction is overlapped if dp x cp > 1, whatever `c` says; the parameter gather then too, with ZeRO,
    without a pipeline or with vpp > 1, unless the framework gathers separately (Start.APART). Sends between stages are
    overlapped, in groups of pp microbatches, if vpp > 1. EXTRAS are the request's, but user buffers only with tp > 1
    and a dispatcher only with experts; cp_comm is p2p at cp 1; all else is as in `c`.
    """
    options, experts, replicated = request.configuration, request.model.experts is not None, c.dp * c.cp > 1
    return replace(
        c,
        cp_comm=c.cp_comm if c.cp > 1 else "p2p",
        overlap_grad_reduce=replicated,
        # In a pipeline without interleaving it would serialise the stages' gathers (`Framework`).
        overlap_param_gather=replicated
        and c.zero_stage >= 1
        and (c.pp == 1 or c.vpp > 1)
        and request.framework.gathers is not Start.APART,
        overlap_tp_comm=options.overlap_tp_comm and c.tp > 1,
        overlap_pp_p2p=c.pp > 1 and c.vpp > 1,
        **picked(options, *_SAME),
        microbatch_group_size=c.pp if c.vpp > 1 else None,
        moe_dispatcher=("flex" if options.moe_flex_backend else "alltoall") if experts else None,
        moe_flex_backend=options.moe_flex_backend if experts else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup(Configuration):
    """A configuration of a training run. framework: its cost model, usually a known one with `dataclasses.replace`.

    natural_routing: routers are not forced to balance. version: None: the one that symconfig writes for.
    """

    framework: Framework = MEGATRON
    natural_routing: bool = False
    packing: Packing | None = None
    backend: Backend = "megatron"
    version: str | None = None

    @classmethod
    def of(cls, candidate: Candidate, framework: Framework, **more: Any) -> Self:
        """Return a candidate's configuration with its framework's behaviour, and further fields, which win."""
        target = picked(candidate.target, "backend", "version")
        return cls(**picked(candidate.configuration, *FIELDS) | target | {"framework": framework} | more)

    @property
    def plain(self) -> Configuration:
        """Return the configuration alone."""
        return Configuration(**picked(self, *FIELDS))
