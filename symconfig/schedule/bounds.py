"""What no split of a model over its stages can be faster than, under 1F1B and interleaved 1F1B.

A simulated step is the longest path of tasks that wait for each other: a maximum of sums of durations with whole
coefficients. Any weighted mean of paths is a lower bound of it, and where the mean has the same coefficient K on every
chunk, K times the model's seconds is one that no distribution of these seconds over the chunks goes below.

Even stages are not always the fastest, though they are what closed forms of the bubble are stated for:

- 1F1B, more microbatches than stages: even stages are the fastest, (m + p - 1) T/p. With m <= p a lighter last stage
  gains: 2 p T/(2 p - m + 1), which some split reaches (p = m = 2, forward and backward 2/3, 2/3 and 2/3, 0: 8/3 for 3).
- Interleaved, a lighter last chunk gains for every m: it is in the way of the first and of the last microbatch twice,
  and early stages, which run 2 (p - i - 1) forwards ahead, have time to spare. About half the bubble can be won, a
  third if backwards take twice their forwards: p = v = 2, m = 16 takes 32.51 (32.65) of 33 on even chunks.
"""

from __future__ import annotations

import numpy as np

from symconfig.schedule.times import Array


def even_bound_s(m: Array | int, pp: Array | int, vpp: Array | int, total_s: Array | float) -> Array:
    """Return seconds below which no split over pp x vpp chunks brings a step of m microbatches. All arguments
    broadcast.

    total_s: T, seconds of one microbatch in the whole model, forward and backward; messages that occupy their receiver
    belong to it. The bound holds for forwards and backwards apart: their ratio may differ from chunk to chunk.

    vpp = 1, m > p: the path that fills the pipeline down to stage i, passes all stages below with the first microbatch,
    returns for m - p + i + 1 of stage i's own, and passes them again with the last. It has i + (m - p + i + 1) +
    2 (p - i - 1) = m + p - 1 chunks for every i; weights w_i that solve w_j (m - p + j) = (m - 1)/p - sum_{i<j} w_i are
    positive, sum to one, and leave the coefficient (m + p - 1)/p everywhere.
    vpp = 1, m <= p: those paths for i > p - m, and of stages before that all forwards, one pass of the others, and one
    backward, or the reverse: T + (m - 1)/2 T_i in the mean.
    vpp > 1, groups of p: stage i's own m microbatches, but for the first group's (last group's) passes of its chunks
    before the r-th, whose place the first (last) microbatch's own way to chunk i + r p takes: for every i and r a path.
    A weighted mean of these has equal coefficients, of at least 1/(v (1 - (1 - 1/(m v))^p)), which is m/p +
    (p - 1)/(2 p v) and terms in 1/m: half the bubble. The test solves for the weights, shape by shape.
    Larger groups leave more to gain.
    """
    m, pp, vpp = (np.asarray(value, dtype=np.float64) for value in (m, pp, vpp))
    plain = np.where(m > pp, (m + pp - 1.0) / pp, 2.0 * pp / np.maximum(2.0 * pp - m + 1.0, 1.0))
    with np.errstate(divide="ignore"):  # one microbatch and one chunk: all of it
        interleaved = -1.0 / (vpp * np.expm1(pp * np.log1p(-1.0 / (m * vpp))))
    result: Array = np.where(vpp > 1, interleaved, plain) * total_s
    return result


def layout_bound_s(forward: Array, backward: Array, m: Array | int, paired: bool = False) -> Array:
    """Bound the simulated step of a layout from below, [...], by the seconds of its chunks' passes [pp, vpp, ...].

    The longest path through all tasks of one stage. Before them the stages above fill; after them they drain. Between
    them the stage waits for its first backward (its last one): the last chunk's passes through the stages below, less
    the forwards (backwards) that it runs ahead of them, in Megatron's order; one more where it runs them in pairs.
    m >= pp; groups of pp.
    """
    pp, vpp = forward.shape[:2]
    ahead = np.arange(pp - 1.0, -1.0, -1.0).reshape(-1, *[1] * (forward.ndim - 2)) * (1 if vpp == 1 else 2) + paired
    of_last = np.minimum(ahead, pp - 1.0)  # those of the same round; the others are of the first chunk
    both = forward + backward
    before = both[:, 0].cumsum(axis=0) - both[:, 0]
    after = both[::-1, -1].cumsum(axis=0)[::-1] - both[:, -1]
    first, last = (
        np.maximum(after - of_last * passes[:, -1] - (ahead - of_last) * passes[:, 0], 0.0)
        for passes in (forward, backward)
    )
    apart = m * vpp > 2 * (ahead + (vpp - 1) * pp)  # else the two waits may be one
    waits = np.where(apart, first + last, np.maximum(first, last))
    result: Array = (before + m * both.sum(axis=1) + waits).max(axis=0)
    return result
