"""Every tensor that a stage keeps for the backward of one microbatch under a plan.

They are those of the blocks and policies that the cost model sums, so that their sum is its activations and its logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from symconfig.cost.blocks import BlockCost
from symconfig.cost.table import Choice
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.megatron.behaviour import TransformerImpl
from symconfig.graph.block import Place
from symconfig.graph.parts import is_layer, place_of
from symconfig.graph.recompute import Policy, apply
from symconfig.plans.plan import Plan
from symconfig.solve.costed import begins, costed
from symconfig.solve.pieces import WHOLE
from symconfig.solve.prospect import Prospect
from symconfig.solve.restore import restore


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor on one rank.

    chunk: of the stage, in model order. layer: of the chunk's transformer layers (or of its multi-token-prediction
    layers) the how manieth, from 0; None for the ends. block: its kind. operator: what makes it, or "" for what enters
    the block.
    """

    chunk: int
    layer: int | None
    block: str
    tensor: str
    bytes: float
    operator: str


def saved(plan: Plan, stage: int, transformer_impl: TransformerImpl = "transformer_engine") -> tuple[SavedTensor, ...]:
    """Return what one microbatch keeps on every chunk of the stage, without what waits in host memory."""
    point = as_run(plan, transformer_impl)
    blocks = {block.derived.name: block for block in costed(point).table.blocks}
    result: list[SavedTensor] = []
    for index, chunk in enumerate(point.split.stage(stage)):
        layers = dict.fromkeys(("layer", "mtp"), 0)
        for kind, begin in zip(chunk, begins(chunk, point.uniform_layers), strict=True):
            place = "mtp" if kind == "mtp" else "layer"
            layer = None if place_of(kind) in (Place.FIRST, Place.LAST) else layers[place]
            if begin is not None:
                choice = point.choice
                if point.block_layers:
                    choice = WHOLE if is_layer(kind) and layers["layer"] < point.block_layers else Choice()
                policy = apply(blocks[kind].derived, *(choice.modules, choice.offload))
                result.extend(_kept(blocks[kind], policy, index, layer))
            layers[place] += layer is not None
    return tuple(result)


def as_run(plan: Plan, transformer_impl: TransformerImpl) -> Prospect:
    """Return the plan's point of the lattice under Transformer Engine's layers or Megatron's own."""
    point = restore(plan, plan.best)
    framework = usual(plan.best.target.backend, plan.cluster.gpu.architecture, transformer_impl, plan.job.attention)
    if transformer_impl == "local":
        # Drop what Megatron-LM has for Transformer Engine's modules only. It offloads no activations
        # (training/arguments.py, validate_args), and its own attention has no context parallelism
        # (transformer/dot_product_attention.py): each rank's part of a sequence counts as a sequence of its own.
        p = point.degrees
        point = replace(
            point,
            request=replace(point.request, seq_length=point.request.seq_length // p.cp),
            choice=replace(point.choice, offload=frozenset()),
            degrees=replace(p, cp=1, dp=p.dp * p.cp),
        )
    framework = replace(framework, hide=point.request.framework.hide)
    return replace(point, request=replace(point.request, framework=framework))


def _kept(block: BlockCost, policy: Policy, chunk: int, layer: int | None) -> Iterator[SavedTensor]:
    for held, size, stays, moved in zip(
        block.derived.held, block.held_bytes, policy.kept, policy.offloaded, strict=True
    ):
        if stays and not moved:
            yield SavedTensor(chunk, layer, block.derived.name, held.tensor, float(size[0]), held.producer or "")
