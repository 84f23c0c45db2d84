"""Which switches a plan turns on: communication runs beside work where there is some, and where Megatron-LM can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symconfig.frameworks.megatron.behaviour import MEGATRON, USER_BUFFERS
from symconfig.plans.configuration import Configuration
from symconfig.solve.prospect import Setup
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import KERNELS, job, tiny

BUFFERS = Setup(
    micro=1,
    global_batch=1,
    seq_length=1,
    overlap_tp_comm=True,
    framework=replace(MEGATRON, hide=replace(MEGATRON.hide, **USER_BUFFERS)),  # type: ignore[arg-type]
)


def options(degrees: dict[str, int], zero: int = 1, **given: object) -> Configuration:
    """Of the best plan with these degrees."""
    pins = {name: str(degrees.get(name, 1)) for name in ("tp", "pp", "vpp", "cp")}
    asked = job(8, 64, pins={**pins, "zero": str(zero)}, without=() if given else KERNELS)
    return search(tiny(), sample_cluster(), asked, **given).best.configuration  # type: ignore[arg-type]


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
    assert (found.overlap_grad_reduce, found.overlap_param_gather, found.overlap_pp_p2p) == (grads, weights, sends)
    assert not found.overlap_moe_a2a
    assert found.schedule == schedule
    assert found.microbatch_group_size == (degrees.get("pp") if schedule == "interleaved" else None)
    assert found.moe_dispatcher is None


def test_products_are_cut_where_a_pin_asks_for_it_or_the_run_does_and_it_is_worth_it() -> None:
    pins = {"tp": "2", "pp": "1", "cp": "1", "mbs": "4"}

    def cut(**given: object) -> bool:
        asked = job(8, 64, pins={**pins, **given.pop("pins", {})}, without=())  # type: ignore[dict-item]
        return search(tiny(), sample_cluster("h100"), asked, **given).best.configuration.overlap_tp_comm  # type: ignore[arg-type]

    assert cut(pins={"user_buffers": "on"})
    assert not cut(pins={"user_buffers": "off"})
    assert not cut(pins={"user_buffers": "off"}, like=BUFFERS)
    assert not options({"tp": 1}, like=BUFFERS).overlap_tp_comm
