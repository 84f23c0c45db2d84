"""A batch that few replicas can share is told apart from one that a plan would not share among more anyway."""

from __future__ import annotations

import pytest

from symconfig.plans.sentences import batch_nearby
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny

MODEL = tiny()


@pytest.mark.parametrize(
    ("gpus", "batch", "dp", "better"),
    [
        (16, 100, 4, 96),  # 16 replicas, and 104 would have 8
        (16, 98, 2, 96),
        (16, 96, 16, None),  # as many as can be
        (16, 100, 1, None),  # the plan has far fewer than it may
        (16, 12, 4, None),  # 16 is no batch close by
        (8, 63, 1, 64),
    ],
)
def test_a_batch_close_by_that_more_replicas_share_is_named(gpus: int, batch: int, dp: int, better: int | None) -> None:
    plan = search(MODEL, sample_cluster(), job(gpus, batch, pins={"dp": str(dp)}))
    said, replicas = batch_nearby(plan), f"{dp} replica{'s' if dp > 1 else ''}"
    shared = f"at most {replicas} of {gpus} GPUs, {better} by up to {gpus}. Try: --global-batch-size {better}"
    assert said is None if better is None else said is not None and shared in said
