"""Stage problems for the tests: random small ones, and models as large as those that are trained."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from symconfig.solve.stages.problem import Array, Layouts, Scope, StageProblem

ANY = Layouts(any_cut=True)
CHOICES = 3


def held(pp: int, vpp: int) -> tuple[Array, ...]:
    """1F1B: stage i holds pp - i microbatches; interleaved: Megatron's warm-up through all chunks, and one more."""
    result = []
    for stage in range(pp):
        if vpp == 1:
            result.append(np.array([[pp - stage]], dtype=np.float64))
            continue
        left = 2 * (pp - stage - 1) + (vpp - 1) * pp + 1
        counts = [min(max(left - k * pp, 0), 2 * pp) for k in range(vpp)]
        first, last = np.array(counts, dtype=np.float64), np.array(counts[::-1], dtype=np.float64)
        # From chunk to chunk, a microbatch at a time.
        result.append(np.linspace(first, last, 5))
    return tuple(result)


def small(seed: int, scope: Scope, vpp: int, layouts: Layouts = ANY) -> StageProblem:
    """Up to 9 layers of up to 3 kinds, in any order, on up to 3 stages; about half of them short of memory."""
    pick = random.Random(seed)
    pp = pick.choice((2, 3)) if vpp < 3 else 2
    kinds = ("dense", "moe", "window")[: pick.choice((1, 2, 2, 3))]
    count = pick.randint(pp * vpp, min(pp * vpp + 4, 9))
    if pick.random() < 0.4:
        layers = [*("dense",) * pick.randint(0, 2), *(kinds[-1],) * count][:count]
    else:
        layers = [pick.choice(kinds) for _ in range(count)]
    sequence = ("embedding", *layers, *("mtp",) * pick.choice((0, 0, 1)), "head")
    names = tuple(dict.fromkeys(sequence))

    def falling(most: float) -> tuple[float, ...]:
        return tuple(sorted((round(pick.uniform(0, most), 2) for _ in range(CHOICES)), reverse=True))

    problem = StageProblem(
        pp=pp,
        vpp=vpp,
        sequence=sequence,
        seconds={name: tuple(sorted(round(pick.uniform(1, 3), 2) for _ in range(CHOICES))) for name in names},
        kept_bytes={name: falling(4) for name in names},
        once_bytes={name: falling(2) for name in names},
        state_bytes={name: round(pick.uniform(0, 6), 2) for name in names},
        transient_bytes={name: falling(5) for name in names},
        stage_bytes=tuple(round(pick.uniform(0, 2), 2) for _ in range(pp)),
        held=held(pp, vpp),
        limit_bytes=0.0,
        scope=scope,
        layouts=layouts,
    )
    return replace(problem, limit_bytes=round(pick.uniform(12, 110 if vpp == 1 else 200), 2))


def large(
    sequence: tuple[str, ...],
    pp: int,
    vpp: int,
    scope: Scope = Scope.MODEL,
    limit_bytes: float = 1e9,
    layouts: Layouts = ANY,
) -> StageProblem:
    """Weights of a kind as they are to each other in large models: a dense layer takes 10 ms."""
    seconds = {"embedding": 0.4, "dense": 10.0, "moe": 13.0, "window": 7.0, "mtp": 16.0, "head": 6.0}
    kept = {"embedding": 0.2, "dense": 1.0, "moe": 1.4, "window": 0.9, "mtp": 1.6, "head": 0.3}
    state = {"embedding": 6.0, "dense": 5.0, "moe": 9.0, "window": 5.0, "mtp": 10.0, "head": 6.0}
    names = tuple(dict.fromkeys(sequence))
    return StageProblem(
        pp=pp,
        vpp=vpp,
        sequence=sequence,
        seconds={name: tuple(1e-3 * seconds[name] * factor for factor in (1.0, 1.08, 1.3)) for name in names},
        kept_bytes={name: tuple(kept[name] * factor for factor in (1.0, 0.6, 0.12)) for name in names},
        once_bytes={name: (4.0 if name == "head" else 0.0,) * 3 for name in names},
        state_bytes={name: state[name] for name in names},
        transient_bytes=dict.fromkeys(names, (1.0, 1.0, 2.0)),
        stage_bytes=(0.0,) * pp,
        held=held(pp, vpp),
        limit_bytes=limit_bytes,
        scope=scope,
        layouts=layouts,
    )


def dense(layers: int) -> tuple[str, ...]:
    return ("embedding", *("dense",) * layers, "head")


DEEPSEEK = ("embedding", *("dense",) * 3, *("moe",) * 58, "mtp", "head")
ALTERNATING = ("embedding", *("window", "dense") * 24, "head")
