"""A configuration shown as a candidate is the same configuration; and which switches a plan turns on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from symconfig.frameworks.megatron.behaviour import MEGATRON, USER_BUFFERS
from symconfig.plans.configuration import Configuration
from symconfig.solve.candidate import described
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Setup
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import KERNELS, job, tiny

PLAIN = Setup(
    tp=2,
    pp=2,
    dp=2,
    micro=1,
    global_batch=16,
    seq_length=2048,
    version="core_v0.19",
)


def changed(**changes: Any) -> Setup:
    """PLAIN with other degrees or options."""
    return replace(PLAIN, **changes)


CHANGES: dict[str, dict[str, Any]] = {
    "nothing recomputed": {},
    "selective": {"recompute": "selective", "recompute_modules": ("core_attn", "mlp")},
    "full": {"recompute": "full", "recompute_method": "uniform"},
    "full, two layers at once": {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    "first layer of each chunk": {"recompute": "full", "recompute_method": "block"},
    "sequence parallel, interleaved, ZeRO 1": {"sequence_parallel": True, "vpp": 2, "zero_stage": 1},
    "Ulysses": {"cp": 2, "cp_comm": "a2a"},
    "half of the optimizer in host memory": {"zero_stage": 1, "optimizer_offload": 0.5},
    "activations in host memory": {"activation_offload": True},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_there_and_back(changes: dict[str, Any]) -> None:
    asked, cluster = changed(**changes), sample_cluster()
    found = as_found(tiny(), cluster, asked)
    assert Setup.of(described(found, cluster, found.request.job), MEGATRON) == asked


@pytest.mark.parametrize("changes", [{}, {"pp": 1, "zero_stage": 1}, {"cp": 2}])
def test_rates_are_those_of_all_gpus(changes: dict[str, Any]) -> None:
    asked, cluster = changed(**changes), sample_cluster()
    found = as_found(tiny(), cluster, asked)
    shown = described(found, cluster, found.request.job).predicted
    tokens = asked.global_batch * asked.seq_length
    assert shown.tokens_per_s_per_gpu * shown.step_s * asked.world_size == pytest.approx(tokens)
    assert shown.mfu == pytest.approx(shown.model_tflops_per_gpu * 1e12 / 312e12)
    assert sum(shown.time.values()) == pytest.approx(shown.step_s)


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
