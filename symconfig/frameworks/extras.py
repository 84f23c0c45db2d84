"""What a plan may switch on beside its degrees: kernels and overlaps that a framework has and leaves off by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from symconfig.cost.framework import Framework
from symconfig.format import picked
from symconfig.frameworks.behaviour import Switches, switched
from symconfig.frameworks.kernels import DISPATCHERS
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.frameworks.megatron.behaviour import GRAPHED, Graphed
from symconfig.graph.implementation import Dispatch, LossKernel
from symconfig.plans.options import EXTRAS
from symconfig.plans.plan import Candidate

FlexBackend = Literal["deepep", "hybridep"]
_FLEX: dict[Dispatch, FlexBackend] = {DISPATCHERS["deepep"]: "deepep", DISPATCHERS["hybridep"]: "hybridep"}
_GRAPHS: dict[Graphed, str] = {
    "none": "",
    "router": "CUDA graphs of the router",
    "outside experts": "CUDA graphs outside experts",
    "all": "CUDA graphs",
}
_SCOPES: dict[Any, Graphed] = {legs: scope for scope, legs in GRAPHED.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Extras:
    """overlap_moe_a2a: the experts' all-to-all beside another microbatch. overlap_tp_comm: user buffers. moe_flex_backend: whose
    kernels carry the experts' tokens, nothing for NCCL's. cuda_graphs: what CUDA graphs replay of a layer. grad_bytes: of an
    element as gradients are added up and reduced. fp8_param_gather: weights are kept in 8 bits. fused_loss: one kernel.
    instances: groups of ranks that each have all parts of what ZeRO cuts, where a plan may have several.
    """

    overlap_moe_a2a: bool = False
    overlap_tp_comm: bool = False
    moe_flex_backend: FlexBackend | None = None
    cuda_graphs: Graphed = "none"
    grad_bytes: int = 4
    fp8_param_gather: bool = False
    fused_loss: bool = False
    instances: int = 1

    @classmethod
    def of(cls, framework: Framework) -> Extras:
        """Return which extras a framework has on; those that its plans cannot have are at their default (`within`).

        Graphs that are no scope of plans count as none.
        """
        how = framework.implementation
        every = cls(
            overlap_moe_a2a=framework.hide.experts > 0,
            overlap_tp_comm=framework.hide.tp_pieces > 1,
            moe_flex_backend=_FLEX.get(how.experts.dispatch),
            cuda_graphs=_SCOPES.get(framework.graphed, "none"),
            grad_bytes=_gradient_bytes(framework),
            fp8_param_gather=framework.quantised_weights,
            fused_loss=how.loss.kernel is LossKernel.IN_PLACE,
            instances=framework.optimizer_instances,
        )
        return every.within(framework)

    @classmethod
    def planned(cls, candidate: Candidate) -> Self:
        """Return which extras a candidate has on; those that its degrees leave without effect are off.

        Overlap needs ep > 1, user buffers tp > 1 and sequence parallelism, other dispatchers ep x etp > 1.
        """
        c = candidate.configuration
        return replace(
            cls(**picked(c, *(one.name for one in EXTRAS))),
            overlap_moe_a2a=c.overlap_moe_a2a and c.ep > 1,
            overlap_tp_comm=c.overlap_tp_comm and c.tp > 1 and c.sequence_parallel,
            moe_flex_backend=c.moe_flex_backend if c.ep * c.etp > 1 else None,
        )

    def within(self, framework: Framework) -> Extras:
        """Return a copy in which extras that the framework's plans cannot have are at their default.

        grad_bytes is then the framework's own.
        """
        own = replace(NOTHING_ON, grad_bytes=_gradient_bytes(framework))
        return replace(own, **picked(self, *(one.name for one in EXTRAS if framework.name in one.of)))

    @property
    def columns(self) -> dict[str, Any]:
        """Return the extras by the names of `Columns`, with `moe_dispatcher` as moe_flex_backend implies it."""
        named = {name: getattr(self, name) for name in _USUAL}
        return {**named, "moe_dispatcher": "flex" if self.moe_flex_backend else "alltoall"}

    @property
    def on(self) -> tuple[str, ...]:
        """Return the names of the extras that differ from their default."""
        return tuple([name for name in self.__slots__ if getattr(self, name) != _USUAL[name]])

    @property
    def words(self) -> tuple[str, ...]:
        """Return the extras that are on in words, as tables show them; without the gradients' width."""
        named = {
            f"{self.moe_flex_backend} dispatch": bool(self.moe_flex_backend),
            "all-to-all overlapped": self.overlap_moe_a2a,
            "user buffers": self.overlap_tp_comm,
            _GRAPHS[self.cuda_graphs]: self.cuda_graphs != "none",
            "8-bit weights": self.fp8_param_gather,
            "fused loss": self.fused_loss,
            f"{self.instances} groups of shards": self.instances > 1,
        }
        return tuple([name for name, on in named.items() if on])

    def put_on(self, framework: Framework, architecture: str) -> Framework:
        """Return the framework with these extras and no others on, on GPUs of this architecture.

        Overlap over tp, cp and experts is first reset to the framework's usual; dispatcher, loss and graphs are set
        only where they differ from what it has, gradient width and instances only where its plans may have them.
        """
        now = Extras.of(framework)
        usual = FRAMEWORKS[framework.name]
        hide = replace(
            framework.hide,
            tp_forward=usual.hide.tp_forward,
            tp_backward=usual.hide.tp_backward,
            tp_pieces=usual.hide.tp_pieces,
            cp_forward=usual.hide.cp_forward,
            cp_backward=usual.hide.cp_backward,
            experts=0.0,
        )
        how: dict[str, Any] = {}
        if now.moe_flex_backend != self.moe_flex_backend:
            how["dispatcher"] = self.moe_flex_backend or "alltoall"
        if now.fused_loss != self.fused_loss:
            how["loss"] = "fused" if self.fused_loss else "parallel"
        able = [one.name for one in EXTRAS if framework.name in one.of]
        given: dict[str, Any] = {"quantised_weights": self.fp8_param_gather}
        if "instances" in able:
            given["optimizer_instances"] = self.instances
        if now.cuda_graphs != self.cuda_graphs:
            given["graphed"] = GRAPHED[self.cuda_graphs]
        switches = Switches(
            implementation=how,
            bytes={"gradient": float(self.grad_bytes)} if "grad_bytes" in able else {},
            framework=given,
            cuts_products=self.overlap_tp_comm,
            pairs_microbatches=self.overlap_moe_a2a,
        )
        return switched(replace(framework, hide=hide), architecture, switches)


def _gradient_bytes(framework: Framework) -> int:
    """Return the bytes of a gradient's element as it is accumulated over microbatches."""
    return int(framework.shard_bytes or framework.bytes.gradient)


NOTHING_ON = Extras()
_USUAL: dict[str, Any] = {one.name: one.usual for one in EXTRAS}
