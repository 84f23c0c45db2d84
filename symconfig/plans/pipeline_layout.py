"""How Megatron-LM lays layers over the chunks of a pipeline: its layout string, and how it deals them out without one.

Chunk j of the model lies on stage j mod pp; a stage holds vpp chunks. The string lists the chunks in model order,
| between them: E embedding, t transformer layer, m multi-token prediction, L loss; (x)*n and x*n repeat; commas mean
nothing (core_v0.13 to core_v0.19, megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from symconfig.descriptor.vision import KINDS
from symconfig.errors import Problem

# Any other kind is a transformer layer, t; an encoder has no letter, and is built with the embedding.
LETTERS = {"embedding": "E", "head": "L", "mtp": "m", **dict.fromkeys(KINDS, "")}
_GROUP = re.compile(r"\(([^)]+)\)\*(\d{1,6})(?!\d)")
_LETTER = re.compile(r"(.)\*(\d{1,6})(?!\d)")
_LONGEST = 100_000  # letters; the largest models have hundreds of layers


def letters(chunk: Sequence[str]) -> str:
    """Return a chunk's letters: E, L, m, nothing for an encoder, and t for any other kind."""
    return "".join([LETTERS.get(kind, "t") for kind in chunk])


def is_uneven(chunks: Sequence[Sequence[str]]) -> bool:
    """Return whether inner chunks differ in layers, or the first or last has over one layer more than all of them.
    chunks: of the model in order; only letters t count as layers. False for two chunks; ValueError for fewer.
    """
    first, *inside, last = (letters(chunk).count("t") for chunk in chunks)
    return bool(inside) and (len(set(inside)) > 1 or max(first, last) > max(inside) + 1)


def written(chunks: Sequence[Sequence[str]]) -> str:
    """Return the layout string of chunks, each a sequence of kinds of blocks."""
    return compact([letters(chunk) for chunk in chunks])


def compact(chunks: Sequence[str]) -> str:
    """Return the layout string of chunks, each given as its letters, with repetitions shortened: Et*7|(t*8|)*14t*7L."""

    def shorter(plain: str, repeated: str) -> str:
        return repeated if len(repeated) <= len(plain) else plain

    runs = ([(letter, sum(1 for _ in same)) for letter, same in groupby(chunk)] for chunk in chunks)
    *body, last = ("".join(shorter(letter * n, f"{letter}*{n}") for letter, n in each) for each in runs)
    repeats = ((text, sum(1 for _ in same)) for text, same in groupby(body))
    return "".join(shorter(f"{text}|" * n, f"({text}|)*{n}") for text, n in repeats) + last


def expanded(layout: str) -> list[str]:
    """Return the letters of each chunk of a layout string: Et*3|(t|)*2L -> Ettt, t, t, L. Commas are dropped. Groups
    cannot be nested: as in Megatron, unparsed parts stay in the result as other characters. If groups or letters would
    expand to more than _LONGEST, the text so far is returned as the only chunk.
    """
    text = layout.replace(",", "")
    for pattern in (_GROUP, _LETTER):
        if sum(len(match[1]) * int(match[2]) for match in pattern.finditer(text)) > _LONGEST:
            return [text]
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    return text.split("|")


def problems(layout: str, layers: int, mtp: int, field: str) -> Iterator[Problem]:
    """Yield what is wrong with a layout string for a model with `layers` layers and `mtp` prediction layers. Unknown
    letters, after which nothing else is checked; wrong numbers of t, m, E or L; a first chunk that does not begin with
    E, or a last that does not end with L; else t directly after m. field: the name that the problems have.
    """
    chunks = expanded(layout)
    text = "".join(chunks)
    if set(text) - set("EtmL"):
        yield Problem("has letters other than E, t, m and L", field=field, got=repr(layout), need="those four")
        return
    needs = (("t", "layer", layers), ("m", "prediction layer", mtp), ("E", "embedding", 1), ("L", "loss", 1))
    for letter, name, need in needs:
        if (got := text.count(letter)) != need:
            yield Problem(f"does not hold each {name} once", field=field, got=f"{got} x {letter}", need=str(need))
    if not chunks[0].startswith("E") or not chunks[-1].endswith("L"):
        what = "does not begin with the embedding and end with the loss"
        yield Problem(what, field=field, got=repr(layout), need="E first and L last")
    elif "mt" in text:
        yield Problem("has layers behind a multi-token prediction", field=field, got=repr(layout), need="m before L")


def dealt(
    layers: int,
    pp: int,
    vpp: int,
    *,
    first: int | None = None,
    last: int | None = None,
    embedding: bool = False,
    loss: bool = False,
) -> tuple[int, ...] | None:
    """Return the number of layers of each chunk in model order without a layout string; None if Megatron refuses it. As
    transformer_block.py, get_num_layers_to_build, does. first, last: layers of these stages; the other stages share the
    rest evenly, and a stage's chunks its layers. embedding, loss: it counts as a layer of its chunk. None if anything
    does not divide, a stage (first or last given) or an inner chunk has no layer, or both kinds of options are given.
    """
    if first is None and last is None:
        each, rest = divmod(layers + embedding + loss, pp * vpp)
        chunks = [each] * (pp * vpp)
        chunks[0] -= embedding
        chunks[-1] -= loss
        return None if rest or not each or min(chunks) < 0 else tuple(chunks)
    if embedding or loss:
        return None
    given = [count for count in (first, last) if count is not None]
    between = pp - len(given)
    each, rest = divmod(layers - sum(given), between) if between > 0 else (0, layers - sum(given))
    stages = [each] * pp
    stages[0] = each if first is None else first
    stages[-1] = each if last is None else last
    if rest or between < 0 or min(stages) < 1 or any(count % vpp for count in stages):
        return None
    return tuple(count // vpp for count in stages) * vpp
