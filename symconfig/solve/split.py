"""How the blocks of a model are laid over (virtual) pipeline stages, and which splits a target can express."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

LETTERS = {"embedding": "E", "head": "L", "mtp": "m"}  # any other kind is a transformer layer, t


@dataclass(frozen=True, slots=True)
class Split:
    """chunks[j]: kinds of chunk j in model order; stage i holds chunks i, i + pp, i + 2 pp, …

    account_*: the embedding (loss) takes the place of one layer; layout: Megatron's layout string, or None.
    """

    pp: int
    vpp: int
    chunks: tuple[tuple[str, ...], ...]
    account_for_embedding: bool = False
    account_for_loss: bool = False
    layout: str | None = None

    def stage(self, index: int) -> tuple[tuple[str, ...], ...]:
        return self.chunks[index :: self.pp]

    def counts(self, kinds: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Per stage, how many blocks of each kind it holds."""
        stages = [[kind for chunk in self.stage(i) for kind in chunk] for i in range(self.pp)]
        return tuple(tuple(stage.count(kind) for kind in kinds) for stage in stages)

    @property
    def longest_chunk(self) -> int:
        return max(sum(kind not in LETTERS for kind in chunk) for chunk in self.chunks)


def splits(
    sequence: tuple[str, ...], pp: int, vpp: int, weights: Mapping[str, float], layouts: bool
) -> tuple[Split, ...]:
    """Every split worth weighing for pp x vpp chunks.

    weights: relative seconds of each kind, for balancing. layouts: the target can say any split; otherwise only
    equal ones, with or without the ends counted as layers.
    """
    return _splits(sequence, pp, vpp, tuple(sorted(weights.items())), layouts)


@lru_cache(maxsize=4096)
def _splits(
    sequence: tuple[str, ...], pp: int, vpp: int, weights: tuple[tuple[str, float], ...], layouts: bool
) -> tuple[Split, ...]:
    layers = [kind for kind in sequence if kind not in LETTERS]
    first, last = _ends(sequence)
    chunks = pp * vpp
    result: list[Split] = []
    for at_start, at_end in ((0, 0), (1, 1), (1, 0), (0, 1)):
        split = equal(sequence, pp, vpp, at_start, at_end)
        # A chunk that holds an end and no layer is left to those who ask for it.
        if split is not None and (chunks == 1 or all(any(k not in LETTERS for k in chunk) for chunk in split.chunks)):
            result.append(split)
    if layouts and pp > 1 and len(layers) >= chunks:
        kinds = tuple(layers)
        sizes = list(_balanced(kinds, chunks, weights))
        cut = _cut(first, layers, last, sizes)
        if all(cut != split.chunks for split in result):
            result.append(Split(pp, vpp, cut, layout=_layout(cut)))
    return tuple(result)


def equal(sequence: tuple[str, ...], pp: int, vpp: int, at_start: int, at_end: int) -> Split | None:
    """As many layers on every chunk, the embedding (loss) counted as one where asked for; else None."""
    total = sum(kind not in LETTERS for kind in sequence) + at_start + at_end
    if total % (pp * vpp) or (pp == 1 and (at_start or at_end)):
        return None
    return even(sequence, pp, vpp, at_start, at_end)


def even(sequence: tuple[str, ...], pp: int, vpp: int, at_start: int, at_end: int) -> Split | None:
    """Chunks that differ by one place at most, the first ones longer; the ends take places. None: too few layers."""
    layers = [kind for kind in sequence if kind not in LETTERS]
    first, last = _ends(sequence)
    chunks = pp * vpp
    each, longer = divmod(len(layers) + at_start + at_end, chunks)
    sizes = [each + (index < longer) for index in range(chunks)]
    sizes[0] -= at_start
    sizes[-1] -= at_end
    if each < 1 or min(sizes) < 0:
        return None
    return Split(pp, vpp, _cut(first, layers, last, sizes), bool(at_start), bool(at_end))


def laid_out(sequence: tuple[str, ...], pp: int, layout: str) -> Split | None:
    """Chunks as --pipeline-model-parallel-layout (Megatron-LM) lists them: E, t, m, L, | between chunks, (x)*n, x*n.

    None: the layout has other layers than the model, or no whole number of chunks for each stage.
    """
    plain = re.sub(r"\(([^()]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), layout)
    plain = re.sub(r"([EtmL])\*(\d+)", lambda found: found[1] * int(found[2]), plain)
    parts, place = plain.split("|"), 0
    chunks = []
    for part in parts:
        chunks.append(sequence[place : place + len(part)])
        place += len(part)
    if place != len(sequence) or len(parts) % pp:
        return None
    return Split(pp, len(parts) // pp, tuple(chunks), False, False)


def _ends(sequence: tuple[str, ...]) -> tuple[list[str], list[str]]:
    return ["embedding"], [kind for kind in sequence if kind in ("mtp", "head")]


def _cut(first: list[str], layers: list[str], last: list[str], sizes: list[int]) -> tuple[tuple[str, ...], ...]:
    chunks, start = [], 0
    for index, size in enumerate(sizes):
        chunk = layers[start : start + size]
        start += size
        chunks.append(
            (
                *(first if index == 0 else []),
                *chunk,
                *(last if index == len(sizes) - 1 else []),
            )
        )
    return tuple(chunks)


def _layout(chunks: tuple[tuple[str, ...], ...]) -> str:
    return "|".join("".join(LETTERS.get(kind, "t") for kind in chunk) for chunk in chunks)


@cache
def _balanced(layers: tuple[str, ...], chunks: int, weights: tuple[tuple[str, float], ...]) -> tuple[int, ...]:
    """Sizes of contiguous chunks that minimise the heaviest one, ends included; bisection on that weight.

    Exact to a millionth of the total: a greedy fill is feasible exactly when some split is.
    """
    weight = dict(weights)
    ends = (weight.get("embedding", 0.0), weight.get("head", 0.0) + weight.get("mtp_total", 0.0))
    total = sum(weight[kind] for kind in layers) + sum(ends)
    low, high = total / chunks, total
    while high - low > 1e-6 * total:
        middle = (low + high) / 2
        if _fill(layers, chunks, weight, ends, middle) is None:
            low = middle
        else:
            high = middle
    sizes = _fill(layers, chunks, weight, ends, high)
    assert sizes is not None
    return tuple(sizes)


def _fill(
    layers: tuple[str, ...], chunks: int, weight: dict[str, float], ends: tuple[float, float], limit: float
) -> list[int] | None:
    """Fill from the back, each chunk to the limit, leaving a layer for every chunk before it; None if that fails."""
    sizes = [0] * chunks
    left = len(layers)
    for index in reversed(range(chunks)):
        load = ends[1] if index == chunks - 1 else 0.0
        load += ends[0] if index == 0 else 0.0
        while left > index and (load + weight[layers[left - 1]] <= limit * (1 + 1e-12) or index == 0):
            load += weight[layers[left - 1]]
            left -= 1
            sizes[index] += 1
        if load > limit * (1 + 1e-9):
            return None
    return sizes
