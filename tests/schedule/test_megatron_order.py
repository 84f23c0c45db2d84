"""Orders against those of the frameworks that run them: megatron-core's and PyTorch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from symconfig.schedule.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from symconfig.schedule.schedules import SCHEDULES

SHAPES = [(2, 2, 4, 2), (4, 2, 8, 4), (4, 3, 10, 6), (4, 2, 9, 5), (8, 4, 16, 8), (3, 2, 3, 3)]


@pytest.mark.parametrize(("p", "v", "m", "group"), SHAPES)
def test_interleaving_is_megatrons(p: int, v: int, m: int, group: int) -> None:
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    table = schedules.get_schedule_table(m, v, group)
    for stage, order in enumerate(SCHEDULES["interleaved"].orders(p, v, m, group)):
        assert [(j, chunk // p) for kind, chunk, j in order if kind == FORWARD] == table
        assert [(j, v - 1 - chunk // p) for kind, chunk, j in order if kind == BACKWARD] == table
        assert {chunk % p for _, chunk, _ in order} == {stage}


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "group"),
    [
        *(("1f1b", *shape) for shape in ((4, 1, 8, 4), (4, 1, 2, 4), (1, 1, 3, 1))),
        *((name, *shape) for name in ("interleaved", "interleaved-paired") for shape in SHAPES),
    ],
)
def test_warm_up_is_megatrons(name: str, p: int, v: int, m: int, group: int) -> None:
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    for stage, order in enumerate(SCHEDULES[name].orders(p, v, m, group)):
        rank = SimpleNamespace(
            pp_group=SimpleNamespace(size=lambda: p, rank=lambda stage=stage: stage),
            virtual_pipeline_model_parallel_size=v if v > 1 else None,
        )
        _, _, warm, _ = schedules.get_pp_rank_microbatches(
            m, v, group, overlap_moe_expert_parallel_comm=name == "interleaved-paired", p2p_communicator=rank
        )
        kinds = [kind for kind, _, _ in order]
        ahead = kinds.index(BACKWARD)
        assert ahead == min(m * v, warm + 1)  # the warm-up and the steady state's first forward


def actions(name: str, p: int, v: int, m: int) -> list[list[tuple[Any, int, int]]]:
    """PyTorch's order of each stage: (kind, chunk, microbatch)."""
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {"FORWARD": FORWARD, "BACKWARD_INPUT": INPUT, "BACKWARD_WEIGHT": WEIGHT, "FULL_BACKWARD": BACKWARD}
    # The order needs no more of the schedule than its shape.
    made = SimpleNamespace(pp_group_size=p, _n_microbatches=m, n_local_stages=v, num_stages=p * v)
    return [
        [
            (kinds[action.computation_type.name], action.stage_index, action.microbatch_index)
            for action in getattr(torch, name)._calculate_single_rank_operations(made, stage)
            if action is not None
        ]
        for stage in range(p)
    ]


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 7), (4, 16), (8, 20), (4, 3)])
def test_zb_v_is_pytorchs(p: int, m: int) -> None:
    assert [list(order) for order in SCHEDULES["zb-v"].orders(p, 2, m)] == actions("ScheduleZBVZeroBubble", p, 2, m)
