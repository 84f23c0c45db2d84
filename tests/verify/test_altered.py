"""Models of which any field is changed by itself: what a target does not refuse, its files say, for every target."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.write import differences
from symconfig.errors import SymconfigError
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan, sketch
from symconfig.render import megatron as render
from symconfig.render import targets
from symconfig.solve.run import with_defaults
from symconfig.verify import deepspeed, megatron
from symconfig.verify.megatron import Rendered
from tests.altered_models import altered
from tests.verify.megatron_support import LIMIT_S, source

pytestmark = pytest.mark.usefixtures("warm_megatron")

CLUSTER = load_cluster("h100")
MODELS = tuple(name for name in zoo_models() if load_model(name).vision is None)


def sketched(model: ModelDescriptor, target: str) -> Plan | None:
    """A plan of the model with its files made; None where the target refuses it."""
    assumed = targets()[target].assumes
    length = min(2048, model.max_position_embeddings)
    job = Job(model="m", cluster="h100", gpus=64, global_batch_size=256, seq_length=length).model_copy(update=assumed)
    try:
        job = with_defaults(model, CLUSTER, job)
        plan = sketch(model, CLUSTER, job, BACKENDS[job.backend].releases.of(job))
        targets()[target].files(plan)
    except SymconfigError:
        return None
    return plan


@pytest.mark.parametrize("target", sorted(targets()))
@settings(max_examples=15)
@given(data=st.data())
def test_a_target_says_what_it_does_not_refuse(target: str, data: st.DataObject) -> None:
    model = load_model(data.draw(st.sampled_from(MODELS)))
    count = data.draw(st.integers(1, 3))
    model_or_none = altered(model, lambda values: data.draw(st.sampled_from(values)), count)
    assume(model_or_none is not None)
    plan = sketched(model_or_none or model, target)
    for file in () if plan is None else targets()[target].files(plan):
        if plan is not None and file.path == deepspeed.MODEL:
            again = import_config(json.loads(file.text), file.path, plan.model.name)
            assert list(differences(plan.model, again)) == []


def test_megatrons_own_parser_resolves_every_altered_model_to_itself() -> None:
    draw, items = random.Random(25), dict[str, Rendered]()
    while len(items) < 40:
        model = altered(load_model(draw.choice(MODELS)), draw.choice, draw.choice((1, 2, 3)))
        if model is None or model.adapter is not None or (plan := sketched(model, "megatron")) is None:
            continue
        exported = {item.name: item.value for item in environment.variables(plan, plan.best.target.version)}
        items[str(len(items))] = Rendered(plan, render.arguments(plan), exported)
    checked = megatron.check_many(items, source(), LIMIT_S)
    wrong = [
        f"{items[id].plan.model}: {one}" for id, found in checked.items() for one in found if one.status != "passed"
    ]
    assert wrong == []
