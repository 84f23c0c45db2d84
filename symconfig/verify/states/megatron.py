"""What one rank of a plan holds under Megatron-LM: parameters, gradient buffers, its share of the optimizer state.

Whole numbers, of core_v0.19.2 and, as far as versions differ, of the plan's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from symconfig.cost.shapes import layers
from symconfig.frameworks.megatron import hybrid
from symconfig.frameworks.megatron.behaviour import MEGATRON, TransformerImpl
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.plans.plan import Plan
from symconfig.verify.states.buffers import BUCKET_ENDS, Bucket, Piece, bucket_size, buckets
from symconfig.verify.states.grid import coordinates
from symconfig.verify.states.inventory import Parameter, chunk_parameters

WEIGHT_BYTES = 2  # bf16 or fp16; what is computed in lower precision is cast for it
MAIN_BYTES = 4  # the fp32 copy that is updated
MOMENTS_BYTES = 8  # Adam's two, in fp32

# From here on the experts' parameters are reduced over the expert grid where etp is not tp, too; before, only with
# ep above 1 (tensor_parallel/layers.py, the attribute allreduce).
EXPERT_GRID_BY_ETP = (0, 19)
# Megatron-FSDP: from here on no shard cuts a row; and experts are in groups of their own also where the grids are one.
WHOLE_ROWS, EXPERTS_BY_NAME = (0, 14), (0, 16)
# From here on the optimizer's groups of parameters are sorted; before, they come as the first of each is registered
# (optimizer/__init__.py, _get_param_groups).
SORTED_GROUPS = (0, 16)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One virtual stage. layers: transformer layers; mtp: layers that predict further tokens."""

    layers: int
    mtp: int
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One gradient buffer. elements: with padding; unpadded: without the padding of its buckets' ends.

    owned: elements of parameters that this rank updates: those in its share of each bucket, or all.
    """

    chunk: int
    expert: bool
    element_bytes: int
    elements: int
    unpadded: int
    buckets: int
    owned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStates:
    """The memory that lasts from step to step on one rank. optimizer_host_bytes: of its optimizer state's bytes."""

    rank: int
    coordinates: Mapping[str, int]  # by axis
    chunks: tuple[Chunk, ...]
    buffers: tuple[Buffer, ...]
    weight_bytes: int
    optimizer_shard_bytes: int
    optimizer_host_bytes: int

    @property
    def parameters(self) -> int:
        """Count the elements of all parameters."""
        return sum(parameter.elements for chunk in self.chunks for parameter in chunk.parameters)

    @property
    def gradient_buffer_bytes(self) -> int:
        return sum(buffer.elements * buffer.element_bytes for buffer in self.buffers)

    @property
    def layers(self) -> tuple[int, ...]:
        """Count the transformer layers of each chunk."""
        return tuple(chunk.layers for chunk in self.chunks)


def rank_states(plan: Plan, rank: int, transformer_impl: TransformerImpl = "transformer_engine") -> RankStates:
    """Return the states of one global rank.

    transformer_impl: whose layers; their order of registration decides where buckets end.
    """
    parallel = plan.best.parallel
    here = coordinates(parallel if plan.model.experts else replace(parallel, etp=parallel.tp), MEGATRON, rank)
    if plan.best.options.zero_stage > 1:
        return _fully_sharded(plan, rank, here, transformer_impl)
    chunks = _chunks(plan, here["pp"], transformer_impl)
    laid = [buffer for index, chunk in enumerate(chunks) for buffer in _laid(plan, here, index, chunk)]
    gradient, sharded = plan.best.options.grad_bytes, plan.best.options.zero_stage == 1
    buffers = tuple(
        Buffer(
            chunk=buffer.chunk,
            expert=buffer.expert,
            element_bytes=gradient,
            elements=buffer.buckets[-1].end,
            unpadded=sum(bucket.filled - bucket.start for bucket in buffer.buckets),
            buckets=len(buffer.buckets),
            owned=sum(size for _, size in buffer.owned),
        )
        for buffer in laid
    )
    # The distributed optimizer keeps weights that it updates in a buffer that is cut as the gradients' is.
    elements = sum(
        parameter.elements
        for chunk in chunks
        for parameter in chunk.parameters
        if not (sharded and parameter.trainable)
    )
    elements += sum(buffer.elements for buffer in buffers) if sharded else 0
    owned = sum(buffer.owned for buffer in buffers)
    away = sum(_away(plan, laid, expert) for expert in (False, True))
    state = MAIN_BYTES + MOMENTS_BYTES
    return RankStates(
        rank=rank,
        coordinates=here,
        chunks=chunks,
        buffers=buffers,
        weight_bytes=elements * WEIGHT_BYTES,
        optimizer_shard_bytes=owned * state,
        optimizer_host_bytes=away * state,
    )


def _fully_sharded(plan: Plan, rank: int, here: Mapping[str, int], transformer_impl: TransformerImpl) -> RankStates:
    """Return the states under Megatron-FSDP: stage 2 shards gradients and optimizer state, stage 3 weights, too. Its
    buffers are listed as this rank holds them, one for each group of parameters."""
    parallel, weights = plan.best.parallel, plan.best.options.zero_stage == 3
    chunks = _chunks(plan, here["pp"], transformer_impl)
    release = megatron_release(plan.best.target.version)
    by_name = release >= EXPERTS_BY_NAME and plan.model.experts is not None
    held = (
        chunk_parameters(plan, here["pp"], transformer_impl) if by_name else tuple(chunk.parameters for chunk in chunks)
    )
    ranks, place = parallel.dp * parallel.cp, here["cp"] + parallel.cp * here["dp"]
    whole_rows, edp = release >= WHOLE_ROWS, parallel.edp
    numbered = [
        (index, group)
        for index, parameters in enumerate(held)
        for group in groups(parameters, bucket_size(ranks), ranks, weights, whole_rows, expert_ranks=edp)
    ]
    buffers = tuple(
        Buffer(
            chunk=index,
            expert=group.expert,
            element_bytes=plan.best.options.grad_bytes,
            elements=group.shard,
            unpadded=sum(parameter.elements for parameter in group.parameters),
            buckets=1,
            owned=group.owned(here["edp"] if group.expert else place),
        )
        for index, group in numbered
    )
    shards = sum(group.shard for _, group in numbered)
    optimizer = MAIN_BYTES * shards + MOMENTS_BYTES * sum(buffer.owned for buffer in buffers)
    return RankStates(
        rank=rank,
        coordinates=here,
        chunks=chunks,
        buffers=buffers,
        weight_bytes=WEIGHT_BYTES * (shards if weights else sum(group.elements for _, group in numbered)),
        optimizer_shard_bytes=optimizer,
        optimizer_host_bytes=0,
    )


def _chunks(plan: Plan, stage: int, transformer_impl: TransformerImpl) -> tuple[Chunk, ...]:
    parallel = plan.best.parallel
    by_etp = megatron_release(plan.best.target.version) >= EXPERT_GRID_BY_ETP and parallel.etp != parallel.tp
    on_expert_grid = parallel.ep > 1 or by_etp
    kinds = plan.best.stages[stage].chunks
    parts = {kind.name: len(hybrid.symbols(kind)) for kind in plan.model.kind_of_layer}
    return tuple(
        Chunk(
            count if not hybrid.hybrid(plan.model) else sum(parts.get(kind, 0) for kind in chunk),
            chunk.count("mtp"),
            parameters
            if on_expert_grid
            else tuple(replace(parameter, expert=False) if parameter.expert else parameter for parameter in parameters),
        )
        for count, chunk, parameters in zip(
            layers(kinds), kinds, chunk_parameters(plan, stage, transformer_impl), strict=True
        )
    )


@dataclass(frozen=True, slots=True)
class _Laid:
    """A buffer with its parameters in it. owned: of each parameter the elements that this rank updates."""

    chunk: int
    expert: bool
    buckets: tuple[Bucket, ...]
    owned: tuple[tuple[Parameter, int], ...]


def _laid(plan: Plan, here: Mapping[str, int], index: int, chunk: Chunk) -> Iterator[_Laid]:
    """Yield the chunk's buffers: one for the parameters that all data-parallel ranks share, one for the experts'."""
    parallel, options = plan.best.parallel, plan.best.options
    replicas = parallel.dp * parallel.cp
    # Only the first stage's first chunk is reduced in pieces: nothing waits for the others.
    in_pieces = replicas > 1 and options.overlap.grad_reduce and here["pp"] == 0 and index == 0
    size = bucket_size(replicas) if in_pieces else None
    sharded = options.zero_stage == 1
    for expert in (False, True):
        mine = [parameter for parameter in chunk.parameters if parameter.trainable and parameter.expert == expert]
        if not mine:
            continue
        ranks, rank = (parallel.edp, here["edp"]) if expert else (replicas, here["cp"] + parallel.cp * here["dp"])
        cut = buckets([Piece(parameter.elements, parameter.copied) for parameter in mine], size, ranks, sharded)
        shard = (ranks, rank) if sharded else (1, 0)
        parts = [part for bucket in cut for part in bucket.shard(*shard)]
        yield _Laid(index, expert, cut, tuple(zip(reversed(mine), parts, strict=True)))


def _away(plan: Plan, laid: Sequence[_Laid], expert: bool) -> int:
    """Count the elements whose state is in host memory, of one of the two optimizers."""
    owned = [buffer.owned for buffer in laid if buffer.expert == expert]
    # Vectors, which have no weight decay, come after all others.
    last = not owned or megatron_release(plan.best.target.version) >= SORTED_GROUPS or not owned[0][-1][0].vector
    ordered = sorted((pair for pairs in owned for pair in pairs), key=lambda pair: pair[0].vector is last)
    return offloaded([size for _, size in ordered], plan.best.options.optimizer_offload)


def offloaded(shards: Sequence[int], fraction: float) -> int:
    """Count the elements of the first whole shards that make up a fraction of all.

    cpu_offloading/hybrid_optimizer.py, _get_sub_optimizer_param_groups.
    """
    threshold = fraction * sum(shards)
    away = 0
    for size in shards:
        if away >= threshold:
            break
        away += size
    return away


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that one buffer of each sort holds; a shard holds a multiple of `chunk` elements.

    places: where each parameter begins in the buffer. elements: of the whole buffer, with padding. ranks: among which
    it is sharded.
    """

    parameters: tuple[Parameter, ...]
    expert: bool
    chunk: int
    places: tuple[int, ...]
    elements: int
    ranks: int

    @property
    def shard(self) -> int:
        """Count the elements of one rank's shard, with padding."""
        return self.elements // self.ranks

    def owned(self, rank: int) -> int:
        """Return how many elements of parameters one rank's shard holds, without padding."""
        low = rank * self.shard
        return sum(
            max(0, min(start + parameter.elements, low + self.shard) - max(start, low))
            for start, parameter in zip(self.places, self.parameters, strict=True)
        )


def groups(
    parameters: Iterable[Parameter],
    bucket: int,
    ranks: int,
    units: bool,
    whole_rows: bool = True,
    *,
    expert_ranks: int | None = None,
) -> tuple[Group, ...]:
    """Group the parameters; units: each transformer layer is gathered as one.

    It then has groups of its own, however large. expert_ranks: that share an expert's, if not as many as all others'.
    """
    alike: dict[tuple[bool, bool, int | None], list[Parameter]] = {}
    for parameter in parameters:
        alike.setdefault((parameter.expert, parameter.trainable, parameter.layer if units else None), []).append(
            parameter
        )
    return tuple(
        _group(part, expert, (expert_ranks or ranks) if expert else ranks, whole_rows)
        for (expert, _, unit), members in alike.items()
        for part in ([members] if unit is not None else _full(members, bucket))
    )


def _group(members: Sequence[Parameter], expert: bool, ranks: int, whole_rows: bool) -> Group:
    chunk, ordered = _chunk(members) if whole_rows else (1, tuple(members))
    places, end = layout([parameter.elements for parameter in ordered], chunk)
    multiple = ranks * chunk if whole_rows else lcm(ranks, BUCKET_ENDS)
    return Group(ordered, expert, chunk, places, -(-end // multiple) * multiple, ranks)


def _full(members: Sequence[Parameter], bucket: int) -> list[list[Parameter]]:
    """Divide the members in parts that are closed once they hold as much as a bucket."""
    parts: list[list[Parameter]] = [[]]
    for parameter in members:
        parts[-1].append(parameter)
        if sum(item.elements for item in parts[-1]) >= bucket:
            parts.append([])
    return [part for part in parts if part]


def _chunk(members: Sequence[Parameter]) -> tuple[int, tuple[Parameter, ...]]:
    """Return the elements that no shard may cut, so that it has whole rows, and the parameters.

    They are sorted by length of row, longest first.
    """
    ordered = tuple(sorted(members, key=lambda parameter: parameter.row, reverse=True))
    chunk = ordered[0].row
    for parameter in ordered:
        whole_rows = chunk % parameter.row == 0 and parameter.elements % chunk == 0
        if parameter.row != chunk and not whole_rows and parameter.elements >= chunk:
            chunk = lcm(chunk, parameter.row)
    return chunk, ordered


def layout(sizes: Sequence[int], chunk: int) -> tuple[tuple[int, ...], int]:
    """Return where each of the sizes starts in a buffer, and where the last one ends.

    What is no multiple of a chunk leaves a gap behind it. The next such one begins so that its last, incomplete chunk
    fills the gap's end, if there is room; what is smaller than a chunk goes where it fits in between, else to the end.
    """
    large = [index for index, size in enumerate(sizes) if size >= chunk]
    small = [index for index, size in enumerate(sizes) if size < chunk]
    places = [0] * len(sizes)
    end = 0
    while large:
        first = large.pop(0)
        places[first] = end
        over = sizes[first] % chunk
        gap = end + sizes[first]
        end += -(-sizes[first] // chunk) * chunk
        if not over:
            continue
        room = chunk - over
        fits = (index for index in large if sizes[index] % chunk and over + sizes[index] % chunk <= chunk)
        if (partner := next(fits, None)) is not None:
            large.remove(partner)
            tail = sizes[partner] % chunk
            places[partner] = end - tail
            room -= tail
            end += sizes[partner] - tail
        for index in tuple(small):
            if sizes[index] <= room:
                small.remove(index)
                places[index] = gap
                gap += sizes[index]
                room -= sizes[index]
    for index in small:
        places[index] = end
        end += sizes[index]
    return tuple(places), end
