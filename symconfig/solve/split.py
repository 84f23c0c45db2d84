"""How the blocks of a model are laid over (virtual) pipeline stages, and how a target can say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil

import numpy as np

from symconfig.graph.block import Place
from symconfig.graph.parts import is_layer, place_of
from symconfig.plans.pipeline_layout import dealt, expanded, letters, written
from symconfig.solve.stages import ACCOUNTED, Blocks, Chunks, Layouts, StageProblem, cut, fastest_cut, layers

# Fields of a Split, and of a Configuration, by which a target says how layers are divided over stages.
SAID_BY = ("pipeline_layout", "account_for_embedding", "account_for_loss", "first_stage_layers", "last_stage_layers")
MOST_REPEATED = 128  # most numbers of recomputed first layers that are tried: neighbours differ by 1 % of the work


@dataclass(frozen=True, slots=True)
class Split:
    """The layers of every chunk: chunks[j] has its kinds of blocks; stage i holds chunks i, i + pp, i + 2 pp, …

    The other fields are how a target expresses it, by the names of a `Configuration` (SAID_BY); without them chunks are
    equal. account_for_*: the embedding (loss) counts as one layer. first_stage_layers, last_stage_layers: None: as on
    the others, which share the rest evenly. pipeline_layout: Megatron's string.
    """

    pp: int
    vpp: int
    chunks: Chunks
    account_for_embedding: bool = False
    account_for_loss: bool = False
    pipeline_layout: str | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None

    def stage(self, index: int) -> Chunks:
        return self.chunks[index :: self.pp]

    def counts(self, kinds: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the number of blocks of each kind on each stage, [pp][kinds]."""
        stages = [[kind for chunk in self.stage(i) for kind in chunk] for i in range(self.pp)]
        return tuple(tuple(stage.count(kind) for kind in kinds) for stage in stages)

    def first_layers_of(self, stage: int, kinds: tuple[str, ...], count: int) -> tuple[int, ...]:
        """Return the number of blocks of each kind among the first `count` layers of every chunk of a stage."""
        chunks = [list(filter(is_layer, chunk)) for chunk in self.stage(stage)]
        return tuple(sum(chunk[:count].count(kind) for chunk in chunks) for kind in kinds)

    @property
    def longest_chunk(self) -> int:
        return max(map(layers, set(self.chunks)))

    def repeated(self, *, every_nth: bool) -> tuple[int, ...]:
        """Return the numbers of recomputed layers per chunk to try, rising from 0, without the whole longest chunk.

        every_nth: 0 and ceil(longest / n) for n = 2, 3, …; else 0, 1, 2, … in steps that keep them MOST_REPEATED.
        """
        longest = self.longest_chunk
        if every_nth:
            return (0, *sorted({ceil(longest / n) for n in range(2, longest + 1)}))
        return tuple(range(0, longest, 1 + (longest - 1) // MOST_REPEATED))


def plainest(pp: int, chunks: Chunks, layouts: Layouts) -> Split | None:
    """Return the simplest split by which a target can express these chunks; None if it cannot.

    In order, as far as `layouts` has them: equal chunks, embedding and loss that count as layers, layers of the first
    and last stage; then for pp > 1 a layout string, unless `_refused`. None if the first chunk has too few layers.
    """
    if layers(chunks[0]) < layouts.first:
        return None
    for split in _without_string(pp, chunks, layouts):
        if split.chunks == chunks:
            return split
    if pp > 1 and layouts.any_cut and not _refused(pp, chunks, layouts):
        return Split(pp, len(chunks) // pp, chunks, pipeline_layout=written(chunks))
    return None


def _without_string(pp: int, chunks: Chunks, layouts: Layouts) -> Iterator[Split]:
    """Yield the splits without a layout string that the layouts allow; the caller compares their chunks with `chunks`.

    Equal chunks, with embedding and loss as layers if `account`; then, if `first_last`, with the first stage's number
    of layers and, for pp > 2, the last's if it differs from the second's.
    """
    sequence, vpp = tuple(kind for chunk in chunks for kind in chunk), len(chunks) // pp
    tried = [{"embedding": start, "loss": end} for start, end in (ACCOUNTED if layouts.account else ACCOUNTED[:1])]
    each = [of_counts(sequence, pp, vpp, **counted) for counted in tried]
    if layouts.first_last and pp > 1:
        stages = [sum(map(layers, chunks[index::pp])) for index in range(pp)]
        # The first stage is always stated: with the last one alone, Megatron-LM before core_v0.14 doubles the layers of
        # virtual stages (get_transformer_layer_offset). With two stages it sets both, and core_v0.12 divides by zero
        # when both are given.
        last = stages[-1] if pp > 2 and stages[-1] != stages[1] else None
        each.append(of_counts(sequence, pp, vpp, first=stages[0], last=last))
    yield from filter(None, each)


def _refused(pp: int, chunks: Chunks, layouts: Layouts) -> bool:
    """Return whether the target's layout string cannot express these chunks.

    That is if the embedding is not in the first or the loss in the last chunk, a chunk has no layer without
    `empty_ends`, or multi-token prediction is in several chunks, or neither with the loss nor, without `mtp_with_head`,
    in a later stage's last chunk (pipeline_parallel_layer_layout.py, validate_layer_layout).
    """
    places = [[place_of(kind) for kind in chunk] for chunk in chunks]
    bare = [chunk for chunk in places if Place.LAYER not in chunk]
    predicting = [number for number, chunk in enumerate(places) if Place.FURTHER in chunk]
    able = {len(chunks) - 1}
    if not layouts.mtp_with_head:
        able |= {place for place in range(len(chunks) - pp, len(chunks)) if place % pp > 0}
    return (
        Place.FIRST not in places[0]
        or Place.LAST not in places[-1]
        or (not layouts.empty_ends and any(bare))
        or len(predicting) > 1
        or not able.issuperset(predicting)
    )


def of_counts(
    sequence: tuple[str, ...],
    pp: int,
    vpp: int,
    *,
    first: int | None = None,
    last: int | None = None,
    embedding: bool = False,
    loss: bool = False,
) -> Split | None:
    """Return the split that Megatron-LM makes without a layout string (`dealt`); None if the layers do not divide.

    first, last: layers on these stages; None: as many as the others. embedding, loss: it counts as a layer. Also None
    for pp = 1 with several chunks or one of these.
    """
    if pp == 1 and (vpp > 1 or embedding or loss):
        return None
    sizes = dealt(layers(sequence), pp, vpp, first=first, last=last, embedding=embedding, loss=loss)
    if sizes is None:
        return None
    return Split(pp, vpp, cut(sequence, sizes), embedding, loss, first_stage_layers=first, last_stage_layers=last)


def even(sequence: tuple[str, ...], pp: int, vpp: int, at_start: int, at_end: int) -> Split | None:
    """Return the split whose chunks differ by at most one place, longer ones first; None if there are too few layers.

    A place is for a layer; embedding and loss take at_start and at_end places in the first and last chunk, which have
    so many layers fewer; they are recorded as account_for_* if above 0. Too few: a chunk has no place, or less than
    these take.
    """
    chunks = pp * vpp
    each, longer = divmod(layers(sequence) + at_start + at_end, chunks)
    sizes = [each + (index < longer) for index in range(chunks)]
    sizes[0] -= at_start
    sizes[-1] -= at_end
    if each < 1 or min(sizes) < 0:
        return None
    return Split(pp, vpp, cut(sequence, sizes), bool(at_start), bool(at_end))


def laid_out(sequence: tuple[str, ...], pp: int, layout: str) -> Split | None:
    """Return the split of a --pipeline-model-parallel-layout string (Megatron-LM), with vpp = its chunks / pp.

    None if its layers are not the model's in order or pp does not divide its chunks. Encoders join the first chunk.
    """
    parts = expanded(layout)
    if "".join(parts) != letters(sequence) or len(parts) % pp:
        return None
    unsaid = sum(not letters((kind,)) for kind in sequence)  # encoders, which stand first
    ends = [0, *(unsaid + end for end in accumulate(map(len, parts)))]
    chunks = tuple(sequence[start:end] for start, end in pairwise(ends))
    return Split(pp, len(parts) // pp, chunks, pipeline_layout=layout)


def most_chunks(layers: int, pp: int, layouts: Layouts) -> int:
    """Return the most chunks per stage to try; 1 for a single stage, 0 if there are more stages than layers."""
    if pp == 1 or pp > layers:
        return int(pp == 1)
    return (layers + 2 * layouts.empty_ends) // pp


def splits(
    sequence: tuple[str, ...],
    pp: int,
    vpp: int,
    weights: Mapping[str, float],
    layouts: Layouts,
    pinned: str | None = None,
) -> tuple[Split, ...]:
    """Return the splits to try for pp x vpp chunks: equal ones and one with the slowest stage fastest.

    Equal ones are also those in which embedding or loss counts as a layer, if `layouts` has them. weights: relative
    seconds of each kind. The last split comes only with pp > 1, if the target can express it and no other has its
    chunks. pinned: a layout string, the only split then. Empty if none is possible, the target cannot express the
    pinned one, or its vpp differs.
    """
    if pinned is not None:
        split = laid_out(sequence, pp, pinned)
        sayable = plainest(pp, split.chunks, layouts) if split is not None and split.vpp == vpp else None
        return () if sayable is None else (sayable,)
    return _splits(sequence, pp, vpp, tuple(sorted(weights.items())), layouts)


@lru_cache(maxsize=4096)
def _splits(
    sequence: tuple[str, ...], pp: int, vpp: int, weights: tuple[tuple[str, float], ...], layouts: Layouts
) -> tuple[Split, ...]:
    """Return the splits of `splits` without a pinned layout; weights: sorted pairs (kind, relative seconds). Cached."""
    accounted = ACCOUNTED if layouts.account else ACCOUNTED[:1]
    equals = [of_counts(sequence, pp, vpp, embedding=at_start, loss=at_end) for at_start, at_end in accounted]
    result = [split for split in equals if split is not None and layers(split.chunks[0]) >= layouts.first]
    if pp == 1 or not (layouts.any_cut or layouts.first_last):
        return tuple(result)
    # The split with the slowest stage fastest: memory has no limit, and messages take no time.
    seconds = np.array([[dict(weights)[kind] for kind in sequence]] * 2)
    nothing = np.zeros_like(seconds)
    problem = StageProblem(
        sequence=sequence,
        pp=pp,
        vpp=vpp,
        layouts=layouts,
        blocks=(
            Blocks(seconds=seconds, fixed_bytes=nothing, kept_bytes=nothing, working_bytes=nothing, limit_bytes=np.inf),
        ),
        on=(0,) * pp,
        wait_s=np.zeros(pp),
        held=(np.ones((1, vpp)),) * pp,
    )
    chunks = fastest_cut(problem)
    if chunks is not None and all(chunks != split.chunks for split in result):
        split = plainest(pp, chunks, layouts)
        result += [] if split is None else [split]
    return tuple(result)
