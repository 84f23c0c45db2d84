"""Every option that a target has and the model prices is searched for every task, or the plan lists it."""

from __future__ import annotations

from typing import Any

import pytest

import symconfig
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.searched import searched
from symconfig.solve.extras import EXTRAS
from symconfig.solve.pins import parse
from symconfig.solve.run import requests

PINS = {"tp": "1", "pp": "1", "cp": "1", "mbs": "1", "recompute": "full"}  # of degrees: a plan is made at once
UNEVEN = {"packing": {"lengths": [1024, 3072]}}


@pytest.mark.parametrize("packing", [{}, UNEVEN], ids=["one length", "several"])
@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("llama3.1-8b", "pretrain"),
        ("llama3.1-8b", "sft"),
        ("qwen3-30b-a3b", "sft"),
        ("nemotron-3-nano-30b-a3b", "pretrain"),
        ("qwen2.5-7b-lora", "lora"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_option_is_searched_or_listed(backend: Any, model: str, task: Any, packing: dict[str, Any]) -> None:
    cluster, described = load_cluster("h200"), load_model(model)
    fields = {"backend": backend, "task": task, "allow": ["all"], "pins": PINS, **packing}
    plan = symconfig.plan(model, cluster, 16, 64, 4096, top=1, **fields).plan
    listed = " ".join(searched(plan))
    for precision in {"bf16", *BACKENDS[backend].low_precisions} & {"bf16", "fp8"}:
        made = requests(described, cluster, plan.job, precision, parse({}))
        able = made[0].whole or made[0].limits
        for extra in (one for one in EXTRAS if one.of(backend)):
            values = extra.values(16).values()
            runs = [each for each in values if able.runs(**extra.columns(each), precision=precision)]
            # Of values of which each is no worse than those before, the last that runs is enough.
            wanted = set(runs[-1:] if extra.alone or extra.whole else runs)
            tried = {getattr(one.extras, extra.name) for one in made}
            assert wanted <= tried or f"{extra.pin}=" in listed, (extra.name, wanted, tried)
