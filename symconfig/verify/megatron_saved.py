"""What a stage keeps for the backward: symconfig's tensors beside those that autograd saved in Megatron's modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symconfig.cost.blocks import BlockCost
from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.table import Choice
from symconfig.descriptor.layers import NO_MIXER
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import SymconfigError
from symconfig.format import count, seconds
from symconfig.graph.block import Place
from symconfig.graph.parts import is_layer, place_of
from symconfig.graph.recompute import Policy, apply
from symconfig.plans.plan import Plan
from symconfig.solve.costed import begins, costed
from symconfig.solve.pieces import WHOLE
from symconfig.units import MIB
from symconfig.verify import megatron_rank
from symconfig.verify.checks import Check, Compared
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.rank_states import stage_of, with_local_layers

TASK = "trace"
DISPATCHER = "alltoall"
TOLERANCE = 0.02  # of a stage, and of its layers of one kind

# What the multi-token-prediction block hands to the model's own output layer and loss, which keep it.
MTP, LEAVES_MTP = "mtp", ("mtp_final_norm", "logits", "logits_fp32")

Key = tuple[int, bool, int]  # chunk, whether of multi-token prediction instead of the decoder, number of the layer


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor on one rank. chunk: index within the stage, in model order. block: kind of layer.

    layer: index from 0 among the chunk's transformer (or multi-token-prediction) layers; None for the ends.
    """

    chunk: int
    layer: int | None
    block: str
    tensor: str
    bytes: float


def saved(plan: Plan, stage: int) -> tuple[SavedTensor, ...]:
    """Return the tensors that one microbatch keeps for the backward on each chunk of the stage, as symconfig predicts.

    The layers are Megatron-LM's own, not Transformer Engine's. Raises SymconfigError if the plan cannot be costed.
    """
    point = with_local_layers(plan)
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


def _kept(block: BlockCost, policy: Policy, chunk: int, layer: int | None) -> Iterator[SavedTensor]:
    for held, size, stays, moved in zip(
        block.derived.held, block.held_bytes, policy.kept, policy.offloaded, strict=True
    ):
        if stays and not moved:
            yield SavedTensor(chunk, layer, block.derived.name, held.tensor, float(size[0]))


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of a stage that keep the same tensors in the plan, or (0 layers) what belongs to no layer."""

    name: str
    layers: int
    ours_bytes: float
    real_bytes: float

    @property
    def compared(self) -> Compared:
        layers = f", {count(self.layers)} layer{'s' if self.layers > 1 else ''}" if self.layers else ""
        return Compared(f"{self.name}{layers}", self.ours_bytes, self.real_bytes, "bytes")


def foreign(model: ModelDescriptor) -> str | None:
    """Return why Megatron's own layers of a model keep other tensors on a CPU, or None if they keep the same."""
    if model.indexer is not None:
        return "kernels of sparse attention are of other packages, and what PyTorch does in their place keeps scores"
    if any(mixer.block != NO_MIXER for mixer in model.mixers):
        return "scans are kernels of other packages, and what PyTorch does in their place keeps every step"
    return None


def unfit(plan: Plan) -> str | None:
    """Return why Megatron's own layers cannot replace the plan's in a trace, or None if they can."""
    options = plan.best.options
    if (reason := foreign(plan.model)) is not None:
        return reason
    if options.precision in LOW_PRECISION:
        return f"Megatron's own layers have no {options.precision}"
    if options.moe_dispatcher not in (None, DISPATCHER):
        return (
            f"how many tokens an expert gets is stood in for in the dispatcher {DISPATCHER} only, not in "
            f"{options.moe_dispatcher}"
        )
    return None


def jobs(job: Job, plan: Plan) -> list[Job]:
    """Return a trace job for each rank that would be built; none if `unfit`."""
    if unfit(plan) is not None:
        return []
    return [replace(job, id=f"{job.id}{TASK} {rank}", rank=rank, task=TASK) for rank in megatron_rank.ranks(plan)]


def checks(plan: Plan, jobs: Sequence[Job], results: Mapping[str, Result], place: str, file: str) -> Iterator[Check]:
    """Yield a check for each traced rank with predicted and kept bytes, or one skipped check if `unfit`."""
    if (reason := unfit(plan)) is not None:
        yield Check(f"{place}: kept for the backward", "skipped", reason, 0.0)
    for job in jobs:
        result, stage = results[job.id], stage_of(plan.best.parallel, job.rank)
        name = f"{place}: rank {job.rank}, stage {stage}, kept for the backward"
        if not result.ok:
            yield Check(name, "failed", f"{file}: {result.error}", result.seconds)
            continue
        try:
            ours = saved(plan, stage)
        except SymconfigError as error:
            yield Check(name, "failed", " ".join(map(str, error.problems)), result.seconds)
            continue
        compared_groups = groups(ours, result.rank["saved"])
        wrong = list(problems(compared_groups))
        yield Check(
            name,
            "failed" if wrong else "passed",
            " ".join(wrong) or _passed(plan, compared_groups, result.rank),
            result.seconds,
            (*(group.compared for group in compared_groups), whole(compared_groups)),
        )


def _passed(plan: Plan, layers: Sequence[Group], real: Mapping[str, Any]) -> str:
    """Return the detail of a passed check: bytes, their relative difference, caveats, time and memory."""
    row = whole(layers)
    parts = [
        f"{count(row.real / MIB)} MiB of one microbatch of every chunk with Megatron's own layers, symconfig "
        f"{difference(row)}"
    ]
    if plan.best.parallel.cp > 1:
        parts.append("its attention takes each rank's part of a sequence for a whole one, on both sides")
    if plan.best.options.activation_offload:
        parts.append("those layers offload nothing, and so does symconfig here")
    if real["shared_bytes"]:
        parts.append(f"{count(real['shared_bytes'] / MIB)} MiB of positions are held once for all microbatches")
    parts.append(f"traced in {seconds(real['seconds'])} s with {count(real['max_rss_bytes'] / MIB)} MiB")
    return "; ".join(parts)


def difference(row: Compared) -> str:
    return f"{100 * row.difference:+.2f} %" if row.real else "without anything to compare"


def whole(layers: Sequence[Group]) -> Compared:
    ours, real = (sum(getattr(group, side) for group in layers) for side in ("ours_bytes", "real_bytes"))
    return Compared("all of the stage", ours, real, "bytes")


def problems(layers: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for each kind of layer, and the whole stage, whose bytes differ by more than TOLERANCE."""
    for row in (*(group.compared for group in layers if group.layers), whole(layers)):
        if abs(row.ours - row.real) > TOLERANCE * row.real:
            yield (
                f"{row.what}: symconfig has {count(row.ours)} bytes, Megatron keeps {count(row.real)} "
                f"({difference(row)})."
            )


def groups(ours: Sequence[SavedTensor], real: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Return layers grouped by equal predicted tensors, in order, with predicted and kept bytes.

    Tensors outside all layers form the last group, with 0 layers, if there are any. Shared storages do not count.
    """
    mine: dict[Key | None, list[tuple[str, float]]] = defaultdict(list)
    kinds: dict[Key | None, str] = {}
    for item in ours:
        key = _planned(item)
        kinds[key] = item.block if key else ", ".join(dict.fromkeys((*kinds.get(None, "").split(", "), item.block)))
        mine[key].append((item.tensor, item.bytes))
    theirs: dict[Key | None, float] = defaultdict(float)
    for record in real:
        if not record["shared"]:
            theirs[_place(record)] += record["bytes"]
    alike: dict[tuple[str, tuple[tuple[str, float], ...]], list[Key]] = defaultdict(list)
    for key in sorted({key for key in (*mine, *theirs) if key}):
        alike[kinds.get(key, "nothing"), tuple(mine[key])].append(key)
    by_kind = []
    for (kind, tensors), keys in alike.items():
        # Block recompute leaves several sets of tensors of one kind, which are told apart by their number.
        same = [kept for other, kept in alike if other == kind]
        name = kind if len(same) == 1 else f"{kind} {same.index(tensors) + 1}"
        size = len(keys) * sum(size for _, size in tensors)
        by_kind.append(Group(name, len(keys), size, sum(theirs.get(key, 0.0) for key in keys)))
    ends = sum(size for _, size in mine.get(None, ()))
    if ends or theirs.get(None):
        by_kind.append(Group(kinds.get(None, "").strip(", "), 0, ends, theirs.get(None, 0.0)))
    return by_kind


def _planned(item: SavedTensor) -> Key | None:
    """Return the layer of a predicted tensor, or None if it belongs to no layer."""
    further = item.block == MTP
    if item.layer is None or (item.tensor in LEAVES_MTP if further else not is_layer(item.block)):
        return None
    return item.chunk, further, item.layer


def _place(record: Mapping[str, Any]) -> Key | None:
    """Return the layer of a saved storage, or None if it belongs to no layer."""
    if record["layer"] is None:
        return None
    further = any(record[name].startswith(f"{MTP}.") for name in ("reader", "module"))
    return record["chunk"], further, record["layer"]
