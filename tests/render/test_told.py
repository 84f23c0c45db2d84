"""The best plan that a target can be told: the search over refusals is exact, and refusals name the right pins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import symconfig
from symconfig.descriptor.job import Job
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.frameworks.constraint import other
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Candidate, Plan, Recompute, Search
from symconfig.render import named, render, target_of, targets
from symconfig.runs.replan import keep
from symconfig.solve import answer
from symconfig.solve.pins import DEGREES, narrowed, parse
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan

VALUES = {"tp": (1, 2, 4, 8), "cp": (1, 2, 4), "zero": (0, 1, 2, 3)}
Point = dict[str, int]


def has(point: Point, pins: dict[str, str]) -> bool:
    return all(parse(pins).allows(name, value) for name, value in point.items())


@dataclass(frozen=True)
class Rule:
    """Refuses the points with all of these values; what else there is differs in one of them."""

    values: Point

    def problem(self, point: Point) -> Problem | None:
        if any(point[name] != value for name, value in self.values.items()):
            return None
        pins = [pin for name, value in self.values.items() for pin in other(name, value)]
        return Problem("cannot be told", pins=tuple(pins))


points = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
rules = (
    st.dictionaries(st.sampled_from(list(VALUES)), st.integers(), min_size=1)
    .flatmap(lambda names: st.fixed_dictionaries({name: st.sampled_from(VALUES[name]) for name in names}))
    .map(Rule)
)


@given(
    st.lists(rules, max_size=6),
    st.randoms(use_true_random=False),
    st.dictionaries(st.sampled_from(["tp", "cp", "zero"]), st.sampled_from(["1", "1..2", "2.."]), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_the_first_plan_that_is_not_refused_is_the_best_of_all_that_are_not(
    refusals: list[Rule], random: Any, asked: dict[str, str]
) -> None:
    space = [dict(zip(VALUES, values, strict=True)) for values in product(*VALUES.values())]
    seconds = dict(zip(range(len(space)), random.sample(range(1, 1000), len(space)), strict=True))

    def solved(pins: Any) -> Any:
        fitting = [index for index, point in enumerate(space) if has(point, pins)]
        if not fitting:
            raise InfeasibleError("nothing has these pins")
        index = min(fitting, key=seconds.__getitem__)
        best = SimpleNamespace(
            parallel=SimpleNamespace(world_size=8), point=space[index], predicted=SimpleNamespace(step_s=seconds[index])
        )
        return _Fake(best, Search(1, 1, 0.0, True))

    def variables(plan: Any) -> dict[str, object]:
        if problems := [found for rule in refusals if (found := rule.problem(plan.best.point))]:
            raise InfeasibleError(problems)
        return {}

    told = [
        index
        for index, point in enumerate(space)
        if has(point, asked) and not any(rule.problem(point) for rule in refusals)
    ]
    if not any(has(point, asked) for point in space):
        return
    job = SimpleNamespace(pins=asked, precision=None, target=None)
    telling = answer._Telling(replace(named("megatron"), variables=variables), job, solved)  # type: ignore[arg-type]
    if told:
        best: Any = telling.best()
        assert best.best.predicted.step_s == min(seconds[index] for index in told)
    else:
        with pytest.raises(InfeasibleError, match="nothing that it can be told"):
            telling.best()


@dataclass(frozen=True)
class _Fake:
    """As much of a plan as is looked at."""

    best: Any
    search: Any
    alternatives: tuple[Any, ...] = ()


numbers = st.integers(1, 40)
ranges = st.one_of(
    numbers.map(str),
    numbers.map(lambda n: f"..{n}"),
    numbers.map(lambda n: f"{n}.."),
    st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}..{max(pair)}"),
)


@given(st.sampled_from(DEGREES[:-1]), ranges, ranges, numbers)
def test_both_of_two_pins_hold_in_one(name: str, one: str, another: str, value: int) -> None:
    both = narrowed({name: one}, f"{name}={another}")
    each = [parse({name: text}).allows(name, value) for text in (one, another)]
    assert all(each) == (both is not None and parse(both).allows(name, value))


@given(st.sampled_from(["tp", "zero"]), st.integers(0, 9), st.integers(0, 9))
def test_every_other_value_has_one_of_the_pins(name: str, value: int, another: int) -> None:
    least = 0 if name == "zero" else 1
    if value < least or another < least or max(value, another) > (3 if name == "zero" else 9):
        return
    pins = [dict([pin.split("=")]) for pin in other(name, value) if not pin.startswith("zero=4")]
    assert any(parse(pin).allows(name, another) for pin in pins) == (value != another)


@pytest.mark.parametrize(
    ("one", "another", "both"),
    [
        ("recompute=selective", "recompute=selective:core_attn", "selective:core_attn"),
        ("sp=on", "sp=1", "on"),
        ("optimizer_offload=0", "optimizer_offload=0.0", "0"),
        ("recompute=full", "recompute=none", None),
        ("precision=fp8", "precision=bf16", None),
        ("layout=Et|tL", "layout=equal", None),
        ("sp=0", "sp=1", None),
    ],
)
def test_words_that_are_pinned_twice(one: str, another: str, both: str | None) -> None:
    name, _, value = one.partition("=")
    assert narrowed({name: value}, another) == (None if both is None else {name: both})


@cache
def _plans(model: str) -> tuple[Plan, ...]:
    """Choices of all kinds for one model, whether or not they would be good ones."""
    switches: list[dict[str, Any]] = [
        {},
        {"zero_stage": 0},
        {"zero_stage": 3},
        {"sequence_parallel": False},
        {"activation_offload": True},
        {"recompute": Recompute("full", method="uniform", num_layers=1)},
        {"recompute": Recompute("none")},
        {"recompute": Recompute("full", method="block", num_layers=1)},
        {"overlap_moe_a2a": True},
    ]
    degrees = [
        {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "dp": 16 // (tp * pp * cp), "cp_comm": comm}
        for tp, pp, vpp, cp, comm in (
            (1, 1, 1, 1, None),
            (2, 1, 1, 1, None),
            (1, 2, 1, 1, None),
            (1, 1, 1, 2, "p2p"),
            (2, 2, 2, 2, "a2a"),
        )
    ]
    plans = [sample_plan(model, **shape, **switch) for shape in degrees for switch in switches]
    return tuple(plan for plan in plans if plan.model.experts is not None or not plan.best.options.overlap.moe_a2a)


@cache
def _refused(model: str, target: str) -> tuple[tuple[Plan, tuple[Problem, ...]], ...]:
    return tuple((plan, _problems(plan, target)) for plan in _plans(model))


def _problems(plan: Plan, target: str) -> tuple[Problem, ...]:
    try:
        named(target).variables(plan)
    except InfeasibleError as error:
        return error.problems
    except InputError:
        return (Problem("cannot be"),)
    return ()


def _holds(candidate: Candidate, pin: str) -> bool:
    name, _, value = pin.partition("=")
    if (name, value) == ("layout", "equal"):
        return candidate.options.pipeline_layout is None
    mine = keep._SAID[name](candidate)
    return mine is not None and narrowed({name: mine}, pin) is not None


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
    return symconfig.plan("llama3.1-8b", "h100", 16, 64, top=3, **fields).plan


@pytest.mark.parametrize("target", sorted(targets()))
def test_a_plan_for_a_target_is_told_to_it_and_so_are_its_runners_up(target: str) -> None:
    plan = _planned(target=target)
    assert plan.job.target == target
    assert plan.job.pins == {}
    assert all(plan.job.model_dump()[name] == value for name, value in named(target).assumes.items())
    for candidate in (plan.best, *plan.alternatives):
        assert render(replace(plan, best=candidate), target).paths()
    free = _free(plan.job.backend, plan.job.megatron_version)
    assert plan.best.predicted.step_s >= free.best.predicted.step_s
    if plan.search.narrowed:
        assert plan.search.free_step_s == free.best.predicted.step_s
        assert _problems(free, target)
    assert parse_plan(plan.to_json()) == replace(plan, search=replace(plan.search, seconds=0.0))


def test_what_is_pinned_and_what_the_target_needs_may_leave_nothing() -> None:
    with pytest.raises(InfeasibleError) as error:
        _planned(target="llamafactory", pins={"tp": "2"})
    first, *reasons = error.value.problems
    assert (first.field, first.got) == ("target", "llamafactory")
    assert "nothing that it can be told fits" in first.what
    assert any("LLaMA-Factory has no switch for DeepSpeed's AutoTP" in reason.what for reason in reasons)
    assert not any("Try" in str(reason) for reason in reasons)


def test_a_model_that_the_target_has_not_is_refused_for_that_alone() -> None:
    with pytest.raises(InfeasibleError, match="torchtitan has no such model") as error:
        symconfig.plan("llama2-13b", "h100", 16, 64, target="torchtitan")
    assert len(error.value.problems) == 1


def test_a_precision_that_is_asked_for_is_not_given_up() -> None:
    with pytest.raises(InfeasibleError, match="its low precisions scale in ways of their own"):
        _planned(target="torchtitan", precision="fp8")
    assert _planned(target="torchtitan", precision="auto").best.options.precision == "bf16"


def test_a_target_that_there_is_none_of_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"target: is not a target \(got 'nemo', need accelerate or bridge or"):
        _planned(target="nemo")
    for name in ("target", "megatron_args", "__init__", "data.x", ""):
        with pytest.raises(InputError, match="is not a target"):
            named(name)


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
