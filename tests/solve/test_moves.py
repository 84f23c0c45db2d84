"""Moves between layouts: nothing is lost, and the search ends where no move of its best layout helps."""

from __future__ import annotations

import numpy as np

from symconfig.descriptor.load import load_cluster
from symconfig.graph.model import sequence
from symconfig.solve.costed import costed
from symconfig.solve.floor import waiting
from symconfig.solve.moves import moved, moves
from symconfig.solve.run import run, weigh_all
from symconfig.solve.search import resolved
from symconfig.solve.split import Split
from symconfig.solve.timeline import refined_s
from tests.sample_models import sample_model
from tests.solve.naive import job, tight, tiny

CHUNKS = (("embedding", "dense", "dense"), ("dense",), ("dense", "dense"), ("dense", "head"))


def test_every_move_keeps_every_block_in_order_and_moves_one_layer() -> None:
    found = list(moves(Split(2, 2, CHUNKS)))
    assert len(found) == len(set(found)) == 4 * 3
    for chunks in found:
        assert [kind for chunk in chunks for kind in chunk] == [kind for chunk in CHUNKS for kind in chunk]
        sizes = [len(new) - len(old) for new, old in zip(chunks, CHUNKS, strict=True)]
        assert sorted(sizes) == [-1, 0, 0, 1]


def test_only_what_the_target_can_say_is_proposed() -> None:
    model = tiny(num_hidden_layers=8)
    cluster = tight(model, 4.0)
    asked = resolved(model, cluster, job(4, 8, 4096, pins={"pp": "2", "vpp": "2"}))
    piece = weigh_all(model, cluster, asked, 1).pieces[0]
    left = waiting(piece, np.inf)
    assert left is not None
    floors = left.floors(np.inf)[0][0]
    blocks = sequence(model)
    split = Split(2, 2, (blocks[:3], blocks[3:5], blocks[5:7], blocks[7:]))
    near = moved(floors, split, 0, 0, 5)
    assert len(near) == 5
    assert all(other.layout or other.first_layers is not None or other.chunks for other in near)
    assert split.chunks not in [other.chunks for other in near]


def test_what_is_near_the_best_layout_is_tried() -> None:
    """Eight stages of three chunks for forty layers: the fastest slowest stage is not the fastest step."""
    model, cluster = sample_model("llama2-13b"), load_cluster("a100-80gb")
    pins = {"pp": "8", "tp": "1", "vpp": "3", "mbs": "1", "recompute": "none", "activation_offload": "0"}
    asked = resolved(model, cluster, job(16, 32, 4096, pins=pins))
    formula = min(refined_s(found, costed(found)) for found in weigh_all(model, cluster, asked, 5).best)
    outcome = run(model, cluster, asked, 1, None, 0.0)
    best = outcome.weighed.ranked()[0]
    assert best.step_s < 0.98 * formula
    assert outcome.proof is not None
    assert outcome.proof.floor_s >= best.step_s
    assert outcome.proof.untried_s < best.step_s
