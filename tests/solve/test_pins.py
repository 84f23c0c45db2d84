"""What is pinned holds in every plan that is shown, or is refused in a sentence that says what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.file import parse_plan
from symconfig.plans.pipeline_layout import compact, expanded, letters
from symconfig.plans.plan import Candidate
from symconfig.solve.costed import costed
from symconfig.solve.pins import DEGREES, agree, parse
from symconfig.solve.predict import restore
from symconfig.solve.search import resolved, search
from symconfig.solve.split import plainest
from tests.cli.support import JOB, Run
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tight, tiny, unpruned
from tests.solve.test_brute_force import EXPERTS

DENSE = tiny()
MIXTURE = tiny("qwen3-30b-a3b", experts=EXPERTS, intermediate_size=0, vocab_size=8000)


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
    for candidate in plan.ranked:
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


MODEL = tiny(num_hidden_layers=6)


def asked(layout: str, **more: object) -> str:
    """What is wrong with the layout."""
    pins = {"layout": layout, **more.pop("pins", {})}  # type: ignore[dict-item]
    with pytest.raises(InputError) as caught:
        search(MODEL, sample_cluster(), job(8, 16, pins=pins, **more))
    return str(caught.value)


@pytest.mark.parametrize(
    ("layout", "pp", "told"),
    [
        ("Et*3|t*3L", 2, ""),
        ("Et|t*5L", 2, "1 layer on the first stage"),
        ("Ett|t|t,|ttL", 2, "Ett|t|t|ttL"),
        ("Ett|t|t|ttL", 4, "2 layers on the first stage, 2 layers on the last stage"),
        ("E|t*4|t|tL", 4, "E|t*4|t|tL"),
        ("Et*6L", 1, ""),
        ("Et*3||t*3|L", 4, "Et*3||t*3|L"),
    ],
)
def test_every_plan_has_the_pinned_layout(layout: str, pp: int, told: str) -> None:
    pins = {"layout": layout, "pp": str(pp), "vpp": str(len(expanded(layout)) // pp)}
    plan = search(MODEL, sample_cluster(), job(8, 16, pins=pins), top=10)
    for candidate in plan.ranked:
        parallel = candidate.configuration
        assert parallel.pp == pp
        chunks = [candidate.stages[j % pp].chunks[j // pp] for j in range(pp * parallel.vpp)]
        assert [letters(chunk) for chunk in chunks] == expanded(layout)
        assert candidate.configuration.stage_layout == told


@pytest.mark.parametrize("layout", ["Et|t*5L", "Et|tt|tt|tL", "E|t*4|t|tL"])
def test_a_plan_read_back_has_the_same_stages(layout: str) -> None:
    plan = search(MODEL, sample_cluster(), job(8, 16, pins={"layout": layout}))
    again = parse_plan(plan.to_json())
    found = restore(again, again.best)
    assert found.split == plainest(again.best.configuration.pp, found.split.chunks, found.request.limits.layouts)
    assert costed(found).peaks == pytest.approx([stage.peak_bytes for stage in plan.best.stages])


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("Ettt|ttL", "does not hold each layer once (got 5 x t, need 6)"),
        ("Ettt|t*4L", "does not hold each layer once (got 7 x t, need 6)"),
        ("Ettt|t*3mL", "does not hold each prediction layer once (got 1 x m, need 0)"),
        ("Ettt|tttl", "has letters other than E, t, m and L"),
        ("Ettt|ttt", "does not hold each loss once"),
        ("|Et*6L", "E first and L last"),
        ("", "does not hold each layer once"),
    ],
)
def test_a_layout_that_is_not_the_models_is_refused(layout: str, words: str) -> None:
    assert "pins.layout: " in (found := asked(layout))
    assert words in found


def test_a_layout_for_other_stages_is_refused() -> None:
    found = asked("Ett|tt|ttL", pins={"pp": "4"})
    assert "got 3 chunks, need pp x vpp of them and a pp that divides 8 GPUs and pp=4" in found
    assert "got 4 chunks" in asked("Et|tt|tt|tL", pins={"pp": "2", "vpp": "1"})
    assert "got 3 chunks" in asked("Ett|tt|ttL")


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"pp": "8"}, "pins.pp: is more stages than the model has layers (got 8, need up to 6)"),
        ({"pp": "8.."}, "pins.pp: is more stages"),
        (
            {"pp": "2", "vpp": "5"},
            "pins.vpp: is more chunks of a stage than 6 layers are for (got 5, need up to 4 with",
        ),
        ({"vpp": "5.."}, "pins.vpp: is more chunks"),
        ({"pp": "1", "vpp": "2.."}, "pins.vpp: is several chunks of one stage (got 2, need 1, or pp from 2 on)"),
    ],
)
def test_more_stages_than_layers_are_refused(pins: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        search(MODEL, sample_cluster(), job(8, 16, pins=pins))


def test_a_layout_that_the_target_cannot_say_is_refused() -> None:
    found = asked("Et|ttt|t|tL", megatron_version="core_v0.12.1")
    assert "cannot be expressed in megatron core_v0.12.1" in found
    assert "other counts on the first and last stage only" in found
    assert "--backend megatron" in asked("Ettt|tttL", backend="deepspeed")


def test_an_old_version_takes_a_layout_that_it_can_say_otherwise() -> None:
    pins = {"layout": "Et|tt|tt|tL", "pp": "4"}
    plan = search(MODEL, sample_cluster(), job(8, 16, pins=pins, megatron_version="core_v0.12.1"))
    assert plan.best.configuration.pipeline_layout is None
    chunks = [letters(stage.chunks[0]) for stage in plan.best.stages]
    assert compact(chunks) == "Et|tt|tt|tL"


@pytest.mark.parametrize("layout", ["Et*20|t*19L", "Et*20|t*20", "nonsense"])
def test_the_command_line_refuses_it_as_bad_input(run: Run, layout: str) -> None:
    outcome = run("plan", *JOB, "--pin", f"layout={layout}")
    assert outcome.code == 2
    assert "--pin layout: " in outcome.err
