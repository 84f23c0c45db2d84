"""Buckets and shards: by their rules, and against Megatron's own function on random parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.verify.states.buffers import Piece, bucket_size, buckets
from symconfig.verify.states.inventory import Parameter
from symconfig.verify.states.megatron import groups
from tests.verify.megatron_support import source
from tests.verify.states.megatron_worker_support import Ask, worker

pieces = st.lists(st.builds(Piece, st.integers(1, 5000), st.booleans()), min_size=1, max_size=40)
sizes = st.none() | st.integers(1, 20_000)
ranks = st.sampled_from([1, 2, 3, 6, 8, 48, 64, 1000])


@settings(deadline=None)
@given(pieces, sizes, ranks, st.booleans())
def test_every_element_lies_in_one_place_and_belongs_to_one_rank(
    given_pieces: list[Piece], size: int | None, over: int, sharded: bool
) -> None:
    found = buckets(given_pieces, size, over, sharded)
    places = [place for bucket in found for place in bucket.places]
    assert [end - start for start, end in places] == [piece.elements for piece in reversed(given_pieces)]
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(places))
    assert [bucket.start for bucket in found] == [0, *(bucket.end for bucket in found[:-1])]
    shards = over if sharded else 1
    for bucket in found:
        assert (bucket.end - bucket.start) % shards == 0
        parts = [sum(bucket.shard(shards, rank)) for rank in range(shards)]
        assert sum(parts) == sum(end - start for start, end in bucket.places)
    if not sharded:
        assert found[-1].end == sum(piece.elements for piece in given_pieces)


def test_a_bucket_is_closed_once_it_is_full() -> None:
    found = buckets([Piece(64), Piece(640), Piece(64), Piece(64)], 128, 2, sharded=True)
    assert [len(bucket.places) for bucket in found] == [2, 1, 1]
    assert [(bucket.start, bucket.end) for bucket in found] == [(0, 128), (128, 768), (768, 896)]


def test_buckets_grow_with_very_many_ranks() -> None:
    assert (bucket_size(8), bucket_size(1024)) == (40_000_000, 1_024_000_000)


@pytest.fixture(scope="module")
def megatron() -> Iterator[Ask]:
    """Asks Megatron's own functions; those that lay a buffer out stand alone since 0.18."""
    with worker(source()) as ask:
        yield ask


@settings(deadline=None, max_examples=60)
@given(pieces, sizes, st.sampled_from([1, 2, 3, 6, 8, 48]), st.booleans())
def test_buffers_are_laid_out_as_megatron_does(
    megatron: Ask, given_pieces: list[Piece], size: int | None, over: int, sharded: bool
) -> None:
    asked = [(piece.elements, piece.alone) for piece in given_pieces]
    theirs = megatron("layout", pieces=asked, size=size, ranks=over, sharded=sharded)
    ours = buckets(given_pieces, size, over, sharded)
    assert [(bucket.start, bucket.end, [list(place) for place in bucket.places]) for bucket in ours] == [
        (bucket["start"], bucket["end"], bucket["places"]) for bucket in theirs
    ]
    assert [bucket.filled - bucket.start for bucket in ours] == [bucket["unpadded"] for bucket in theirs]
    if sharded:
        assert [[sum(bucket.shard(over, rank)) for rank in range(over)] for bucket in ours] == [
            bucket["owned"] for bucket in theirs
        ]


shapes = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=2), min_size=1, max_size=14)


@settings(deadline=None, max_examples=120)
@given(shapes, st.integers(1, 400), st.sampled_from([1, 2, 3, 8]))
def test_megatron_fsdp_groups_and_places_parameters_alike(
    megatron: Ask, given_shapes: list[list[int]], bucket: int, over: int
) -> None:
    theirs = megatron("fsdp", shapes=given_shapes, bucket=bucket, ranks=over)
    parameters = [
        Parameter(str(number), prod(shape), False, True, row=prod(shape[1:]))
        for number, shape in enumerate(given_shapes)
    ]
    ours = groups(parameters, bucket, over, units=False)
    assert [
        [[int(parameter.name) for parameter in group.parameters], group.chunk, list(group.places), group.elements]
        for group in ours
    ] == theirs
    for group in ours:
        held = sum(parameter.elements for parameter in group.parameters)
        assert sum(group.owned(rank) for rank in range(over)) == held <= group.elements
