"""What a plan switches on beside its degrees, rendered and recovered: the plan's options, and a framework with them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.supplied import Supplied
from symconfig.existing.recover.words import settings
from symconfig.frameworks.extras import Extras
from symconfig.frameworks.megatron.flags import flags
from symconfig.render import megatron as render
from tests.sample_plans import sample_plan

DENSE = {"model": "llama2-13b", "cluster": "h100", "tp": 4, "pp": 1, "dp": 2, "overlap_pp_p2p": False}
EXPERTS = DENSE | {"model": "qwen3-30b-a3b", "tp": 1, "ep": 8, "dp": 8}
FLEX = EXPERTS | {"moe_dispatcher": "flex"}
PLANS: dict[str, dict[str, Any]] = {
    "user buffers": DENSE | {"overlap_tp_comm": True},
    "graphs of layers": DENSE | {"cuda_graphs": "all"},
    "graphs of layers, before modules": DENSE | {"cuda_graphs": "all", "version": "core_v0.15.0"},
    "graphs of the router": EXPERTS | {"cuda_graphs": "router"},
    "graphs outside experts": EXPERTS | {"cuda_graphs": "outside experts", "version": "core_v0.17.1"},
    "weights in fp8": DENSE | {"precision": "fp8", "fp8_param_gather": True},
    "weights in mxfp8": DENSE | {"cluster": "b200", "precision": "mxfp8", "fp8_param_gather": True},
    "fused loss": DENSE | {"fused_loss": True, "version": "core_v0.17.1"},
    "gradients in bf16": DENSE | {"grad_bytes": 2},
    "deepep": FLEX | {"moe_flex_backend": "deepep"},
    "deepep, before backends": FLEX | {"moe_flex_backend": "deepep", "version": "core_v0.14.0"},
    "hybridep": FLEX | {"moe_flex_backend": "hybridep"},
    "all-to-all": EXPERTS,
}


@pytest.mark.parametrize("name", PLANS)
def test_rendered_options_are_recovered(name: str) -> None:
    plan = sample_plan(**PLANS[name])
    names = Namespace(settings(render.arguments(plan), "launch.sh"), flags(plan.best.target.version))
    supplied = Supplied(model=plan.model, seq_length=plan.best.batch.seq_length, vocab_size=plan.model.vocab_size)
    found = run(names, plan.best.parallel.world_size, plan.cluster, supplied)
    assert found.options == plan.best.options
    assert Extras.of(found.configuration.framework) == Extras.planned(plan.best)
    assert {item.value for item in found.assumed} <= {"--reuse-grad-buf-for-mxfp8-param-ag"}  # what it saves


def test_every_option_has_a_plan() -> None:
    on = {name for given in PLANS.values() for name in Extras.planned(sample_plan(**given).best).on}
    assert on == {one.name for one in fields(Extras)} - {
        "moe_overlap",
        "instances",
    }  # of FSDP alone: tests/existing has its own
