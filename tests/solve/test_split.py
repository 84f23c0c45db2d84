"""Layers over (virtual) stages: nothing lost, nothing reordered, and the heaviest chunk as light as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.plans.pipeline_layout import dealt, expanded, letters
from symconfig.solve.split import Split, laid_out, most_chunks, plainest, splits
from symconfig.solve.stages import Layouts

KINDS = ("dense", "moe")
OLD = Layouts(any_cut=False, empty_ends=True, first_last=True, account=True)  # Megatron-LM before it had layout strings
NEW = Layouts(any_cut=True, empty_ends=True, first_last=True, account=True)
EQUAL = Layouts(any_cut=False)
FULL_FIRST = Layouts(any_cut=True, empty_ends=True, first_last=True, account=True, first=3)
ENDS = {"embedding": 0.0, "head": 2.5, "mtp": 1.5}


def named(layers: list[str], mtp: int = 0) -> tuple[str, ...]:
    return ("embedding", *layers, *("mtp",) * mtp, "head")


def weights(dense: float, moe: float) -> dict[str, float]:
    return {**ENDS, "dense": dense, "moe": moe}


def load(chunk: tuple[str, ...], weight: dict[str, float]) -> float:
    return sum(weight[kind] for kind in chunk)


def heaviest(chunks: Sequence[tuple[str, ...]], pp: int, weight: dict[str, float]) -> float:
    """The heaviest stage's load; with several chunks a stage, its mean with that of the rounds' heaviest chunks."""
    loads = [load(chunk, weight) for chunk in chunks]
    rounds = sum(max(loads[start : start + pp]) for start in range(0, len(loads), pp))
    return (max(sum(loads[stage::pp]) for stage in range(pp)) + rounds) / 2


def optimum(sequence: tuple[str, ...], pp: int, vpp: int, weight: dict[str, float], layouts: Layouts) -> float:
    """The lightest heaviest stage over all ways to cut the layers that can be said, without chunks of no block."""
    layers, chunks = [kind for kind in sequence if kind in KINDS], pp * vpp
    tail = tuple(kind for kind in sequence if kind in ("mtp", "head"))
    best = float("inf")
    for cuts in combinations_with_replacement(range(len(layers) + 1), chunks - 1):
        parts = [tuple(layers[a:b]) for a, b in pairwise((0, *cuts, len(layers)))]
        parts[0], parts[-1] = ("embedding", *parts[0]), (*parts[-1], *tail)
        if all(parts) and plainest(pp, tuple(parts), layouts):
            best = min(best, heaviest(parts, pp, weight))
    return best


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from([OLD, NEW, EQUAL, FULL_FIRST]),
    st.floats(0.1, 10.0),
)
def test_every_split_keeps_every_layer_in_order(
    layers: list[str], pp: int, vpp: int, mtp: int, layouts: Layouts, moe: float
) -> None:
    sequence = named(layers, mtp)
    for split in splits(sequence, pp, vpp if pp > 1 else 1, weights(1.0, moe), layouts):
        assert len(split.chunks) == split.pp * split.vpp
        assert sum(kind in KINDS for kind in split.chunks[0]) >= layouts.first
        assert tuple(kind for chunk in split.chunks for kind in chunk) == sequence
        stages = [split.stage(index) for index in range(split.pp)]
        assert sorted(kind for stage in stages for chunk in stage for kind in chunk) == sorted(sequence)
        counted = split.counts(("embedding", *KINDS, "mtp", "head"))
        assert [sum(stage) for stage in counted] == [sum(map(len, stage)) for stage in stages]


@given(
    st.lists(st.sampled_from(KINDS), min_size=2, max_size=9),
    st.integers(2, 4),
    st.sampled_from([OLD, NEW, FULL_FIRST]),
    st.floats(0.1, 10.0),
)
def test_the_balanced_split_is_optimal(layers: list[str], pp: int, layouts: Layouts, moe: float) -> None:
    sequence, weight = named(layers), weights(1.0, moe)
    least = optimum(sequence, pp, 1, weight, layouts)
    found = splits(sequence, pp, 1, weight, layouts)
    lightest = min((heaviest(split.chunks, pp, weight) for split in found), default=float("inf"))
    assert lightest <= least + 1e-4 * load(sequence, weight)
    assert found or least == float("inf")


@given(st.data(), st.integers(2, 4), st.integers(1, 3), st.sampled_from([OLD, NEW]))
def test_what_is_said_means_the_chunks(data: st.DataObject, pp: int, vpp: int, layouts: Layouts) -> None:
    """Whatever cut it is: said in no way, or in one that gives these very chunks back."""
    counts = st.lists(st.integers(0, 3), min_size=pp * vpp, max_size=pp * vpp)
    sizes = data.draw(counts | st.integers(1, 3).map(lambda n: [n] * (pp * vpp)))
    if not sum(sizes):
        return
    chunks = [("dense",) * size for size in sizes]
    chunks[0], chunks[-1] = ("embedding", *chunks[0]), (*chunks[-1], "mtp", "head")
    split = plainest(pp, tuple(chunks), layouts)
    if split is None:
        assert layouts is OLD
        return
    assert split.chunks == tuple(chunks)
    if split.pipeline_layout is not None:
        assert expanded(split.pipeline_layout) == [letters(chunk) for chunk in chunks]
        return
    assert list(sizes) == list(
        dealt(
            sum(sizes),
            pp,
            vpp,
            first=split.first_stage_layers,
            last=split.last_stage_layers,
            embedding=split.account_for_embedding,
            loss=split.account_for_loss,
        )
        or ()
    )


@pytest.mark.parametrize(
    ("sizes", "pp", "way"),
    [
        ((2, 2, 2, 2), 4, {}),
        ((1, 2, 2, 2), 4, {"account_for_embedding": True}),
        ((1, 2, 2, 1), 4, {"account_for_embedding": True, "account_for_loss": True}),
        ((0, 1, 1, 0), 2, {"account_for_embedding": True, "account_for_loss": True}),
        ((3, 4, 4, 2), 4, {"first_stage_layers": 3, "last_stage_layers": 2}),
        ((4, 4, 4, 2), 4, {"first_stage_layers": 4, "last_stage_layers": 2}),
        ((5, 3), 2, {"first_stage_layers": 5}),
        ((2, 1, 2, 1), 2, {"first_stage_layers": 4}),
        ((1, 2, 3, 2), 4, {"pipeline_layout": "Et|tt|t*3|ttL"}),
        ((2, 0, 1, 2), 2, {"pipeline_layout": "Ett||t|ttL"}),
    ],
)
def test_the_plainest_words_are_used(sizes: tuple[int, ...], pp: int, way: dict[str, object]) -> None:
    chunks = [("dense",) * size for size in sizes]
    chunks[0], chunks[-1] = ("embedding", *chunks[0]), (*chunks[-1], "head")
    expected = Split(pp, len(sizes) // pp, tuple(chunks), **way)  # type: ignore[arg-type]
    assert plainest(pp, tuple(chunks), NEW) == expected
    assert plainest(pp, tuple(chunks), OLD) == (None if "pipeline_layout" in way else expected)


def test_what_a_target_cannot_say_is_not_said() -> None:
    alone = (("embedding", "dense"), ("dense",), ("mtp",), ("head",))
    assert plainest(4, alone, NEW) is None
    free = Layouts(any_cut=True, empty_ends=True, mtp_with_head=False)
    assert plainest(2, alone, free) is None  # the first stage
    assert plainest(4, (("embedding", "dense"), ("mtp",), ("mtp",), ("head",)), free) is None  # not together
    early = (("embedding", "dense"), ("mtp",), (), (), (), (), (), ("head",))
    assert plainest(2, early, free) is None  # not in the last chunk of its stage
    assert plainest(4, alone, Layouts(any_cut=True, empty_ends=True, mtp_with_head=False)) is not None
    bare = (("embedding",), ("dense",), ("dense", "dense"), ("dense", "head"))
    assert plainest(4, bare, Layouts(any_cut=True)) is None
    assert plainest(4, ((), ("embedding", "dense"), ("dense",), ("head",)), NEW) is None
    assert plainest(4, (("embedding", "dense"), (), ("dense",), ("head",)), NEW) is not None
    assert plainest(1, (("embedding", "dense", "head"),), EQUAL) is not None


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "expected"),
    [
        (8, 4, 1, [(2, 2, 2, 2)]),
        (8, 2, 2, [(2, 2, 2, 2)]),
        (7, 4, 1, [(1, 2, 2, 2), (2, 2, 2, 1)]),  # the embedding or the loss counts as a layer
        (6, 4, 1, [(1, 2, 2, 1)]),  # both do
        (5, 4, 1, []),
        (5, 1, 1, [(5,)]),
        (126, 16, 8, [(0, *(1,) * 126, 0)]),  # 128 places
    ],
)
def test_the_ends_count_as_layers(layers: int, pp: int, vpp: int, expected: list[tuple[int, ...]]) -> None:
    counted = Layouts(any_cut=False, account=True)
    found = splits(named(["dense"] * layers), pp, vpp, weights(1.0, 1.0), counted)
    assert sorted(tuple(chunk.count("dense") for chunk in split.chunks) for split in found) == expected
    for split in found:
        sizes = [chunk.count("dense") for chunk in split.chunks]
        assert split.account_for_embedding == (sizes[0] < max(sizes))
        assert split.account_for_loss == (sizes[-1] < max(sizes))
        assert split.pipeline_layout is None


def test_layers_that_no_stages_share_evenly_go_by_the_counts_of_the_ends() -> None:
    """46 layers on four stages, in a version without layout strings."""
    (split,) = splits(named(["dense"] * 46), 4, 1, weights(1.0, 1.0) | {"head": 2.0}, OLD)[-1:]
    assert [chunk.count("dense") for chunk in split.chunks] == [12, 12, 12, 10]
    assert (split.first_stage_layers, split.last_stage_layers) == (12, 10)


def test_a_pinned_layout_is_the_only_split() -> None:
    sequence, weight = named(["dense"] * 8), weights(1.0, 1.0)
    pinned = "Et*3|t|t*3|tL"
    (split,) = splits(sequence, 4, 1, weight, NEW, pinned)
    assert split.pipeline_layout == pinned
    assert split.chunks == laid_out(sequence, 4, pinned).chunks  # type: ignore[union-attr]
    assert splits(sequence, 4, 2, weight, NEW, pinned) == ()
    assert splits(sequence, 2, 2, weight, NEW, pinned)[0].vpp == 2
    assert splits(sequence, 4, 1, weight, OLD, pinned) == ()


@pytest.mark.parametrize(
    ("layers", "pp", "most"),
    [
        (126, 16, 8),
        (8, 1, 1),
        (61, 16, 3),
        (8, 8, 1),
        (8, 16, 0),
    ],
)
def test_places_for_the_ends_allow_more_chunks(layers: int, pp: int, most: int) -> None:
    assert most_chunks(layers, pp, NEW) == most
    for vpp in range(1, most + 1):
        for split in splits(named(["dense"] * layers), pp, vpp, weights(1.0, 1.0), NEW):
            assert all(any(split.stage(stage)) for stage in range(pp))  # no stage without any work


def test_chunks_go_round_the_stages() -> None:
    """Interleaving (arXiv 2104.04473, figure 4): stage i holds chunks i and i + pp."""
    chunks = tuple((f"layer{i}",) for i in range(8))
    assert Split(4, 2, chunks).stage(1) == (("layer1",), ("layer5",))
