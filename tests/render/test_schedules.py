"""One plan, one learning rate: at every step, what each format says gives its framework's scheduler the same one."""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml

from symconfig.descriptor.job import Training
from symconfig.plans.plan import Plan
from symconfig.render import megatron, render, trainer
from tests.sample_plans import sample_plan

TRAIN = Path(__file__).resolve().parents[2] / "templates" / "deepspeed" / "train.py"
RUN: dict[str, Any] = {"lr": 2e-3, "train_iters": 60}
STYLES = get_args(Training.model_fields["lr_decay_style"].annotation)


def plan_of(style: str, **training: Any) -> Plan:
    return sample_plan("llama2-13b", backend="deepspeed", training={**RUN, "lr_decay_style": style, **training})


def train_py(plan: Plan) -> Callable[[int], float]:
    """By the file's own lr_factor, with the arguments that launch.sh gives it."""
    tree = ast.parse(TRAIN.read_text(encoding="utf-8"))
    body: list[ast.stmt] = [node for node in tree.body if getattr(node, "name", None) == "lr_factor"]
    space: dict[str, Any] = {"math": math, "argparse": argparse}
    exec(compile(ast.Module(body=body, type_ignores=[]), TRAIN.name, "exec"), space)
    script = render(plan, "deepspeed")["launch.sh"]
    given = {
        name: _given(script, name)
        for name in (
            "lr", "min-lr", "lr-warmup-iters", "lr-decay-style", "lr-decay-iters", "lr-wsd-decay-iters", "train-iters",
        )
    }  # fmt: skip
    args = argparse.Namespace(**{name.replace("-", "_"): value for name, value in given.items()})
    return lambda step: float(args.lr * space["lr_factor"](args, step))


def _given(script: str, name: str) -> Any:
    """What follows --NAME= in launch.sh."""
    found = re.search(rf"^ *'?--{name}=([^\s']+)", script, re.MULTILINE)
    text = found[1] if found else "null"
    try:
        return json.loads(text)
    except ValueError:
        return text


def of_transformers(plan: Plan) -> Callable[[int], float]:
    """By the scheduler that Trainer makes of its arguments."""
    torch = pytest.importorskip("torch")
    optimization = pytest.importorskip("transformers.optimization")
    told = trainer.arguments(plan, "x")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=told["learning_rate"])
    made = optimization.get_scheduler(
        told["lr_scheduler_type"], optimizer, told["warmup_steps"], told["max_steps"], told.get("lr_scheduler_kwargs")
    )
    return lambda step: float(told["learning_rate"] * made.lr_lambdas[0](step))


def of_megatron(plan: Plan, told: dict[str, Any] | None = None) -> Callable[[int], float]:
    """By megatron-core's scheduler, told in steps what Megatron-LM tells it in samples. told: by a file's names."""
    core = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    given = (
        option
        for group in megatron.groups(plan)
        for option in group.options
        if option[0].startswith(("--lr", "--min-lr"))
    )
    say = told or {name.lstrip("-").replace("-", "_"): yaml.safe_load(value) for name, value in given}
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.0}])
    made = core.OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=say["lr"],
        min_lr=say["min_lr"],
        lr_warmup_steps=say["lr_warmup_iters"],
        lr_decay_steps=say["lr_decay_iters"],
        lr_decay_style=say["lr_decay_style"],
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=1,
        wd_incr_style="constant",
        wsd_decay_steps=say.get("lr_wsd_decay_iters"),
        lr_wsd_decay_style=say.get("lr_wsd_decay_style", "exponential"),
    )

    def rate(step: int) -> float:
        made.num_steps = step
        return float(made.get_lr({}))

    return rate


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("other", "training"),
    [
        (of_megatron, {"min_lr": 2e-4, "lr_warmup_iters": 6}),
        (of_megatron, {"min_lr": 2e-4, "lr_warmup_iters": 0}),
        (of_megatron, {"min_lr": 2e-4, "lr_warmup_iters": 6, "lr_decay_iters": 40, "lr_wsd_decay_iters": 11}),
        # WSD's warm-up in Transformers begins at the smallest rate, so here that is none.
        (of_transformers, {"min_lr": 0.0, "lr_warmup_iters": 6}),
    ],
)
def test_every_step_has_the_same_learning_rate(
    style: str, other: Callable[[Plan], Callable[[int], float]], training: dict[str, Any]
) -> None:
    plan = plan_of(style, **training)
    ours, theirs = train_py(plan), other(plan)
    steps = range(RUN["train_iters"])
    assert list(map(ours, steps)) == pytest.approx(list(map(theirs, steps)), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("style", STYLES)
def test_every_file_for_megatron_core_says_the_same_schedule(style: str) -> None:
    plan = sample_plan("qwen2.5-7b", training={**RUN, "lr_decay_style": style, "min_lr": 2e-4, "lr_warmup_iters": 6})
    bridge = yaml.safe_load(render(plan, "bridge")["overrides.yaml"])
    said = {
        "ms-swift": yaml.safe_load(render(plan, "ms-swift")["config.yaml"]),
        "bridge": {**bridge["optimizer"], **bridge["scheduler"]},
    }
    steps = range(RUN["train_iters"])
    expected = list(map(train_py(plan_of(style, min_lr=2e-4, lr_warmup_iters=6)), steps))
    for name, told in said.items():
        assert list(map(of_megatron(plan, told), steps)) == pytest.approx(expected, rel=1e-9, abs=1e-15), name
