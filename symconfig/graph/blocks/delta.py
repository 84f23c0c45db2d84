"""The chunked delta rule with decays (Yang et al. 2024, arXiv 2406.06484, 2412.06464), of flash-linear-attention.

Of each chunk of C tokens the updates of the state are condensed into two products of an inverted triangular matrix (the
WY form, section 3.2) with keys and values. Per token and head of K key and V value channels that takes 3 C K + 2 C V +
3 K V multiply-adds; the inversion itself, some C C / 3, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from symconfig.graph import dims as d
from symconfig.graph.blocks.context import Context
from symconfig.graph.operator import Element, Product, Scratch, Tensor

CHUNK_SIZE = 64  # tokens; ops/gated_delta_rule/chunk.py and ops/kda/chunk.py of flash-linear-attention
_ROWS = (d.BATCH, d.SEQUENCE)
_KERNELS = (6, 9)  # that one call launches, forward and backward


def normalised(ctx: Context, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each query and key to length one; the backward needs the result and the length."""
    results = [Tensor(f"{tensor.name}_normed", tensor.dims) for tensor in (q, k)]
    lengths = [Tensor(f"{tensor.name}.lengths", tensor.dims[:-1], Element.FP32) for tensor in (q, k)]
    ctx.build.elementwise(
        "normalise",
        [q, k],
        results[0],
        further=results[1:],
        saves=[*results, *lengths],
        reduces={q.dims[-1]: 2},
        whole=(d.SEQUENCE,),
        launches=(2, 2),
    )
    return results[0], results[1]


def delta_rule(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, shares: Sequence[Sequence[str]] = ()
) -> Tensor:
    """Return o[B, S, H, V] of q, k[B, S, H, K], v[B, S, H, V], decays in fp32 of each head or of each of its channels,
    and the strength beta of each update. shares: heads of keys that serve several heads of values.

    It keeps what it reads, the summed decays and the inverted matrix of each chunk, with decays by channel the scores,
    too (ChunkGatedDeltaRuleFunction, ChunkKDAFunction).
    """
    heads, values, keys = v.dims[-2], v.dims[-1], k.dims[-1]
    by_channel = keys in decay.dims
    summed = Tensor("summed_decay", decay.dims, Element.FP32)
    inverse = Tensor("chunk_inverse", (*_ROWS, heads, d.CHUNK))
    scores = [Tensor("chunk_scores", inverse.dims)] if by_channel else []
    out = Tensor("scanned", v.dims)
    return ctx.build.elementwise(
        "delta_rule",
        [q, k, v, decay, beta],
        out,
        saves=[q, k, v, summed, beta, inverse, *scores],
        whole=(d.SEQUENCE, keys, values),
        together=shares,
        launches=_KERNELS,
        products=_products(heads, keys, values),
        scratch=[*_scratch(heads, keys, values, out), *([Scratch(summed, (4, 6))] if by_channel else [])],
    )


def _products(heads: str, keys: str, values: str) -> list[Product]:
    """Return multiply-adds by what they make. The backward makes w, u, the states and the scores again."""
    inside = (*_ROWS, heads, d.CHUNK)
    state = (*_ROWS, heads, keys, values)
    return [
        Product("k_k", (*inside, keys)),
        Product("w", (*inside, keys), remade=1),
        Product("u", (*inside, values), remade=1),
        Product("w_state", state, remade=1),
        Product("k_v", state, remade=1),
        Product("q_k", (*inside, keys), remade=1),
        Product("q_state", state),
        Product("scores_v", (*inside, values)),
    ]


def _scratch(heads: str, keys: str, values: str, out: Tensor) -> list[Scratch]:
    """Return what passes between the kernels, beyond one reading of each input and one writing of each output.

    Forward: scores of keys (written and read in fp32), their inverse (read), w, u (written, read), states and new
    values (written, read), keys (read by four). Backward: the same again, and gradients of all of these; keys are read
    by six kernels, queries and the result's gradient by three, and the keys' gradient is added up from two.
    """
    a_key, a_value = (*_ROWS, heads, keys), (*_ROWS, heads, values)
    return [
        Scratch(Tensor("k_again", a_key), (3, 9)),
        Scratch(Tensor("q_again", a_key), (0, 2)),
        Scratch(Tensor("v_again", a_value), (1, 1)),
        Scratch(Tensor("key_scores", (*_ROWS, heads, d.CHUNK), Element.FP32), (2, 0)),
        Scratch(Tensor("inverse_again", (*_ROWS, heads, d.CHUNK)), (1, 1)),
        Scratch(Tensor("w", a_key), (2, 6)),
        Scratch(Tensor("u", a_value), (2, 2)),
        Scratch(Tensor("new_values", a_value), (2, 2)),
        Scratch(Tensor("chunk_states", (d.BATCH, d.CHUNKS, heads, keys, values)), (2, 4)),
        Scratch(out, (0, 2)),
        Scratch(Tensor("value_gradients", a_value), (0, 5)),
    ]
