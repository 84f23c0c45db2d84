"""The best plan that a target can be told: refusals name the right pins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

import symconfig
from symconfig.descriptor.job import Job
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Candidate, Plan
from symconfig.render import named, render, target_of, targets
from symconfig.solve.choice import TIE
from symconfig.solve.pins import agree
from tests.pins import VALUES
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.sample_rl import LEARNING, step

# Pins of options beside the degrees, as a candidate holds them.
OPTIONS: dict[str, Callable[[Candidate], str | None]] = {
    "user_buffers": lambda candidate: "on" if candidate.configuration.overlap_tp_comm else "off",
    "dispatcher": lambda candidate: candidate.configuration.moe_flex_backend or "alltoall",
    "cuda_graphs": lambda candidate: candidate.configuration.cuda_graphs.replace(" ", "_"),
    "grad_dtype": lambda candidate: "fp32" if candidate.configuration.grad_bytes == 4 else "bf16",
    "fp8_param_gather": lambda candidate: "on" if candidate.configuration.fp8_param_gather else "off",
    "fused_loss": lambda candidate: "on" if candidate.configuration.fused_loss else "off",
}


@cache
def _plans(model: str) -> tuple[Plan, ...]:
    """Choices of all kinds for one model, whether or not they would be good ones."""
    switches: list[dict[str, Any]] = [
        {},
        {"zero_stage": 0},
        {"zero_stage": 3},
        {"sequence_parallel": False},
        {"activation_offload": True},
        {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
        {"recompute": "none"},
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 1},
        {"overlap_moe_a2a": True},
        {"overlap_tp_comm": True},
        {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"},
        {"moe_dispatcher": "flex", "moe_flex_backend": "hybridep"},
        {"cuda_graphs": "router"},
        {"cuda_graphs": "outside experts"},
        {"cuda_graphs": "all"},
        {"grad_bytes": 2},
        {"precision": "fp8", "fp8_param_gather": True},
        {"fused_loss": True},
    ]
    degrees = [
        {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "dp": 16 // (tp * pp * cp), "cp_comm": comm}
        for tp, pp, vpp, cp, comm in (
            (1, 1, 1, 1, "p2p"),
            (2, 1, 1, 1, "p2p"),
            (1, 2, 1, 1, "p2p"),
            (1, 1, 1, 2, "p2p"),
            (2, 2, 2, 2, "a2a"),
        )
    ]
    plans = [sample_plan(model, **shape, **switch) for shape in degrees for switch in switches]
    return tuple(plan for plan in plans if plan.model.experts is not None or not _of_experts(plan))


def _of_experts(plan: Plan) -> bool:
    return plan.best.configuration.overlap_moe_a2a or plan.best.configuration.moe_dispatcher is not None


@cache
def _refused(model: str, target: str) -> tuple[tuple[Plan, tuple[Problem, ...]], ...]:
    return tuple((plan, _problems(plan, target)) for plan in _plans(model))


def _problems(plan: Plan, target: str) -> tuple[Problem, ...]:
    try:
        return named(target).refusals(plan)
    except InputError:
        return (Problem("cannot be"),)


def _holds(candidate: Candidate, pin: str) -> bool:
    name, _, value = pin.partition("=")
    if (name, value) == ("layout", "equal"):
        return candidate.configuration.pipeline_layout is None
    mine = {**VALUES, **OPTIONS}[name](candidate)
    return mine is not None and agree(name, mine, value)


@pytest.mark.parametrize("model", ["llama3.1-70b", "mixtral-8x7b"])
@pytest.mark.parametrize("target", sorted(targets()))
def test_what_is_refused_has_none_of_the_pins_and_all_that_is_told_has_one(model: str, target: str) -> None:
    told = [plan for plan, problems in _refused(model, target) if not problems]
    mended = {problem.pins for _, problems in _refused(model, target) for problem in problems if problem.pins}
    for plan, problems in _refused(model, target):
        for problem in problems:
            assert not any(_holds(plan.best, pin) for pin in problem.pins), problem
    for pins, plan in product(mended, told):
        assert any(_holds(plan.best, pin) for pin in pins), (pins, plan.best)


@cache
def _free(backend: str, version: str) -> Plan:
    return _planned(backend=backend, megatron_version=version)


def _planned(**fields: Any) -> Plan:
    if fields.get("target") in LEARNING:
        return symconfig.plan("llama3.1-8b", "h100", 16, top=3, rl=step("llama3.1-8b"), **fields).plan
    cluster = "ascend-910b" if fields.get("target") == "mindspeed" else "h100"
    return symconfig.plan("llama3.1-8b", cluster, 16, 64, top=3, **fields).plan


@pytest.mark.parametrize("target", sorted(targets()))
def test_a_plan_for_a_target_is_told_to_it_and_so_are_its_runners_up(target: str) -> None:
    plan = _planned(target=target)
    assert plan.job.target == target
    assert plan.job.pins == {}
    assert all(plan.job.model_dump()[name] == value for name, value in named(target).assumes.items())
    for candidate in plan.ranked:
        assert render(replace(plan, best=candidate), target).paths()
    assert parse_plan(plan.to_json()) == replace(plan, search=replace(plan.search, seconds=0.0))
    if target in LEARNING or target == "mindspeed":  # whose GPUs are others
        return
    free = _free(plan.job.backend, plan.job.megatron_version)
    (score, free_score) = (one.best.standing.score_s for one in (plan, free) if one.best.standing is not None)
    assert TIE * score >= free_score


def test_what_is_pinned_and_what_the_target_needs_may_leave_nothing() -> None:
    with pytest.raises(
        InfeasibleError, match=r"with the pins tp=2: LLaMA-Factory has no switch for DeepSpeed's AutoTP"
    ):
        _planned(target="llamafactory", pins={"tp": "2"})
    with pytest.raises(InputError, match=r"pins\.cuda_graphs: ms-swift's trainer captures no CUDA graphs"):
        _planned(target="ms-swift", pins={"cuda_graphs": "all"})


@pytest.mark.parametrize(
    ("fields", "name"),
    [({}, "megatron"), ({"backend": "deepspeed"}, "deepspeed"), ({"target": "ms-swift"}, "ms-swift")],
)
def test_the_target_of_a_job(fields: dict[str, str], name: str) -> None:
    job = Job.model_validate({"model": "m", "cluster": "c", "gpus": 8, "global_batch_size": 8, **fields})
    assert target_of(sample_model("llama2-13b"), job).name == name


def test_the_target_of_an_adapter() -> None:
    def of(**fields: str) -> str:
        job = Job.model_validate({"model": "m", "cluster": "c", "gpus": 8, "global_batch_size": 8, **fields})
        return target_of(sample_model("llama2-13b-lora"), job).name

    assert (of(), of(backend="megatron"), of(backend="deepspeed")) == ("deepspeed", "bridge", "deepspeed")
