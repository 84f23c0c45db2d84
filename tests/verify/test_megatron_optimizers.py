"""Megatron's own parser takes each optimizer as the plan has it, and recovery reads it back."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.optimizer import Optimizer
from symconfig.errors import InputError
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.megatron.flags import flags
from symconfig.frameworks.optimizers import stepping
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from symconfig.verify import megatron
from symconfig.verify.checks import Check
from symconfig.verify.megatron_session import Result
from tests.sample_plans import sample_plan, with_optimizer
from tests.verify.megatron_support import LIMIT_S, rendered, source

PLANS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "muon": (Optimizer(name="muon", tp_mode="distributed", ns_steps=6, nesterov=False, momentum=0.9), {}),
    "whole muon": (Optimizer(name="muon", momentum=0.95), {"zero_stage": 0, "overlap_param_gather": False}),
    "narrow": (Optimizer(exp_avg="bf16", exp_avg_sq="fp8", main_params="fp16"), {}),
    "sgd": (Optimizer(name="sgd", momentum=0.8), {}),
}
# What Megatron-LM resolves of each.
RESOLVED: dict[str, dict[str, Any]] = {
    "muon": {
        "optimizer": "muon",
        "muon_num_ns_steps": 6,
        "muon_tp_mode": "distributed",
        "muon_nesterov": False,
        "muon_momentum": 0.9,
        "use_layer_wise_distributed_optimizer": True,
        "use_distributed_optimizer": False,
    },
    "whole muon": {"optimizer": "muon", "muon_nesterov": True, "use_layer_wise_distributed_optimizer": False},
    "narrow": {
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": "torch.bfloat16",
        "exp_avg_sq_dtype": "torch.uint8",
        "main_params_dtype": "torch.float16",
    },
    "sgd": {"optimizer": "sgd", "sgd_momentum": 0.8},
}


def planned(name: str) -> Plan:
    optimizer, overrides = PLANS[name]
    return with_optimizer(sample_plan("llama2-13b", "h100", **overrides), optimizer)


@cache
def real() -> tuple[dict[str, list[Check]], dict[str, Result]]:
    items = {name: rendered(planned(name)) for name in PLANS}
    runs: list[Result] = []
    checks = megatron.check_many(items, source(), LIMIT_S, heard=runs.append, build=True)
    return checks, {found.id: found for found in runs}


@pytest.mark.parametrize("name", PLANS)
def test_megatron_resolves_each_optimizer_to_the_plan(name: str) -> None:
    checks, runs = real()
    assert [str(check) for check in checks[name] if check.status == "failed"] == []
    found = runs[name]
    assert {dest: found.args.get(dest) for dest in RESOLVED[name]} == RESOLVED[name]


def test_ranks_of_another_optimizer_are_not_built_and_that_is_said() -> None:
    assert [check.detail for check in real()[0]["muon"] if check.status == "skipped"] == [
        "not tried with muon as the job has it: that wants emerging_optimizers, and ranks are built without"
    ]


@pytest.mark.parametrize("name", PLANS)
def test_recovery_reads_each_optimizer_as_it_was_rendered(name: str) -> None:
    plan = planned(name)
    words = settings(render.arguments(plan), "launch.sh")
    names = Namespace(words, flags(plan.best.target.version))
    supplied = Supplied(model=plan.model, seq_length=plan.best.batch.seq_length, vocab_size=plan.model.vocab_size)
    found = run(names, plan.best.parallel.world_size, load_cluster("h100"), supplied)
    assert found.optimizer == plan.job.optimizer
    assert found.options.zero_stage == plan.best.options.zero_stage
    mine = stepping(usual("megatron", "hopper"), plan.job.optimizer, "bf16")
    theirs = found.configuration.framework
    assert (theirs.bytes.optimizer, theirs.adam_bytes) == (mine.bytes.optimizer, mine.adam_bytes)
    assert theirs.orthogonal == mine.orthogonal


def test_the_old_name_of_a_shared_muon_is_read_and_older_releases_are_not_predicted() -> None:
    plan = planned("muon")
    words = ["dist_muon" if word == "muon" else word for word in render.arguments(plan)]
    words = [word for word in words if word not in ("--use-distributed-optimizer", "--overlap-param-gather")]
    supplied = Supplied(model=plan.model, seq_length=plan.best.batch.seq_length, vocab_size=plan.model.vocab_size)
    found = run(Namespace(settings(words, "l"), flags("core_v0.19.0")), 64, load_cluster("h100"), supplied)
    assert found.options.zero_stage == 1
    for version, kind, said in (
        ("core_v0.17.1", "dist_muon", "Muon is predicted from core_v0.18"),
        ("core_v0.19.0", "soap", "only the states of Adam, SGD and Muon"),
    ):
        other = [kind if word == "dist_muon" else word for word in words]
        with pytest.raises(InputError, match=said):
            run(Namespace(settings(other, "l"), flags(version)), 64, load_cluster("h100"), supplied)
