"""One plan, one learning rate: at every step, train.py, Transformers and Megatron-LM have the same one."""

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

from symconfig.descriptor.job import Training
from symconfig.plan import Plan
from symconfig.render import render, trainer
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
    given = {name: _given(script, name) for name in ("lr", "min-lr", "lr-warmup-iters", "lr-decay-style",
                                                     "lr-decay-iters", "train-iters")}
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
    made = optimization.get_scheduler(told["lr_scheduler_type"], optimizer, told["warmup_steps"], told["max_steps"],
                                      told.get("lr_scheduler_kwargs"))
    return lambda step: float(told["learning_rate"] * made.lr_lambdas[0](step))


def of_megatron(plan: Plan) -> Callable[[int], float]:
    """By megatron-core's scheduler, told in steps what Megatron-LM tells it in samples."""
    core = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    training = plan.job.training
    total = training.lr_decay_iters or training.train_iters
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.0}])
    made = core.OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=training.lr, min_lr=training.min_lr, lr_warmup_steps=training.lr_warmup_iters,
        lr_decay_steps=total, lr_decay_style=training.lr_decay_style, start_wd=0.1, end_wd=0.1, wd_incr_steps=1,
        wd_incr_style="constant", wsd_decay_steps=max(1, total // 10), lr_wsd_decay_style="linear")

    def rate(step: int) -> float:
        made.num_steps = step
        return float(made.get_lr({}))

    return rate


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("other", "training"), [
    (of_megatron, {"min_lr": 2e-4, "lr_warmup_iters": 6}), (of_megatron, {"min_lr": 2e-4, "lr_warmup_iters": 0}),
    (of_megatron, {"min_lr": 2e-4, "lr_warmup_iters": 6, "lr_decay_iters": 40}),
    # WSD's warm-up in Transformers begins at the smallest rate, so here that is none.
    (of_transformers, {"min_lr": 0.0, "lr_warmup_iters": 6})])
def test_every_step_has_the_same_learning_rate(style: str, other: Callable[[Plan], Callable[[int], float]],
                                               training: dict[str, Any]) -> None:
    plan = plan_of(style, **training)
    ours, theirs = train_py(plan), other(plan)
    steps = range(RUN["train_iters"])
    assert list(map(ours, steps)) == pytest.approx(list(map(theirs, steps)), rel=1e-9, abs=1e-15)
