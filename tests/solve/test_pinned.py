"""A pinned layout is the plan's layout, or is refused in a sentence that says what is wrong with it."""

from __future__ import annotations

import re

import pytest

from symconfig.errors import InputError
from symconfig.plans.file import parse_plan
from symconfig.plans.pipeline_layout import compact, expanded, letters
from symconfig.solve.costed import costed
from symconfig.solve.predict import restore
from symconfig.solve.search import search
from symconfig.solve.split import plainest
from tests.cli.support import JOB, Run
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny

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
    plan = search(MODEL, sample_cluster(), job(8, 16, pins={"layout": layout, "pp": str(pp)}), top=10)
    for candidate in (plan.best, *plan.alternatives):
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
