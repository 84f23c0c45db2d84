"""Options beside the degrees: weighed in every choice, left off where a site lacks them or they are not worth it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError
from symconfig.frameworks.constraint import Verdict, in_force
from symconfig.frameworks.extras import in_effect, on, put_on
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.candidate import described
from symconfig.solve.predict import restore
from symconfig.solve.run import facts_of, requests
from symconfig.solve.search import resolved, search
from tests.sample_models import sample_cluster
from tests.solve import naive
from tests.solve.naive import job, tight, tiny, unpruned
from tests.solve.test_brute_force import MIXTURE

DENSE = tiny()
OPEN: dict[str, Any] = {"allow": (), "without": ()}
VALUES: dict[str, tuple[Any, ...]] = {
    "overlap_moe_a2a": (False, True),
    "overlap_tp_comm": (False, True),
    "moe_flex_backend": (None, "deepep", "hybridep"),
    "cuda_graphs": ("none", "router", "outside experts", "all"),
    "grad_bytes": (4, 2),
    "fp8_param_gather": (False, True),
    "fused_loss": (False, True),
}
PLAIN = Configuration(micro=1, global_batch=1, seq_length=1)
EVERY = [replace(PLAIN, **dict(zip(VALUES, values, strict=True))) for values in product(*VALUES.values())]


@pytest.mark.parametrize("architecture", ["hopper", "blackwell"])
def test_what_is_put_on_can_be_taken_off(architecture: str) -> None:
    frameworks = [put_on(MEGATRON, architecture, options, PLAIN) for options in EVERY]
    assert len(set(frameworks)) == len(EVERY)
    for framework, options in zip(frameworks, EVERY, strict=True):
        assert put_on(framework, architecture, PLAIN, options) == MEGATRON


def every(plan: Plan) -> tuple[Candidate, ...]:
    more = (plan.beside.fastest,)
    return (*plan.ranked, *(one for one in more if one is not None))


@pytest.mark.parametrize(
    ("model", "cluster", "fields"),
    [
        (DENSE, "h100", {"pins": {"tp": "2..4"}}),
        (MIXTURE, "h100", {"pins": {"etp": "1"}}),
        (MIXTURE, "gb200-nvl72", {"precision": "mxfp8"}),
        (DENSE, "h100", {"precision": "fp8", "allow": ("all",)}),
    ],
)
def test_plans_have_nothing_that_the_release_refuses_and_are_restored(
    model: Any, cluster: str, fields: dict[str, Any]
) -> None:
    asked = job(8, 16, 4096, **{**OPEN, **fields})
    where = load_cluster(cluster)
    plan = search(model, where, asked, top=20)
    fixed = facts_of(model, where, plan.job)
    for one in plan.ranked:
        point = one.configuration
        assert not [
            c.name
            for c in in_force(BACKENDS["megatron"].constraints, plan.best.target.version)
            if c.verdict(fixed, point) is Verdict.FAILS
        ]
        found = restore(plan, one)
        assert on(found.request.configuration) == on(in_effect(one.configuration))
        again = described(found, where, plan.job)
        assert again.configuration == one.configuration
        assert again.predicted.time == pytest.approx(one.predicted.time)
        assert again.predicted.memory == pytest.approx(one.predicted.memory)


def test_every_choice_of_degrees_has_the_fastest_choice_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops weigh each of them everywhere; the search leaves out graphs where nothing waits for the host, and one
    dispatcher with kernels of its own where another runs."""
    monkeypatch.setattr("symconfig.cost.machine.SPREAD", 0.0)
    monkeypatch.setattr("symconfig.solve.choice.family", naive.place)
    monkeypatch.setattr("symconfig.solve.choice.complexity", lambda _: 0)
    monkeypatch.setattr("symconfig.solve.run.usual_layouts", lambda *_: None)  # the loops know seconds alone
    pins = {"activation_offload": "0", "optimizer_offload": "0", "etp": "1", "cp": "1", "recompute": "none"}
    asked = job(4, 4, 4096, **OPEN, pins=pins)
    cluster = tight(MIXTURE, 0.9, "h100")
    expected = naive.weigh(MIXTURE, cluster, asked)
    found = unpruned(MIXTURE, cluster, resolved(MIXTURE, cluster, asked), 1000)
    steps = {naive.place(each): each.step_s for each in found.best}
    assert steps == pytest.approx({place: seconds for place, (seconds, _) in expected.best.items()}, rel=1e-9)
    assert any(each.configuration.moe_flex_backend for _, each in expected.best.values())
    assert expected.feasible < expected.candidates


def test_what_changes_numbers_or_is_defect_is_not_used_unasked_and_a_pin_asks() -> None:
    fields: dict[str, Any] = {"pins": {"tp": "2", "pp": "1", "cp": "1", "mbs": "2"}}
    plain = search(DENSE, sample_cluster("h100"), job(8, 32, 4096, **OPEN, **fields))
    assert all(one.configuration.grad_bytes == 4 and not one.configuration.fused_loss for one in every(plain))
    fields["pins"] |= {"grad_dtype": "bf16"}
    narrow = search(DENSE, sample_cluster("h100"), job(8, 32, 4096, **OPEN, **fields))
    assert narrow.best.configuration.grad_bytes == 2
    assert [one.name for one in narrow.search.opened] == ["bf16_gradients"]
    assert narrow.best.predicted.memory["gradients"] < plain.best.predicted.memory["gradients"]


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"dispatcher": "deepep"}, r"pins\.dispatcher"),
        ({"user_buffers": "maybe"}, r"pins\.user_buffers"),
        ({"cuda_graphs": "outside_experts"}, r"pins\.cuda_graphs"),
        ({"fused_loss": "on"}, r"pins\.fused_loss"),
        ({"fp8_param_gather": "on"}, r"pins\.fp8_param_gather"),
    ],
)
def test_a_pin_that_no_plan_can_have_is_refused_by_its_name(pins: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        search(DENSE, sample_cluster("h100"), job(8, 16, 4096, **OPEN, pins=pins))


def pinned(model: str, cluster: str, gpus: int, batch: int, **pins: str) -> Plan:
    where, asked = load_cluster(cluster), {"etp": "1", "recompute": "none", **pins}
    return search(load_model(model), where, job(gpus, batch, 4096, **OPEN, pins=asked), top=1)


def working_set(plan: Plan) -> float:
    return plan.best.predicted.memory["working set"]


def test_user_buffers_are_twelve_of_the_gathered_stream() -> None:
    """Transformer Engine, initialize_ub: twelve products, one buffer of [tokens, hidden size] each, in bf16."""
    pins = {"tp": "4", "cp": "2", "pp": "1", "mbs": "2", "cuda_graphs": "none"}
    on, off = (pinned("llama2-13b", "h100", 8, 8, user_buffers=each, **pins) for each in ("on", "off"))
    assert working_set(on) - working_set(off) == 12 * 2 * (4096 // 2 * 2) * 5120


def test_hybridep_has_a_place_for_every_token_of_every_rank() -> None:
    pins = {"tp": "1", "cp": "1", "pp": "1", "ep": "8", "cuda_graphs": "none", "moe_overlap": "off", "mbs": "1"}
    far, near = (pinned("mixtral-8x7b", "h100", 8, 8, dispatcher=each, **pins) for each in ("hybridep", "deepep"))
    assert working_set(far) - working_set(near) == 2 * 4096 * 8 * 4096


def chosen(model: str, cluster: str, gpus: int, **fields: Any) -> set[tuple[str, ...]]:
    """What is weighed on top of a framework, of each request."""
    known, where = load_model(model), load_cluster(cluster)
    asked = resolved(known, where, job(gpus, 64, 4096, **{**OPEN, **fields}))
    precision = str(asked.precision)
    return {on(each.configuration) for each in requests(known, where, asked, precision)}  # type: ignore[arg-type]


def test_what_wants_sequences_of_one_length_is_weighed_where_they_are() -> None:
    for task in ("pretrain", "sft"):
        assert ("overlap_tp_comm", "cuda_graphs") in chosen("qwen2.5-7b", "h100", 8, task=task)
    assert ("overlap_tp_comm", "cuda_graphs") in chosen("qwen2.5-7b-lora", "h100", 8, target="bridge")
    assert chosen("qwen2.5-7b", "h100", 8, packing={"lengths": (512, 4096)}) == {()}
    assert ("overlap_tp_comm",) in chosen("qwen2.5-7b", "h100", 8, task="sft", pins={"user_buffers": "on"})


def test_what_weights_in_8_bits_cannot_have_is_weighed_without_them() -> None:
    every = chosen("llama3.1-8b", "h100", 16, precision="fp8", without=("cuda_graphs",))
    assert every == {(), ("overlap_tp_comm",), ("fp8_param_gather",), ("fp8_param_gather", "overlap_tp_comm")}


def test_a_pin_of_one_precision_is_tried_in_the_one_that_has_it() -> None:
    asked = job(8, 16, 4096, **OPEN, precision="auto", pins={"fp8_param_gather": "on"})
    assert search(DENSE, load_cluster("h100"), asked).best.configuration.precision == "fp8"
