"""The choice: expected loss over draws of what is uncertain, and among what cannot be told apart the plainest plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.plans.plan import Judged
from symconfig.solve.budget import fitting
from symconfig.solve.candidate import tidy
from symconfig.solve.choice.draws import DRAWS, Draws, step_seconds
from symconfig.solve.choice.family import family
from symconfig.solve.choice.simplicity import Simplicity, simplicity
from symconfig.solve.choice.variants import variants
from symconfig.solve.detail import detail
from symconfig.solve.found import Found

# Of the fastest step of a draw: plans whose expected losses differ by less cannot be told apart. Of 173 pairs of runs
# in published sweeps that are predicted within 1.5 % of each other the faster one is told in 55 of 100, of 202 within
# 1.5 to 3 % in 69, and the further apart they are the more often.
TOLD_APART = 0.015
WITHIN = 0.03  # of the fastest: the simplest plan in there is shown beside the pick
LEADERS = 3  # families of which plainer variants are tried
NEAR = 1.04  # of the fastest: up to here


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plan with its step under every draw, [DRAWS]."""

    found: Found
    simplicity: Simplicity
    steps: Array


@dataclass(frozen=True, slots=True)
class Choice:
    """picks: one plan of each family, best first, with how it is judged. fastest: under the model, of all that was
    found; simplest: within `WITHIN` of it."""

    picks: tuple[tuple[Found, Judged], ...]
    fastest: Found
    simplest: tuple[Found, Judged]


def choose(ranked: Sequence[Found], cluster: ClusterDescriptor, top: int) -> Choice:
    """Judge the best plans of families, and put them in order; ranked: the fastest first."""
    draws, fastest = Draws.of(cluster), ranked[0]
    leading = [found for found in ranked[:LEADERS] if found.step_s <= NEAR * fastest.step_s]
    every = [*ranked, *(plain for found in leading for plain in variants(found))]
    fastest = min(every, key=lambda found: found.order)
    drawn = [Drawn(each, simplicity(each, cluster.near), step_seconds(each, cluster, draws)) for each in every]
    families: dict[object, list[Drawn]] = {}
    for each in drawn:
        families.setdefault(family(each.found), []).append(each)
    best_s = np.min([each.steps for each in drawn], axis=0)
    picks = [pick(drawn)]
    picks += sorted(
        (pick(mine) for name, mine in families.items() if name != family(picks[0].found)),
        key=lambda each: (float((each.steps / best_s).mean()), each.found.order),
    )
    near = [each for each in drawn if each.found.step_s <= (1 + WITHIN) * fastest.step_s]
    simplest = min(near, key=lambda each: (each.simplicity, each.found.order))
    first = np.argmin([each.steps for each in picks], axis=0)
    known = {id(each): judged(each, best_s, first == place, cluster) for place, each in enumerate(picks)}
    return Choice(
        picks=tuple((each.found, known[id(each)]) for each in picks[:top]),
        fastest=fastest,
        simplest=(simplest.found, known.get(id(simplest)) or judged(simplest, best_s, np.zeros(DRAWS), cluster)),
    )


def judged(drawn: Drawn, best_s: Array, is_first: Array, cluster: ClusterDescriptor) -> Judged:
    """Return how a plan stands. best_s: the fastest step of each draw; is_first: whether it is the fastest of all
    families' picks; [DRAWS] each."""
    found, loss = drawn.found, drawn.steps / best_s - 1
    fits = fitting(found.request, found.machine, max(detail(found).peaks), cluster)
    return Judged(
        best=tidy(float(is_first.mean())),
        expected_loss=tidy(float(loss.mean())),
        worst_loss=tidy(float(loss.max())),
        fits=tidy(fits),
    )


def pick(drawn: Sequence[Drawn]) -> Drawn:
    """Return the plainest of the plans that cannot be told from the one with the least expected loss."""
    best = np.min([each.steps for each in drawn], axis=0)
    losses = [each.steps / best - 1 for each in drawn]
    first = min(range(len(drawn)), key=lambda place: (float(losses[place].mean()), drawn[place].found.order))
    least = float(losses[first].mean())
    alike = [place for place, loss in enumerate(losses) if loss.mean() <= least + TOLD_APART]
    return drawn[min(alike, key=lambda at: (drawn[at].simplicity, float(losses[at].mean()), drawn[at].found.order))]
