"""What is not stable stays closed to a search, and is opened where it is allowed, pinned or needed."""

from __future__ import annotations

from typing import Literal

import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError
from symconfig.frameworks.backend import ALL
from symconfig.frameworks.constraint import Fixed
from symconfig.frameworks.known import BACKENDS, facts
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.extras import needed_options
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tight, tiny

PLAIN = {"allow": ()}


def used(plan: Plan, candidate: Candidate) -> set[str]:
    """Names of the options that are not stable and that a candidate uses."""
    fixed = facts("megatron", plan.model, plan.cluster.gpu.architecture, joined=plan.cluster.joined_gpus)
    return {
        option.name
        for option in BACKENDS["megatron"].options
        if option.standing("core_v0.19.0") and option.used(fixed, candidate.configuration)
    }


@pytest.mark.parametrize(("model", "gib"), [("llama2-13b", 2.0), ("llama2-13b", 0.6), ("mixtral-8x7b", 4.0)])
def test_what_is_not_stable_is_used_by_no_plan_that_fits_without(model: str, gib: float) -> None:
    plan = search(tiny(model), tight(tiny(model), gib), job(8, 16, **PLAIN))
    assert plan.search.opened == ()
    assert all(used(plan, candidate) == set() for candidate in plan.ranked)


def test_a_pin_opens_what_every_plan_of_it_uses() -> None:
    model = tiny("llama2-13b")
    plan = search(model, sample_cluster("h100"), job(8, 16, **PLAIN, pins={"cp": "2"}))
    assert [(one.name, one.pinned) for one in plan.search.opened] == [("short_shares", True)]
    wider = search(model, sample_cluster("h100"), job(8, 16, **PLAIN, pins={"cp": "1..2"}))
    assert wider.best.configuration.cp == 1


SHORT = {"backend": "deepspeed", "allow": (), "seq_length": 2048}


@pytest.mark.parametrize(("model", "gpus", "gib"), [("llama2-13b", 8, 2.0), ("llama2-13b", 4, 4.0)])
def test_ulysses_splits_no_short_sequences_unless_it_is_asked_to(model: str, gpus: int, gib: float) -> None:
    small = tiny(model)
    plan = search(small, tight(small, gib), job(gpus, 16, **SHORT))
    assert {each.configuration.cp for each in plan.ranked} == {1}
    allowed = search(small, tight(small, gib), job(gpus, 16, **SHORT | {"allow": ("short_ulysses",)}))
    assert max(each.configuration.cp for each in allowed.ranked) > 1
    pinned = search(small, tight(small, gib), job(gpus, 16, **SHORT, pins={"cp": "2"}))
    assert [(one.name, one.pinned) for one in pinned.search.opened] == [("short_ulysses", True)]


@pytest.mark.parametrize(("model", "cluster", "gpus", "task"), [
    ("qwen2.5-7b-lora", "a100-80gb", 8, "lora"), ("llama2-70b-lora", "h100", 8, "lora"),
    ("llama2-70b-lora", "a100-80gb", 8, "lora"), ("llama3.1-8b", "h100", 16, "sft"),
])  # fmt: skip
def test_tuning_at_2k_tokens_is_planned_as_data_parallel_with_zero(
    model: str, cluster: str, gpus: int, task: Literal["lora", "sft"]
) -> None:
    asked = {"gpus": gpus, "global_batch_size": 64, "seq_length": 2048, "task": task, "backend": "deepspeed"}
    plan = search(load_model(model), load_cluster(cluster), Job(model=model, cluster=cluster, **asked))
    first = plan.ranked[:2]
    assert all(each.configuration.dp == gpus and each.configuration.zero_stage in (1, 2, 3) for each in first)
    assert not any(each.configuration.optimizer_offload for each in first)


def test_where_nothing_fits_the_least_is_opened_and_said() -> None:
    model, asked = tiny("llama2-13b"), job(2, 4, **PLAIN)
    gib = next(size / 100 for size in range(20, 200) if _fits(model, size / 100, allow=(ALL,)))
    assert not _fits(model, gib, allow=())
    plan = search(model, tight(model, gib), asked)
    assert {one.name for one in plan.search.opened} == used(plan, plan.best) != set()
    assert all(one.why and not one.pinned for one in plan.search.opened)
    assert plan.job.allow == ()


def _fits(model, gib, allow):  # type: ignore[no-untyped-def]
    from symconfig.solve.run import fits
    from symconfig.solve.search import resolved

    cluster = tight(model, gib)
    return fits(model, cluster, resolved(model, cluster, job(2, 4, allow=allow)))


def test_options_are_opened_by_maturity_and_no_more_than_are_needed() -> None:
    asked, fixed = job(8, 16, **PLAIN), Fixed()

    def enough(*names: str):  # type: ignore[no-untyped-def]
        return lambda trial: set(names) <= set(trial.allow)

    assert needed_options(asked, fixed, enough("optimizer_offload")) == ("optimizer_offload",)
    both = needed_options(asked, fixed, enough("expert_tensor", "optimizer_offload"))
    assert {"expert_tensor", "optimizer_offload"} <= set(both)
    assert "activation_offload" not in both
    assert needed_options(asked, fixed, enough("activation_offload")) == (*both, "activation_offload")
    assert set(needed_options(asked, fixed, enough("nothing"))) > {*both, "activation_offload"}


def test_what_a_site_lacks_is_never_opened() -> None:
    asked = job(8, 16, **PLAIN, without=("optimizer_offload",))
    names = needed_options(asked, Fixed(), lambda trial: False)
    assert "optimizer_offload" not in names


def test_an_unknown_option_is_named_with_those_that_there_are() -> None:
    model = tiny("llama2-13b")
    with pytest.raises(InputError, match=r"optimizer_offlod.*optimizer_offload"):
        search(model, sample_cluster("h100"), job(8, 16, allow=("optimizer_offlod",)))
    with pytest.raises(InputError, match="without"):
        search(model, sample_cluster("h100"), job(8, 16, without=("all",)))
