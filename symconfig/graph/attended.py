"""How many keys a query attends to."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.job import Packing
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d

FULL, WINDOW, CHOSEN = "keys_full", "keys_window", "keys_chosen"  # of all, of a window or chunk, of an indexer's choice
# Those of a window and compressed ones before it: all of them, or an indexer's choice.
RUNS, CHOSEN_RUNS = "keys_with_runs", "keys_with_chosen_runs"
_RATES = {RUNS: (d.HEAVY_RUN, ""), CHOSEN_RUNS: (d.RUN, "index_topk")}


def _reach(model: ModelDescriptor) -> dict[str, int | None]:
    """Return, by kind of attention, how many of the last tokens a query attends to; None: all tokens before it."""
    return {FULL: None, WINDOW: model.sliding_window, CHOSEN: model.indexer.index_topk if model.indexer else None}


def keys(model: ModelDescriptor, seq_length: int, packing: Packing | None = None) -> dict[str, float]:
    """Return the mean number of keys per query of a model at `seq_length`, by kind of attention; with packing, within a
    query's document. FULL, WINDOW and CHOSEN are always there, with all keys if the model has no window or indexer;
    WINDOW is cut into chunks for chunked attention. RUNS and CHOSEN_RUNS, a window's keys and the compressed ones, only
    if a mixer compresses keys.
    """
    chunked = model.chunked_attention
    mean = {
        name: attended(seq_length, reach, packing, chunked and name == WINDOW) for name, reach in _reach(model).items()
    }
    window = attended(seq_length, model.sliding_window, packing)
    return mean | {name: window + attended(seq_length, reach, packing) / rate for name, rate, reach in _runs(model)}


def visible(model: ModelDescriptor, seq_length: int) -> dict[str, float]:
    """Return, by kind of attention, the number of keys of the query that attends to the most: the reach of the kind, at
    most `seq_length`; kinds with compressed keys add those to a window's. Packing and chunks are ignored.
    """
    seen = {name: float(min(reach or seq_length, seq_length)) for name, reach in _reach(model).items()}
    runs = {name: seen[WINDOW] + min(reach or seq_length, seq_length) / rate for name, rate, reach in _runs(model)}
    return seen | runs


def _runs(model: ModelDescriptor) -> Iterator[tuple[str, int, int | None]]:
    """Yield (kind, tokens per compressed key, reach) for each kind of compressed keys whose rate a mixer of the model
    states. reach: number of tokens whose compressed keys a query reads, the rate times index_topk; None: all of them.
    """
    sizes: dict[str, int] = {}
    for mixer in model.mixers:
        sizes |= mixer.sizes
    for name, (rate, chosen) in _RATES.items():
        if per := sizes.get(rate):
            yield name, per, per * sizes[chosen] if chosen else None


def attended(
    seq_length: int, window: int | None = None, packing: Packing | None = None, chunked: bool = False
) -> float:
    """Return the mean number of keys per query under the causal mask, counted as length / 2 without a window.

    Args:
        window: tokens that a query sees at most; None or 0: all before it.
        packing: lengths of documents, cut to `seq_length`, with their weights (None: equal); None: one document of
            `seq_length`.
        chunked: a query sees only its own chunk of `window` tokens, as if that were a document.
    """
    lengths: tuple[int, ...] = packing.lengths if packing else (seq_length,)
    shares = packing.weights if packing and packing.weights else (1.0,) * len(lengths)
    pairs = tokens = 0.0
    for length, share in zip(lengths, shares, strict=True):
        length = min(length, seq_length)
        reach = min(window or length, length)
        whole, rest = divmod(length, reach)
        beyond = (whole - 1) * reach * reach / 2 + rest * rest / 2 if chunked else (length - reach) * reach
        pairs += share * (reach * reach / 2 + beyond)
        tokens += share * length
    return pairs / tokens
