"""What is pinned holds in every plan that is shown, and pinning the best plan gives the best plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Candidate
from symconfig.solve.pins import DEGREES, agree, parse
from symconfig.solve.search import resolved, search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tight, tiny, unpruned

DENSE = tiny()
MIXTURE = tiny(
    "qwen3-30b-a3b",
    experts={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 384, "norm_topk_prob": True},
    intermediate_size=0,
    vocab_size=8000,
)


def value(candidate: Candidate, name: str) -> int:
    if name == "mbs":
        return candidate.configuration.micro
    if name == "zero":
        return candidate.configuration.zero_stage
    return int(getattr(candidate.configuration, name))


ranges = st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])).map(sorted)
pins = st.dictionaries(st.sampled_from(["tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs"]), ranges, max_size=3)


@given(pins)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_lies_within_the_pins(bounds: dict[str, list[int]]) -> None:
    asked = job(8, 8, pins={name: f"{low}..{high}" for name, (low, high) in bounds.items()})
    try:
        plan = search(MIXTURE, sample_cluster(), asked, top=20)
    except (InfeasibleError, InputError):  # such as more chunks of a stage than there are layers for
        return
    for candidate in (plan.best, *plan.alternatives):
        for name, (low, high) in bounds.items():
            assert low <= value(candidate, name) <= high


def test_pinning_the_best_plan_gives_it_again() -> None:
    cluster = tight(DENSE, 1.0)
    best = search(DENSE, cluster, job(8, 8, 4096)).best
    p = best.configuration
    fixed = {"tp": p.tp, "pp": p.pp, "vpp": p.vpp, "cp": p.cp, "dp": p.dp, "mbs": best.configuration.micro}
    again = search(DENSE, cluster, job(8, 8, 4096, pins={name: str(number) for name, number in fixed.items()}))
    assert replace(again.best, standing=None) == replace(best, standing=None)
    every = unpruned(DENSE, cluster, resolved(DENSE, cluster, job(8, 8, 4096)), 5)
    assert again.search.candidates <= every.candidates


@pytest.mark.parametrize(
    ("text", "low", "high"), [("8", 8, 8), ("2..8", 2, 8), ("..8", 0, 8), ("2..", 2, 2**31), (" 4 ", 4, 4)]
)
def test_a_range_allows_what_lies_in_it(text: str, low: int, high: int) -> None:
    found = parse({"tp": text})
    assert [n for n in range(20) if found.allows("tp", n)] == [n for n in range(20) if low <= n <= high]
    assert found.allows("pp", 10**6)


def test_all_wrong_pins_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse({"tp": "0", "pp": "8..2", "cp": "two", "recompute": "some", "optimizer_offload": "2", "sp": "maybe"})
    assert [problem.field for problem in caught.value.problems] == [
        "pins.tp", "pins.pp", "pins.cp", "pins.recompute", "pins.optimizer_offload", "pins.sp",
    ]  # fmt: skip


def test_a_zero_stage_that_does_not_exist_is_wrong_input() -> None:
    with pytest.raises(InputError, match="a stage from 0 to 3"):
        parse({"zero": "4"})
    assert parse({"zero": "..7"}).allows("zero", 3)


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp"])
@pytest.mark.parametrize("pin", ["pp=2", "vpp=2..4"])
def test_stages_need_a_target_with_a_pipeline(pin: str, backend: str) -> None:
    name, _, value = pin.partition("=")
    with pytest.raises(InputError, match=f"{name}: needs a pipeline, which this target has not"):
        search(DENSE, sample_cluster(), job(8, 16, backend=backend, pins={name: value}), top=1)


numbers = st.integers(1, 40)
ranges = st.one_of(
    numbers.map(str),
    numbers.map(lambda n: f"..{n}"),
    numbers.map(lambda n: f"{n}.."),
    st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}..{max(pair)}"),
)


@given(st.sampled_from([name for name in DEGREES if name != "zero"]), ranges, ranges)
def test_two_ranges_agree_where_a_number_lies_in_both(name: str, one: str, another: str) -> None:
    both = [parse({name: text}) for text in (one, another)]
    assert agree(name, one, another) == any(all(pins.allows(name, value) for pins in both) for value in range(1, 42))
