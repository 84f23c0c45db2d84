"""docs/reference/templates.md says every variable that templates are given, and no other; its example works."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.errors import SymconfigError
from symconfig.frameworks.megatron import environment
from symconfig.plans import history as plan_history
from symconfig.plans import plan as plan_room
from symconfig.plans import rl as plan_rl
from symconfig.plans.degrees import Degrees
from symconfig.plans.plan import Plan
from symconfig.render import megatron_args, summary, targets
from symconfig.render.target import Saving, common
from tests.sample_plans import learning_plan, sample_plan
from tools.generate import is_current
from tools.generate import targets as docs

ELSEWHERE = {
    "Nodes": summary.Nodes,
    "Row": summary.Row,
    "Variable": environment.Variable,
    "Saving": Saving,
    "Group": megatron_args.Group,
    "Degrees": Degrees,
    "History": plan_history.History,
    "Segment": plan_history.Segment,
    "Want": summary.Want,
    "PlannedRl": plan_rl.PlannedRl,
    "PlannedReward": plan_rl.PlannedReward,
    "PlannedStep": plan_rl.PlannedStep,
    "PlannedPhase": plan_rl.PlannedPhase,
}


def plans() -> list[Plan]:
    """Of these, every target can carry one."""
    alone = {"tp": 1, "pp": 1, "dp": 8, "sequence_parallel": False, "overlap_pp_p2p": False}
    return [
        sample_plan(),
        sample_plan(backend="deepspeed"),
        sample_plan(load_model("qwen2.5-7b-lora"), backend="deepspeed"),
        sample_plan(**alone),
        sample_plan(load_model("llama3.1-8b"), **alone, zero_stage=3),
        *(learning_plan(backend=backend) for backend in ("megatron", "deepspeed", "fsdp")),
        *(learning_plan(backend=backend, away=("weights", "optimizer state")) for backend in ("megatron", "fsdp")),
    ]


def given(target: str) -> set[str]:
    """What the target's templates are given, beside what all are."""
    for plan in plans():
        try:
            targets()[target].refuse(plan)
            return set(targets()[target].variables(plan))
        except SymconfigError:
            continue
    raise AssertionError(f"no sample plan can be written as {target}: add one to plans()")


def test_the_page_is_as_it_is_generated() -> None:
    assert is_current("templates"), "python -m tools generate templates"


@pytest.mark.parametrize("target", targets())
def test_what_is_documented_of_a_target_is_what_its_templates_are_given(target: str) -> None:
    documented = {*docs.variables()["often"], *docs.own(target)}
    assert documented == given(target), f"templates/{target}/variables.yaml: one line for each variable"


def test_what_every_template_is_given_is_documented() -> None:
    assert set(docs.variables()["common"]) == set(common(sample_plan()))


def test_every_part_of_a_plan_is_documented_whole() -> None:
    for name, documented in docs.variables()["objects"].items():
        if name == "Summary":
            assert set(documented) == set(summary.words(sample_plan()))
            continue
        kind: Any = ELSEWHERE.get(name) or getattr(plan_room, name)
        assert is_dataclass(kind)
        derived = {key for key, value in vars(kind).items() if isinstance(value, property)}
        named = {field.name for field in fields(kind)}
        assert not set(documented) & set(dir(dict)), name  # `x.values` would be the method, not the field
        assert named <= set(documented) <= named | derived, name


def test_every_type_that_is_named_has_a_table() -> None:
    known = docs.variables()
    tables = {*known["objects"], *docs.DESCRIPTORS}
    rows = [
        *known["common"].values(),
        *known["often"].values(),
        *(row for target in targets() for row in docs.own(target).values()),
        *(row for table in known["objects"].values() for row in table.values()),
    ]
    named = {word for kind, _ in rows for word in kind.split() if word[0].isupper() and word != "TFLOP/s"}
    assert named <= tables
