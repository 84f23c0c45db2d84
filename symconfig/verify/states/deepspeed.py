"""Exact bytes of parameters, gradients and optimizer state that each rank holds under DeepSpeed, for a DeepSpeed JSON.

What the engine of DeepSpeed 0.19.8 allocates for train.py: bf16 or fp16 parameters, AdamW in fp32. Sizes are those of
the tensors; an allocator rounds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, Final, Literal

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, Problem
from symconfig.verify.states.transformers import registered

HALF, WIDE = 2, 4  # bytes of a bf16 or fp16 and of an fp32 element
ADAM = 3 * WIDE  # the fp32 parameter and its two moments
STEP = 4  # torch's AdamW counts its steps in an fp32 tensor for each of its parameters
EXPERT_GROUP = 178956971  # elements: experts' groups are cut there (deepspeed/moe/utils.py, max_group_size)
ALIGNMENT = 2  # elements: flat groups are padded to a multiple of this and of the ranks (nccl_start_alignment_factor)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on the accelerator and in host memory."""

    device: int = 0
    host: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(self.device + other.device, self.host + other.host)

    @property
    def total(self) -> int:
        return self.device + self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStates:
    """elements, trained: of the parameters on this rank before ZeRO shares them out.

    gradients: when backward is done; kept_gradients: between steps. buffers: for collectives and copies.
    """

    elements: int
    trained: int
    parameters: Held
    optimizer: Held
    gradients: Held
    kept_gradients: Held
    buffers: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the DeepSpeed JSON that decide sizes. `wide`: gradients are accumulated in fp32."""

    stage: int
    bf16: bool
    wide: bool
    accumulates: bool
    offload: float
    offloads_parameters: bool
    round_robin: bool
    overlaps: bool
    bucket: int
    threshold: int
    sub_group: int
    tp: int
    cp: int
    ep: int

    @property
    def sums_on_host(self) -> bool:
        """Tell whether the host adds up the gradients of the microbatches.

        ZeRO-2 sends 16-bit gradients to it when they are there.
        """
        return self.stage == 2 and bool(self.offload) and not self.wide and self.accumulates

    @staticmethod
    def of(config: Mapping[str, Any], world_size: int) -> Settings:
        """Read the settings; what is not there has DeepSpeed's defaults (runtime/zero/config.py)."""
        zero = config.get("zero_optimization", {})
        offload = zero.get("offload_optimizer", {})
        return Settings(
            stage=zero.get("stage", 0),
            bf16=bool(config.get("bf16", {}).get("enabled")),
            wide=config.get("data_types", {}).get("grad_accum_dtype") == "fp32",
            accumulates=_accumulation_steps(config, world_size) > 1,
            offload=offload.get("ratio", 1.0) if offload.get("device", "none") != "none" else 0.0,
            offloads_parameters=zero.get("offload_param", {}).get("device", "none") != "none",
            round_robin=zero.get("round_robin_gradients", False),
            overlaps=zero.get("overlap_comm", zero.get("stage", 0) == 3),
            bucket=zero.get("reduce_bucket_size", 500_000_000),
            threshold=zero.get("stage3_param_persistence_threshold", 100_000),
            sub_group=zero.get("sub_group_size", 1_000_000_000),
            tp=config.get("tensor_parallel", {}).get("autotp_size", 1),
            cp=config.get("sequence_parallel_size", 1),
            ep=config.get("expert_parallel", {}).get("autoep_size", 1),
        )


def _accumulation_steps(config: Mapping[str, Any], world_size: int) -> int:
    """Return the steps given, or what the batch leaves, or one (runtime/config.py, _set_batch_related_parameters)."""
    given = config.get("gradient_accumulation_steps")
    if given is not None:
        return int(given)
    batch, micro = (config.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu"))
    ranks = world_size // config.get("sequence_parallel_size", 1)
    return int(batch // (micro * ranks)) if batch and micro else 1


@dataclass(frozen=True, slots=True)
class Local:
    """A parameter on one rank before ZeRO. made_by: what replaced its layer, "" for Transformers' own."""

    elements: int
    vector: bool
    trained: bool
    made_by: Literal["", "AutoTP", "AutoEP's experts", "AutoEP's router"]


_EXPERTS: Final = "AutoEP's experts"
Group = Sequence[Local]


def rank_states(model: ModelDescriptor, config: Mapping[str, Any], world_size: int, rank: int) -> RankStates:
    """Return the states of one rank, by ds_config.json. Raises InfeasibleError for degrees that do not divide what they
    share, and for QLoRA, whose 4-bit storage is not DeepSpeed's."""
    if model.adapter is not None and model.adapter.method == "qlora":
        raise InfeasibleError("the bytes of 4-bit weights are bitsandbytes' own", field="adapter.method")
    settings = Settings.of(config, world_size)
    _check_degrees(model, settings, world_size)
    mine = local(model, settings, rank)
    groups = optimizer_groups(mine)
    trained = sum(parameter.elements for parameter in mine if parameter.trained)
    elements = sum(parameter.elements for parameter in mine)
    empty = RankStates(
        elements=elements,
        trained=trained,
        parameters=Held(),
        optimizer=Held(),
        gradients=Held(),
        kept_gradients=Held(),
        buffers=Held(),
    )
    if settings.stage == 3:
        return _sharded(empty, mine, groups, settings, world_size)
    frozen = HALF * (elements - trained)
    if settings.stage == 0:  # FP16_UnfusedOptimizer
        count = sum(len(group) for group in groups)
        return replace(empty, parameters=Held(HALF * elements), optimizer=Held(ADAM * trained + STEP * count),
                       gradients=Held(HALF * trained))  # fmt: skip
    flats = [flattened(group, settings, world_size, rank) for group in groups]
    empty = replace(empty, parameters=Held(frozen + HALF * sum(flat.padded for flat in flats)))
    if settings.stage == 1 and settings.bf16 and settings.wide and not settings.offload:  # BF16_Optimizer
        wide = Held(WIDE * sum(flat.padded for flat in flats))
        return replace(empty, optimizer=_adam(flats), gradients=wide + Held(HALF * trained), kept_gradients=wide)
    return _flattened(empty, flats, settings)


def _check_degrees(model: ModelDescriptor, settings: Settings, world_size: int) -> None:
    experts = model.experts.num_experts if model.experts is not None else world_size
    shared = {
        "tensor_parallel.autotp_size": (settings.tp, "ranks", world_size),
        "sequence_parallel_size": (settings.cp, "ranks", world_size),
        "expert_parallel.autoep_size": (settings.ep, "experts and ranks", gcd(experts, world_size)),
    }
    problems = [Problem(f"does not divide the {what}", file="ds_config.json", field=field, got=str(degree),
                        need=f"a divisor of {number}")
                for field, (degree, what, number) in shared.items() if degree < 1 or number % degree]  # fmt: skip
    if problems:
        raise InfeasibleError(problems)


def local(model: ModelDescriptor, settings: Settings, rank: int) -> tuple[Local, ...]:
    """Return a rank's parameters in the order of registration.

    Where AutoTP cuts a parameter, the first ranks get what is left over. AutoEP has gate and up apart.
    """
    tp, ep, parameters = settings.tp, settings.ep, []
    for parameter in registered(model):
        facts, split = (parameter.vector, parameter.trainable), parameter.split
        if ep > 1 and parameter.expert:
            parameters += [Local(part // ep, *facts, _EXPERTS) for part in parameter.parts]
        elif tp > 1 and split:
            share = split // tp + (rank % tp < split % tp)
            parameters.append(Local(parameter.elements // split * share, *facts, "AutoTP"))
        else:
            parameters.append(
                Local(parameter.elements, *facts, "AutoEP's router" if ep > 1 and parameter.router else "")
            )
    return tuple(parameters)


def optimizer_groups(mine: Iterable[Local]) -> list[Group]:
    """Return the optimizer's groups: train.py's matrices and vectors, then the experts of each."""
    result: list[Group] = []
    experts: list[Group] = []
    for vector in (False, True):
        kind = [parameter for parameter in mine if parameter.trained and parameter.vector == vector]
        result.append([parameter for parameter in kind if parameter.made_by != _EXPERTS])
        size = EXPERT_GROUP + 1
        for parameter in kind:
            if parameter.made_by == _EXPERTS:
                if size + parameter.elements > EXPERT_GROUP:
                    experts.append([])
                    size = 0
                experts[-1] = [*experts[-1], parameter]
                size += parameter.elements
    return [group for group in (*result, *experts) if group]


@dataclass(frozen=True, slots=True)
class Flat:
    """A group as ZeRO-1 and 2 flatten it. part: elements of one rank's share of `padded`.

    inside: elements of the parameters that touch this rank's share, each whole. padding_here: their padding at the end.
    elsewhere: elements of the others, each.
    """

    padded: int
    part: int
    largest: int
    inside: int
    padding_here: int
    elsewhere: tuple[int, ...]


def flattened(group: Group, settings: Settings, world_size: int, rank: int) -> Flat:
    """Flatten a group; ranks that share it out are neighbours but for those that share a tensor or the experts."""
    apart = settings.ep if group[0].made_by == _EXPERTS else settings.tp
    ranks, index = world_size // apart, rank // apart
    order = [parameter.elements for parameter in group]
    if settings.round_robin:  # dealt out like cards, then hand by hand
        order = [elements for hand in range(ranks) for elements in order[hand::ranks]]
    padded = ceil(sum(order) / (ALIGNMENT * ranks)) * ALIGNMENT * ranks
    part = padded // ranks
    inside, elsewhere, start = 0, [], 0
    for elements in order:
        if start < part * (index + 1) and start + elements > part * index:
            inside += elements
        else:
            elsewhere.append(elements)
        start += elements
    padding = min(max(part * (index + 1) - start, 0), part)
    return Flat(padded, part, max(order), inside, padding, tuple(elsewhere))


def _adam(flats: Iterable[Flat]) -> Held:
    return Held(sum(ADAM * flat.part + STEP for flat in flats))


def _flattened(empty: RankStates, flats: Sequence[Flat], settings: Settings) -> RankStates:
    """Add the states of ZeRO-1 and 2 (stage_1_and_2.py)."""
    part = sum(flat.part for flat in flats)
    if settings.wide:  # one rank's share of each group, in fp32
        gradients = Held(WIDE * part)
        if settings.stage == 1:
            gradients += _left_in_bucket(flats, settings)
    else:
        gradients = Held(HALF * sum(flat.inside + flat.padding_here for flat in flats))
    if not settings.offload:
        return replace(empty, optimizer=_adam(flats), gradients=gradients)
    kept = Held(host=WIDE * part)
    if not settings.wide:
        kept += Held(host=HALF * sum(flat.inside for flat in flats) if settings.sums_on_host else 0)
        gradients = Held()
    largest = max(flat.largest for flat in flats)
    return replace(empty, optimizer=Held(host=ADAM * part), gradients=gradients + kept, kept_gradients=kept,
                   buffers=Held(HALF * largest, HALF * (largest + part)))  # fmt: skip


def _left_in_bucket(flats: Iterable[Flat], settings: Settings) -> Held:
    """Count the gradients that are kept.

    ZeRO-1 with fp32 gradients lets go of this rank's gradients only: the others keep the reduction's buckets alive.

    A gradient larger than the bucket never was in it.
    """
    sizes = [elements for flat in flats for elements in flat.elsewhere]
    small = [elements for elements in sizes if elements <= settings.bucket]
    buckets = min(ceil(sum(small) / settings.bucket), 1 + settings.overlaps)
    return Held(WIDE * (buckets * settings.bucket + sum(elements for elements in sizes if elements > settings.bucket)))


def _sharded(empty: RankStates, mine: Sequence[Local], groups: Sequence[Group], settings: Settings,
             world_size: int) -> RankStates:  # fmt: skip
    """Add the states of ZeRO-3 (stage3.py, partition_parameters.py).

    Each parameter is cut for itself; small ones are there whole.
    """
    ranks = [_ranks(parameter, settings, world_size) for parameter in mine]
    shares = [ceil(parameter.elements / count) for parameter, count in zip(mine, ranks, strict=True)]
    whole = sum(share * count for parameter, share, count in zip(mine, shares, ranks, strict=True)
                if parameter.elements <= settings.threshold)  # fmt: skip
    tiles = [tile for group in groups for tile in _tiles(group, settings, world_size)]
    parts = HALF * sum(shares)
    parameters = Held(HALF * whole, parts) if settings.offloads_parameters else Held(HALF * whole + parts)
    bucket = Held(settings.bucket * (WIDE if settings.cp > 1 else HALF))
    flat = (WIDE if settings.wide else HALF) * sum(tiles)
    if not settings.offload:
        adam = Held(sum(ADAM * size + STEP for size in tiles))
        return replace(empty, parameters=parameters, optimizer=adam, gradients=Held(flat), kept_gradients=Held(flat),
                       buffers=bucket)  # fmt: skip
    here = int((1 - settings.offload) * len(tiles))  # the first tiles stay on the accelerator
    before, far = sum(tiles[:here]), sum(tiles[here:])
    gradients = Held(WIDE * before, WIDE * far + flat)
    adam = Held(ADAM * before, ADAM * far + STEP * here)  # the second AdamW is not fused: it counts on the host
    return replace(empty, parameters=parameters, optimizer=adam, gradients=gradients, kept_gradients=gradients,
                   buffers=bucket)  # fmt: skip


def _ranks(parameter: Local, settings: Settings, world_size: int) -> int:
    """Count the ranks that ZeRO-3 cuts a parameter for.

    What tp or ep has cut already is cut for those that hold the same part.
    """
    return world_size // {_EXPERTS: settings.ep, "AutoTP": settings.tp}.get(parameter.made_by, 1)


def _tiles(group: Group, settings: Settings, world_size: int) -> Iterator[int]:
    """Yield the elements of the optimizer's tiles of a group: what was made by different hands is never in one."""
    for hand in dict.fromkeys(parameter.made_by for parameter in group):
        sizes = [ceil(parameter.elements / _ranks(parameter, settings, world_size))
                 for parameter in group if parameter.made_by == hand]  # fmt: skip
        if sum(sizes) <= settings.sub_group:
            yield sum(sizes)
            continue
        tile = 0
        for index, size in enumerate(sizes, start=1):
            tile += size
            if tile >= settings.sub_group or index == len(sizes):
                yield tile
                tile = 0
