"""What is said not to fit before it is worked out: never more than some layout needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from symconfig.cost.stages import stages
from symconfig.solve.pieces import settings
from symconfig.solve.room import can_pin, whole_model
from symconfig.solve.run import weigh_all
from symconfig.solve.search import resolved
from symconfig.solve.space import priced
from tests.solve.naive import job, tight, tiny


def test_activations_that_one_policy_moves_to_the_host_are_not_held_against_others() -> None:
    model = tiny(num_hidden_layers=7)
    cluster = tight(model, 1.0)
    asked = resolved(model, cluster, job(4, 8, 4096, allow=("all",)))
    piece = weigh_all(model, cluster, asked, 1).pieces[0]
    places = np.arange(piece.candidates.size)
    pp = np.full_like(places, 2)
    pipelines = whole_model(piece, pp, np.ones_like(pp))
    where = priced(piece.request, piece.candidates, pp, places)
    tried = 0
    for setting, _ in settings(piece, pipelines, where):
        even = stages(piece.low, pipelines, places, setting.tied).shared(pipelines.pp)
        moved = replace(even, away=even.away + 1e15)
        assert (can_pin(piece, moved, where, setting) == can_pin(piece, even, where, setting)).all()
        tried += 1
    assert tried
