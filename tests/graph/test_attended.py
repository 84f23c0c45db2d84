"""Keys of a query, counted query by query: each is in the middle of its token."""

from __future__ import annotations

import pytest

from symconfig.descriptor.job import Packing
from symconfig.graph.attended import attended


def counted(documents: list[int], window: int | None) -> float:
    """The mean over all queries of these documents."""
    keys = [min(query + 0.5, window or length) for length in documents for query in range(length)]
    return sum(keys) / len(keys)


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize(
    ("seq_length", "packing", "documents"),
    [
        (7, None, [7]),
        (8, None, [8]),
        (8, Packing(lengths=(3, 5)), [3, 5]),
        (8, Packing(lengths=(3, 20)), [3, 8]),  # none is longer than the sequence
        (8, Packing(lengths=(2, 5), weights=(3.0, 1.0)), [2, 2, 2, 5]),
    ],
)
def test_keys_of_the_mean_query(
    seq_length: int, packing: Packing | None, documents: list[int], window: int | None
) -> None:
    assert attended(seq_length, window, packing) == pytest.approx(counted(documents, window))
