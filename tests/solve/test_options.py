"""Which switches a plan turns on: communication runs beside work where there is some, and where Megatron-LM can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.frameworks.megatron.behaviour import MEGATRON, USER_BUFFERS
from symconfig.plans.plan import Options
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny

BUFFERS = replace(MEGATRON, hide=replace(MEGATRON.hide, **USER_BUFFERS))  # type: ignore[arg-type]


def options(degrees: dict[str, int], zero: int = 1, **given: object) -> Options:
    """Of the best plan with these degrees."""
    pins = {name: str(degrees.get(name, 1)) for name in ("tp", "pp", "vpp", "cp")}
    return search(tiny(), sample_cluster(), job(8, 64, pins={**pins, "zero": str(zero)}), **given).best.options  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("degrees", "zero", "grads", "weights", "sends", "schedule"),
    [
        ({}, 0, True, False, False, "none"),
        ({}, 1, True, True, False, "none"),
        ({"tp": 2}, 1, True, True, False, "none"),
        ({"tp": 4, "cp": 2}, 1, True, True, False, "none"),
        ({"pp": 2}, 1, True, False, False, "1f1b"),  # gathers would go stage after stage
        ({"pp": 2, "vpp": 2}, 1, True, True, True, "interleaved"),
        ({"pp": 2, "vpp": 2}, 0, True, False, True, "interleaved"),
        ({"tp": 4, "pp": 2, "vpp": 2}, 0, False, False, True, "interleaved"),  # no replica
    ],
)
def test_what_runs_beside_work(
    degrees: dict[str, int], zero: int, grads: bool, weights: bool, sends: bool, schedule: str
) -> None:
    found = options(degrees, zero)
    assert found.zero_stage == zero
    assert (found.overlap.grad_reduce, found.overlap.param_gather, found.overlap.pp_p2p) == (grads, weights, sends)
    assert not found.overlap.moe_a2a
    assert found.schedule == schedule
    assert found.microbatch_group_size == (degrees.get("pp") if schedule == "interleaved" else None)
    assert (found.cp_comm is not None) == ("cp" in degrees)
    assert found.moe_dispatcher is None


@pytest.mark.parametrize("tp", [1, 2])
def test_products_are_cut_where_the_run_does_so_and_ranks_share_them(tp: int) -> None:
    assert options({"tp": tp}, framework=BUFFERS).overlap.tp_comm == (tp == 2)
    assert not options({"tp": tp}).overlap.tp_comm
