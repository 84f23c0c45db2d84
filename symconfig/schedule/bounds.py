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

from typing import NamedTuple

import numpy as np

from symconfig.schedule.times import Array, Start


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
    Larger groups leave more to gain: of them a stage has at least its even share of the work.
    """
    m, pp, vpp = (np.asarray(value, dtype=np.float64) for value in (m, pp, vpp))
    plain = np.where(m > pp, (m + pp - 1.0) / pp, 2.0 * pp / np.maximum(2.0 * pp - m + 1.0, 1.0))
    with np.errstate(divide="ignore"):  # one microbatch and one chunk: all of it
        interleaved = -1.0 / (vpp * np.expm1(pp * np.log1p(-1.0 / (m * vpp))))
    result: Array = np.where(vpp > 1, interleaved, plain) * total_s
    return result


def even_exchanged_s(
    m: Array, pp: Array, vpp: Array, total_s: Array, moved: Sums, group: Array, contention: float
) -> Array:
    """Return seconds below which no split over pp x vpp chunks brings a step in which stages gather and reduce, too.

    The mean over stages of what `exchanged_bound_s` has for each of them, which depends on the sums over stages alone:
    of one chunk a stage all passes with all that is gathered and reduced, but for the first forward and last backward
    that hide some; of several either without the passes of one group, or with the share that contention makes it slow
    the passes by. Whole groups of pp.
    """
    total_s = np.where(np.isfinite(total_s), total_s, 0.0)
    exchanged_s = moved.gather_s + moved.reduce_s
    one = (m - moved.hide) * total_s + exchanged_s
    gathers, reduces = (1.0 if start is Start.APART else contention for start in (moved.gathers, moved.reduces))
    slowed = m * total_s + gathers * moved.gather_s + reduces * moved.reduce_s
    whole = np.where(group == pp, (m - pp) * total_s + exchanged_s, 0.0)
    result: Array = np.where(vpp > 1, np.maximum(slowed, whole), one) / pp
    return result


def layout_bound_s(forward: Array, backward: Array, m: Array | int, paired: bool = False) -> Array:
    """Bound the simulated step of a layout from below, [...], by the seconds of its chunks' passes [pp, vpp, ...].

    The longest path through all tasks of one stage. Before them the stages above fill; after them they drain.
    m >= pp; groups of pp.
    """
    both = (forward + backward)[:, 0]
    through = _through_s(forward, backward, m, paired, np.zeros(()))
    result: Array = (both.cumsum(axis=0) - both + through).max(axis=0)
    return result


def _through_s(forward: Array, backward: Array, m: Array | int, paired: bool, hidden: Array) -> Array:
    """Return the seconds from each stage's first task to its last one: [pp, ...].

    It waits for its first backward (its last one): the last chunk's passes through the stages below, less the forwards
    (backwards) that it runs ahead of them, in Megatron's order; one more where it runs them in pairs. It does so after
    the last chunk's first forward, and before its last backward. hidden: as of `Exchanged`, or 0.
    """
    pp, vpp = forward.shape[:2]
    ahead = np.arange(pp - 1.0, -1.0, -1.0).reshape(-1, *[1] * (forward.ndim - 2)) * (1 if vpp == 1 else 2) + paired
    of_last = np.minimum(ahead, pp - 1.0)  # those of the same round; the others are of the first chunk
    both = forward + backward
    after = both[::-1, -1].cumsum(axis=0)[::-1] - both[:, -1]
    first, last = (
        np.maximum(after - of_last * longest[:, -1] - (ahead - of_last) * longest[:, 0], 0.0)
        for longest in (forward + hidden, backward + hidden)
    )
    apart = m * vpp > 2 * (ahead + (vpp - 1) * pp)  # else the two waits may be one
    waits = np.where(apart, first + last, np.maximum(first, last))
    result: Array = m * both.sum(axis=1) + waits
    return result


class Sums(NamedTuple):
    """At least what all stages gather and reduce in a step, in seconds, [n]; when, and which share hides, as of
    `Times`."""

    gather_s: Array
    reduce_s: Array
    gathers: Start
    reduces: Start
    hide: float


class Exchanged(NamedTuple):
    """What a layout's chunks gather and reduce, as of `Times`: arrays [pp, vpp, ...] as the passes are.

    hidden: by how much passes take longer, at most, with no other microbatch beside them.
    """

    gather: Array
    reduce: Array
    gathers: Start
    reduces: Start
    hide: Array
    hidden: Array
    contention: float


def exchanged_bound_s(
    forward: Array, backward: Array, m: Array | int, group: int, moved: Exchanged, paired: bool = False
) -> Array:
    """Bound the simulated step from below like `layout_bound_s`, with all that each stage gathers and reduces: [...].

    The path begins with what a stage gathers and ends with what it reduces. Groups of `group` microbatches; what slows
    tasks makes the step longer.
    """
    first = np.minimum(group, np.asarray(m, dtype=np.float64))
    last = m - first * (np.ceil(m / first) - 1)
    # With larger groups a stage has more to run while it waits.
    plain = forward.shape[1] > 1 and group > forward.shape[0]
    through = (
        (m * (forward + backward)).sum(axis=1) if plain else _through_s(forward, backward, m, paired, moved.hidden)
    )
    if paired:
        through = through + _alone_s(forward.shape[:2], m, first, last, moved.hidden)
    before = _outside_s(forward, first, moved.gather, moved.gathers, moved)
    after = _outside_s(backward, last, moved.reduce, moved.reduces, moved)
    result: Array = (before + through + after).max(axis=0)
    return result


def _alone_s(shape: tuple[int, ...], m: Array | int, first: Array, last: Array, hidden: Array) -> Array:
    """Return by how much each stage's tasks take longer than if all ran in pairs, [pp, ...]: half of `hidden` for every
    forward and backward that runs alone. first, last: microbatches of the first and of the last group.

    In a pair a chunk's forward and backward each save half of what both hide: what a chunk's passes save or not differs
    by that half, whichever of the two hides more. Alone run a stage's first forwards, those ahead of its first backward
    and one more, and as many of its last backwards.
    """
    pp, vpp = shape
    down = np.arange(pp - 1.0, -1.0, -1.0).reshape(-1, *[1] * (hidden.ndim - 1))  # [pp, vpp, ...], as is all here
    place = np.arange(vpp).reshape(1, -1, *[1] * (hidden.ndim - 2))
    warm = np.minimum(2 * down + (vpp - 1) * first + 1, m * vpp) if vpp > 1 else m * np.ones_like(down)
    result = np.zeros(())
    for begin in (first, last):  # microbatches of the group at that end; those of a shorter one at the other end: fewer
        rest = np.maximum(warm - begin * vpp, 0.0)
        alone = np.clip(warm - place * begin, 0.0, begin) + rest // (first * vpp) * first
        alone = np.minimum(alone + np.clip(rest % (first * vpp) - place * first, 0.0, first), m)
        result = result + (alone * hidden / 2).sum(axis=1)
    return result


def _outside_s(passes: Array, group: Array, seconds: Array, start: Start, moved: Exchanged) -> Array:
    """Return what each stage's path has ahead of its tasks, less those that it then leaves out: [pp, ...].

    Said for gathers and forwards; for reductions and backwards the same holds back in time. A stage's collectives run
    one after the other, in order of its chunks. Ahead, chunk k has weights when those of chunks 0 to k are gathered.
    Ahead of its first forward are only the first group's forwards of chunks below k: with the others, all of which come
    later, the gathers up to k make a path, for every k. They may have been longer than in pairs, by `hidden` at most.
    For chunk 0 a path leads also through the stages above, from what any of them has gathered. From its start to the
    end of all gathers a stage has done no more than those forwards, nor more than contention leaves it time for.
    """
    hide = moved.hide.reshape(*moved.hide.shape, *[1] * (passes.ndim - 2))
    longest = passes + moved.hidden
    above = passes[:, 0].cumsum(axis=0) - passes[:, 0]
    if start is Start.ON_DEMAND:  # each when the stage above has sent its first output
        result: Array = above + np.maximum(seconds - hide * longest, 0.0)[:, 0].cumsum(axis=0)
        return result
    ready = seconds.sum(axis=1, keepdims=True) if start is Start.APART else seconds.cumsum(axis=1) - hide * longest
    start_s = above + np.maximum(np.maximum.accumulate(ready[:, 0] - above, axis=0), 0.0)
    slowed_s = start_s + moved.contention * np.maximum(ready[:, -1] - start_s, 0.0)
    ready[:, 1:] -= group * longest.cumsum(axis=1)[:, : ready.shape[1] - 1]
    longer: Array = np.maximum(slowed_s, ready.max(axis=1))
    return longer
