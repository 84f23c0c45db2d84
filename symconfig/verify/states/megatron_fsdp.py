"""How Megatron-FSDP groups parameters, lays each group out and shards it: whole numbers only.

core_v0.19.2, distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py: _get_parameter_groups and
build_data_parallel_buffer_index; with whole_rows false, those of distributed/custom_fsdp until core_v0.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm

from symconfig.verify.states.buffers import BUCKET_ENDS
from symconfig.verify.states.inventory import Parameter


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
        """Count the elements of parameters in one rank's shard."""
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
    """Return the start of each, and the end of the last one.

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
