"""A configuration: what somebody runs, or a plan asks for, in the terms of the costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from symconfig.cost.framework import Framework
from symconfig.cost.stages import Offload
from symconfig.descriptor.job import Backend, Packing
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.scheme import CpComm
from symconfig.plans.choices import Precision, ZeroStage
from symconfig.plans.degrees import Degrees
from symconfig.plans.plan import Batch, Candidate, Options, Target
from symconfig.solve.pieces import WHOLE

_NOTHING = Offload()


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A configuration of a training run. framework: its cost model, usually a known one with `dataclasses.replace`.

    modules: recomputed ones ({"layer"}: full recompute); block_layers: full recompute of that many first layers of
    every virtual stage only. offload: what is kept in host memory. ends_as_layers: numbers of layers that embedding and
    loss count as. natural_routing: routers are not forced to balance.
    """

    degrees: Degrees
    micro: int
    global_batch: int
    seq_length: int
    precision: Precision = "bf16"
    sequence_parallel: bool = False
    cp_comm: CpComm = "p2p"
    modules: frozenset[str] = frozenset()
    block_layers: int = 0
    zero: ZeroStage = 0
    framework: Framework = MEGATRON
    natural_routing: bool = False
    ends_as_layers: tuple[int, int] = (0, 0)
    packing: Packing | None = None
    layout: str = ""  # pipeline layout string as for --pipeline-model-parallel-layout
    activation_offload: bool = False  # Megatron's fine-grained offloading, of symconfig's choice of modules
    first_layers: int | None = None  # number of layers on the first stage, if other than on the rest
    last_layers: int | None = None
    backend: Backend = "megatron"
    version: str | None = None  # None: the one that symconfig writes for
    uniform_layers: int = 1  # full recompute, method uniform: layers per recomputed group
    offload: Offload = _NOTHING

    @classmethod
    def of(cls, candidate: Candidate, framework: Framework) -> Self:
        """Return the configuration of a plan's candidate. framework: its cost model, with the candidate's options."""
        return cls.with_options(candidate.target, candidate.parallel, candidate.batch, candidate.options, framework)

    @classmethod
    def with_options(
        cls, target: Target, degrees: Degrees, batch: Batch, options: Options, framework: Framework
    ) -> Self:
        """Return the configuration with these degrees, batch and options.

        framework: its cost model, with the same options. Of full recompute, num_layers is `block_layers` with method
        block and `uniform_layers` (at least 1) with method uniform; of selective recompute it is ignored. cp_comm None
        becomes p2p. The result has no packing, and routers that are forced to balance.
        """
        o = options
        full = o.recompute.granularity == "full"
        given = (o.recompute.num_layers or 0) if full else 0
        return cls(
            degrees=degrees,
            micro=batch.micro,
            global_batch=batch.global_,
            seq_length=batch.seq_length,
            precision=o.precision,
            sequence_parallel=o.sequence_parallel,
            cp_comm=o.cp_comm or "p2p",
            modules=WHOLE.modules if full else frozenset(o.recompute.modules),
            block_layers=given if o.recompute.method == "block" else 0,
            zero=o.zero_stage,
            framework=framework,
            ends_as_layers=(int(o.account_for_embedding), int(o.account_for_loss)),
            layout=o.pipeline_layout or "",
            activation_offload=o.activation_offload,
            first_layers=o.first_stage_layers,
            last_layers=o.last_stage_layers,
            backend=target.backend,
            version=target.version,
            uniform_layers=max(given, 1) if o.recompute.method == "uniform" else 1,
            offload=Offload(o.optimizer_offload, o.param_offload),
        )
