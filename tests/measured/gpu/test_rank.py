"""Which rank runs, how much of a step it runs, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symconfig.cost.flight import in_flight
from symconfig.errors import InputError
from symconfig.measured.gpu.predict import expected
from symconfig.measured.gpu.rank import choose, microbatches
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from tests.sample_plans import sample_plan


def test_the_stage_of_a_rank_is_outermost_in_the_grid() -> None:
    plan = sample_plan("llama3.1-70b", cp=1)
    each = plan.best.parallel.world_size // 4
    stages = [choose(plan, str(rank), "3", "local", "cpu").stage for rank in (0, each - 1, each, 4 * each - 1)]
    assert stages == [0, 0, 1, 3]


def test_the_heaviest_rank_is_of_the_stage_that_needs_most() -> None:
    plan = sample_plan("llama2-13b", pp=4, tp=1)
    peaks = costed(restore(plan, plan.best)).peaks
    chosen = choose(plan, "heaviest", "3", None, "cuda")
    assert peaks[chosen.stage] == max(peaks)
    assert chosen.rank == chosen.stage * (plan.best.parallel.world_size // 4)


@pytest.mark.parametrize("degrees", [{"pp": 4, "tp": 1}, {"pp": 1, "tp": 1}, {"pp": 2, "vpp": 5, "tp": 2}])
def test_enough_microbatches_run_to_hold_what_the_plan_holds(degrees: dict[str, int]) -> None:
    plan = sample_plan("llama2-13b", **degrees)
    parts = costed(restore(plan, plan.best))
    held = in_flight(parts.points, parts.setting)[:, 0]
    ran = np.array([microbatches(plan, stage) for stage in range(plan.best.parallel.pp)])
    assert (ran <= plan.best.batch.num_microbatches).all()
    assert (ran >= np.minimum(held, plan.best.batch.num_microbatches)).all()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rank": "64"}, "--rank"),
    ({"rank": "-1"}, "--rank"),
    ({"rank": "last"}, "--rank"),
    ({"steps": "1"}, "--steps"),
    ({"steps": "many"}, "--steps"),
    ({"impl": "apex"}, "--transformer-impl"),
    ({"impl": "transformer_engine", "device": "cpu"}, "--transformer-impl"),
    ({"device": "tpu"}, "--device"),
]


@pytest.mark.parametrize(("asked", "field"), WRONG)
def test_a_wrong_option_is_named(asked: dict[str, Any], field: str) -> None:
    options = {"rank": "0", "steps": "3", "impl": None, "device": "cuda"} | asked
    with pytest.raises(InputError) as error:
        choose(sample_plan("llama2-13b"), **options)
    assert [problem.field for problem in error.value.problems] == [field]


def test_what_only_transformer_engine_does_is_refused_for_the_local_layers() -> None:
    with pytest.raises(InputError, match="context parallelism"):
        choose(sample_plan("llama2-13b", cp=2, tp=2), "0", "3", "local", "cuda")
    with pytest.raises(InputError, match="fp8"):
        choose(sample_plan("llama2-13b", "h100", precision="fp8"), "0", "3", "local", "cuda")


def test_optimizer_state_in_host_memory_needs_a_gpu() -> None:
    plan = sample_plan("llama2-13b", optimizer_offload=0.5)
    with pytest.raises(InputError, match="on a CPU is the same memory"):
        choose(plan, "0", "3", None, "cpu")


def test_windows_and_sinks_run_with_megatrons_own_attention() -> None:
    assert choose(sample_plan("gpt-oss-120b"), "0", "3", "local", "cuda").attention == "unfused"
    assert choose(sample_plan("llama2-13b"), "0", "3", "local", "cuda").attention == "flash"


def test_a_plan_for_deepspeed_has_no_rank_of_megatron() -> None:
    with pytest.raises(InputError, match="only ranks of Megatron-LM"):
        choose(sample_plan("qwen2.5-7b", backend="deepspeed"), "0", "3", None, "cuda")


@pytest.mark.parametrize("recompute", [("none", None), ("full", "uniform"), ("full", "block")])
def test_the_plans_own_layers_are_expected_to_hold_what_the_plan_says(recompute: tuple[str, str | None]) -> None:
    plan = _with_recompute(*recompute)
    peaks = costed(restore(plan, plan.best)).peaks
    for stage in range(2):
        hope = expected(plan, stage, "transformer_engine", "flash")
        assert hope.peak_bytes == pytest.approx(peaks[stage], rel=1e-12)
        assert hope.forward_s > 0
        assert hope.optimizer_s > 0


def test_recomputing_more_layers_takes_longer_backward_only() -> None:
    plain, block, full = (
        expected(_with_recompute(*how), 0, "transformer_engine", "flash")
        for how in (("none", None), ("full", "block"), ("full", "uniform"))
    )
    assert plain.forward_s == block.forward_s == full.forward_s
    assert plain.backward_s < block.backward_s < full.backward_s


def _with_recompute(granularity: str, method: str | None) -> Plan:
    from symconfig.plans.plan import Recompute

    layers = {"uniform": 1, "block": 5}.get(method or "")
    return sample_plan("llama2-13b", recompute=Recompute(granularity, (), method, layers))  # type: ignore[arg-type]
