"""What a stage keeps for the backward: symconfig's tensors beside those that autograd saved in Megatron's modules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.layers import NO_MIXER
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import SymconfigError
from symconfig.format import count, seconds
from symconfig.graph.parts import is_layer
from symconfig.plans.plan import Plan
from symconfig.units import MIB
from symconfig.verify import megatron_rank
from symconfig.verify.checks import Check, Compared
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.states.activations import SavedTensor, saved
from symconfig.verify.states.grid import stage_of

TASK = "trace"
DISPATCHER = "alltoall"
TOLERANCE = 0.02  # of a stage, and of its layers of one kind

# Modules of Megatron's TransformerLayer, and the operators of symconfig whose tensors they make. What is in no
# module, what enters the layer, and what is around the layer that predicts further tokens belongs to the layer itself.
LAYER_ITSELF, NONE, BY_SIZE = "the layer", "nothing", ", by its size"
MODULES: Mapping[str, tuple[str, ...]] = {
    LAYER_ITSELF: (
        "attention_residual",
        "mlp_residual",
        "mtp_hidden_norm",
        "mtp_embedding_norm",
        "mtp_concat",
        "mtp_proj",
        "mtp_gather",
        "mtp_final_norm",
        "lm_head",
        "logits_fp32",
        "cross_entropy",
    ),
    "input_layernorm": ("input_norm",),
    "self_attention": (
        "take_v",
        "take_k",
        "take_q",
        "q_norm",
        "k_norm",
        "rope_q",
        "rope_k",
        "q_down_proj",
        "q_low_norm",
        "q_up_proj",
        "kv_down_proj",
        "kv_low_norm",
        "kv_up_proj",
        "o_proj",
    ),
    "self_attention.linear_qkv": ("qkv_proj",),
    "self_attention.core_attention": (
        "copy_queries",
        "repeat_keys",
        "repeat_values",
        "scores",
        "attention_dropout",
        "context",
        "copy_heads",
    ),
    "self_attention.core_attention.scale_mask_softmax": ("mask_scores", "softmax"),
    "pre_mlp_layernorm": ("mlp_norm",),
    "mlp": ("activation", "dispatch", "combine", "shared_add", "down_proj"),
    "mlp.linear_fc1": ("gate_up_proj", "up_proj"),
    "mlp.router": ("router", "route"),
    "mlp.experts": (
        "expert_gate_clamp",
        "expert_up_clamp",
        "expert_activation",
        "expert_weighting",
        "expert_bias",
        "expert_down_proj",
        "join_experts",
    ),
    "mlp.experts.local_experts.linear_fc1": ("expert_gate_up_proj", "expert_up_proj"),
    "mlp.shared_experts": ("shared_activation", "shared_down_proj", "shared_gate", "shared_scale"),
    "mlp.shared_experts.linear_fc1": ("shared_gate_up_proj", "shared_up_proj"),
}
MODULE_OF = {operator: module for module, operators in MODULES.items() for operator in operators}
# What the multi-token-prediction block hands to the model's own output layer and loss, which keep it.
MTP, LEAVES_MTP = "mtp", ("mtp_final_norm", "logits", "logits_fp32")
WITHIN = re.compile(r"^(?:decoder|mtp)\.layers\.\d+\.?(?:mtp_model_layer\.?)?")
EXPERT = re.compile(r"\.local_experts\.\d+")

Key = tuple[int, bool, int]  # chunk, whether of multi-token prediction instead of the decoder, the how manieth layer


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of either side. place: the module of Megatron's layer that makes it; name: as its side calls it."""

    place: str
    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of a stage that keep the same tensors, or what is no layer. ours, real: of the first of them."""

    name: str
    layers: int
    ours: tuple[Tensor, ...]
    real: tuple[Tensor, ...]
    ours_bytes: float
    real_bytes: float

    @property
    def title(self) -> str:
        return f"{self.name}, {count(self.layers)} layer{'s' if self.layers > 1 else ''}" if self.layers else self.name

    @property
    def compared(self) -> Compared:
        return Compared(self.title, self.ours_bytes, self.real_bytes, "bytes")


def foreign(model: ModelDescriptor) -> str | None:
    """Say why Megatron's own layers of a model keep something else on a CPU; None: they keep the same."""
    if model.indexer is not None:
        return "kernels of sparse attention are of other packages, and what PyTorch does in their place keeps scores"
    if any(mixer.block != NO_MIXER for mixer in model.mixers):
        return "scans are kernels of other packages, and what PyTorch does in their place keeps every step"
    return None


def unfit(plan: Plan) -> str | None:
    """Say why Megatron's own layers cannot stand in for the plan's."""
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
    """Return one job for each rank that is built, to be traced; none if that cannot be compared."""
    if unfit(plan) is not None:
        return []
    return [replace(job, id=f"{job.id}{TASK} {rank}", rank=rank, task=TASK) for rank in megatron_rank.ranks(plan)]


def checks(plan: Plan, jobs: Sequence[Job], results: Mapping[str, Result], place: str, file: str) -> Iterator[Check]:
    """Check each rank; the tensors of a kind of layer are listed once, where it comes first."""
    if (reason := unfit(plan)) is not None:
        yield Check(f"{place}: kept for the backward", "skipped", reason, 0.0)
    shown: set[str] = set()
    for job in jobs:
        result, stage = results[job.id], stage_of(plan.best.parallel, job.rank)
        name = f"{place}: rank {job.rank}, stage {stage}, kept for the backward"
        if not result.ok:
            yield Check(name, "failed", f"{file}: {result.error}", result.seconds)
            continue
        try:
            ours = saved(plan, stage, "local")
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
            tuple(compared(compared_groups, shown)),
        )
        shown |= {group.name for group in compared_groups}


def _passed(plan: Plan, layers: Sequence[Group], real: Mapping[str, Any]) -> str:
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
    """Yield the kinds of layers, and the whole stage, that differ by more than the tolerance."""
    for row in (*(group.compared for group in layers if group.layers), whole(layers)):
        if abs(row.ours - row.real) > TOLERANCE * row.real:
            yield (
                f"{row.what}: symconfig has {count(row.ours)} bytes, Megatron keeps {count(row.real)} "
                f"({difference(row)})."
            )


def compared(layers: Sequence[Group], shown: set[str]) -> Iterator[Compared]:
    """Yield the totals of every group behind the tensors of those that have not been shown."""
    for group in layers:
        if group.name not in shown:
            for what, ours, real in pairs(group.ours, group.real):
                yield Compared(f"{group.name}: {what}", ours, real, "bytes")
        yield group.compared
    yield whole(layers)


def groups(ours: Sequence[SavedTensor], real: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Group layers whose lists of symconfig's tensors are the same, in order; behind them what belongs to no layer."""
    mine: dict[Key | None, list[Tensor]] = defaultdict(list)
    kinds: dict[Key | None, str] = {}
    for item in ours:
        key = _planned(item)
        kinds[key] = item.block if key else ", ".join(dict.fromkeys((*kinds.get(None, "").split(", "), item.block)))
        mine[key].append(Tensor(MODULE_OF.get(item.operator, LAYER_ITSELF), item.tensor, item.bytes))
    theirs: dict[Key | None, list[Tensor]] = defaultdict(list)
    for record in real:
        if not record["shared"]:
            theirs[_place(record)].append(_tensor(record))
    alike: dict[tuple[str, tuple[Tensor, ...]], list[Key]] = defaultdict(list)
    for key in sorted({key for key in (*mine, *theirs) if key}):
        alike[kinds.get(key, "nothing"), tuple(mine[key])].append(key)
    made = [
        _group(_named(kind, place, alike), keys, mine, theirs) for place, ((kind, _), keys) in enumerate(alike.items())
    ]
    ends = _group(kinds.get(None, "").strip(", "), [None], mine, theirs)
    return [*made, replace(ends, layers=0)] if ends.ours or ends.real else made


def _named(kind: str, place: int, alike: Mapping[tuple[str, tuple[Tensor, ...]], Any]) -> str:
    """Name one of several sets of tensors of one kind, as block recompute leaves them, by its number."""
    same = [index for index, (other, _) in enumerate(alike) if other == kind]
    return kind if len(same) == 1 else f"{kind} {same.index(place) + 1}"


def _group(
    name: str,
    keys: Sequence[Key | None],
    mine: Mapping[Key | None, list[Tensor]],
    theirs: Mapping[Key | None, list[Tensor]],
) -> Group:
    first = keys[0]
    return Group(
        name,
        len(keys),
        tuple(mine.get(first, ())),
        tuple(theirs.get(first, ())),
        *(sum(tensor.bytes for key in keys for tensor in side.get(key, ())) for side in (mine, theirs)),
    )


def _planned(item: SavedTensor) -> Key | None:
    """Return the place of a tensor of symconfig's; None for what belongs to no layer."""
    further = item.block == MTP
    if item.layer is None or (item.tensor in LEAVES_MTP if further else not is_layer(item.block)):
        return None
    return item.chunk, further, item.layer


def _place(record: Mapping[str, Any]) -> Key | None:
    """Return the place of a saved storage; None for what belongs to no layer."""
    if record["layer"] is None:
        return None
    further = any(record[name].startswith(f"{MTP}.") for name in ("reader", "module"))
    return record["chunk"], further, record["layer"]


def _tensor(record: Mapping[str, Any]) -> Tensor:
    within = WITHIN.sub("", record["module"])
    name = EXPERT.sub(".local_experts", within)
    places = [module for module in MODULES if name == module or name.startswith(module + ".")]
    entered = f"layers.{record['layer']}" not in record["module"]
    return Tensor(
        LAYER_ITSELF if entered or not places else max(places, key=len),
        f"{name or record['module']} {record['op'].split('.')[1] if '.' in record['op'] else ''}".strip(),
        record["bytes"],
    )


def pairs(ours: Sequence[Tensor], real: Sequence[Tensor]) -> Iterator[tuple[str, float, float]]:
    """Pair tensors of one module and one size, then those of one size, which is noted.

    What is left of a module is compared as a sum (parts of one storage that symconfig counts apart, a few bytes that it
    does not have).
    """
    places = dict.fromkeys(tensor.place for tensor in (*ours, *real))
    left = {place: _merged([tensor for tensor in real if tensor.place == place]) for place in places}
    rest: dict[str, list[Tensor]] = {place: [] for place in places}
    strays = []
    for tensor in ours:
        if (match := _of_size(tensor.bytes, left[tensor.place])) is not None:
            by = BY_SIZE if tensor.place == LAYER_ITSELF else ""  # many modules' are there
            yield f"{tensor.name} = {match}{by}", tensor.bytes, left[tensor.place].pop(match)
        else:
            strays.append(tensor)
    for tensor in strays:
        for others in left.values():
            if (match := _of_size(tensor.bytes, others)) is not None:
                yield f"{tensor.name} = {match}{BY_SIZE}", tensor.bytes, others.pop(match)
                break
        else:
            rest[tensor.place].append(tensor)
    for place in places:
        if rest[place] or left[place]:
            yield (
                f"{' + '.join(tensor.name for tensor in rest[place]) or NONE} = {' + '.join(left[place]) or NONE}",
                sum(tensor.bytes for tensor in rest[place]),
                sum(left[place].values()),
            )


def _of_size(size: float, tensors: Mapping[str, float]) -> str | None:
    return next((name for name, other in tensors.items() if other == size), None)


def _merged(tensors: Sequence[Tensor]) -> dict[str, float]:
    """Merge tensors by name; those of a rank's experts are one, those that share a name otherwise are numbered."""
    sizes: dict[str, float] = {}
    for tensor in tensors:
        name = tensor.name
        if "local_experts" in name:
            sizes[name] = sizes.get(name, 0.0) + tensor.bytes
            continue
        while name in sizes:
            head, _, number = name.rpartition(" #")
            name = f"{head or tensor.name} #{int(number) + 1 if head else 2}"
        sizes[name] = tensor.bytes
    return sizes
