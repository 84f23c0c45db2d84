"""Times and tokens as a person writes them."""

from __future__ import annotations

import pytest

from symconfig.errors import InputError
from symconfig.runs.sweep.size import even_batch, time_s, token_count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2592000), ("12h", 43200), ("2w", 1209600), ("1.5 d", 129600), ("90m", 5400), ("10S", 10), ("7", 604800)],
)
def test_times(text: str, seconds: float) -> None:
    assert time_s("deadline", text) == seconds


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2T", 2 * 10**12),
        ("500B", 5 * 10**11),
        ("1.5e12", 1500 * 10**9),
        ("300 m", 3 * 10**8),
        ("4096", 4096),
        ("0.3t", 3 * 10**11),
        ("1.1T", 11 * 10**11),
        ("1e-3k", 1),
        ("1.000000000001T", 10**12 + 1),
    ],
)
def test_tokens(text: str, number: int) -> None:
    assert token_count("tokens", text) == number


@pytest.mark.parametrize("text", ["", "d", "0d", "-3d", "nan", "inf", "1e999d", "30x", "3 0d", "9999999w", "٣d"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(InputError, match="deadline: wrong value"):
        time_s("deadline", text)


@pytest.mark.parametrize("text", ["", "T", "0", "-2T", "2Q", "1e30T", "0.1", "two", "1.5", "1.0005k", "1e-999"])
def test_what_is_no_number_of_tokens_is_named(text: str) -> None:
    with pytest.raises(InputError, match="tokens: wrong value"):
        token_count("tokens", text)


@pytest.mark.parametrize(
    ("tokens_of_step", "length", "sequences"),
    [(4 * 2**20, 4096, 1024), (4_000_000, 4096, 960), (4 * 2**20, 2048, 2048), (10**5, 4096, 16), (100, 4096, 1)],
)
def test_a_batch_in_tokens_is_an_even_number_of_sequences(tokens_of_step: int, length: int, sequences: int) -> None:
    assert even_batch(tokens_of_step, length) == sequences
