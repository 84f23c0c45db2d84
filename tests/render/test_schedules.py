"""One plan, one learning rate and one optimizer: what each format says gives its framework the same at every step."""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml

from symconfig.descriptor.job import Training
from symconfig.descriptor.load import load_model
from symconfig.descriptor.training import KNOWN_OPTIMIZERS, Optimizer
from symconfig.descriptor.tuning import Preference
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import megatron, render, trainer
from tests.sample_plans import sample_plan, with_optimizer

TRAIN = Path(__file__).resolve().parents[2] / "templates" / "deepspeed" / "train.py"
RUN: dict[str, Any] = {"lr": 2e-3, "train_iters": 60}
STYLES = get_args(Training.model_fields["lr_decay_style"].annotation)


def plan_for(style: str, **training: Any) -> Plan:
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
    plan = plan_for(style, **training)
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
    expected = list(map(train_py(plan_for(style, min_lr=2e-4, lr_warmup_iters=6)), steps))
    for name, told in said.items():
        assert list(map(of_megatron(plan, told), steps)) == pytest.approx(expected, rel=1e-9, abs=1e-15), name


NARROW = Optimizer(exp_avg="bf16", exp_avg_sq="bf16")
OPTIMIZERS = {
    "muon": Optimizer(name="muon"), "narrow": NARROW, "sgd": Optimizer(name="sgd"),
    "adam8bit": Optimizer(name="adam8bit"), "adafactor": Optimizer(name="adafactor"),
}  # fmt: skip
OF_MEGATRON = {"megatron": {"muon", "narrow", "sgd"}, "bridge": {"sgd"}, "ms-swift": {"narrow", "sgd"}}  # fmt: skip
OF_DEEPSPEED: dict[str, set[str]] = {
    "deepspeed": set(), "accelerate": {"sgd", "adam8bit", "adafactor"},
    "transformers": {"sgd", "adam8bit", "adafactor"}, "llamafactory": {"sgd", "adam8bit", "adafactor"},
}  # fmt: skip
EVERY = {**OF_MEGATRON, **OF_DEEPSPEED}


def plan_of(target: str, name: str) -> Plan:
    optimizer = OPTIMIZERS[name]
    if target in OF_DEEPSPEED:
        return with_optimizer(sample_plan(load_model("qwen2.5-7b"), "h100", "deepspeed", zero_stage=2), optimizer)
    return with_optimizer(sample_plan(load_model("qwen2.5-7b"), "h100"), optimizer)


def files(target: str, name: str) -> dict[str, str]:
    return {item.path: item.text for item in render(plan_of(target, name), target)}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("target", EVERY)
def test_a_target_says_an_optimizer_or_refuses_it_by_its_field(target: str, name: str) -> None:
    if name in EVERY[target]:
        assert files(target, name)
        return
    with pytest.raises(InfeasibleError) as error:
        files(target, name)
    assert {problem.field for problem in error.value.problems} == {"optimizer"}


def test_trainer_makes_what_deepspeed_does_not() -> None:
    for name, optim in (("adam8bit", "adamw_bnb_8bit"), ("adafactor", "adafactor"), ("sgd", "sgd")):
        found = files("transformers", name)
        arguments: dict[str, Any] = json.loads(found["training_args.json"])
        assert arguments["optim"] == optim
        assert arguments.get("optim_args") == ("momentum=0.9" if name == "sgd" else None)
        said = json.loads(found["ds_config_hf.json"])
        assert said["zero_allow_untested_optimizer"] is True
        assert "optimizer" not in said
        assert yaml.safe_load(files("llamafactory", name)["train.yaml"])["optim"] == optim
    assert "bitsandbytes.optim.AdamW8bit(lr=" in files("accelerate", "adam8bit")["REPORT.md"]


def test_trainers_own_parser_takes_the_names() -> None:
    training = pytest.importorskip("transformers.training_args")
    known = {item.value for item in training.OptimizerNames}
    assert {
        json.loads(files("transformers", name)["training_args.json"])["optim"] for name in ("adam8bit", "sgd")
    } < known
    assert "adafactor" in known


def test_the_page_says_what_each_target_is_told() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "optimizers.md").read_text(encoding="utf-8")
    rows = (line.strip("|").split("|") for line in page.partition("## Targets")[2].splitlines())
    found = {cells[0].strip(): set(cells[1].replace(",", " ").split()) for cells in rows if len(cells) == 2}
    assert {target: found.get(target) for target in EVERY} == EVERY
    assert all(f"`{name}`" in page for name in KNOWN_OPTIMIZERS)


def pairs(loss: str, **training: Any) -> Plan:
    plan = sample_plan(load_model("qwen2.5-7b"), "h100", "deepspeed", zero_stage=3, micro=2, training=training)
    preference = Preference.model_validate({"pairs": 64, "loss": loss}, strict=False)
    return replace(plan, job=plan.job.model_copy(update={"task": "dpo", "preference": preference}))


@pytest.mark.parametrize("target", ["trl", "llamafactory", "ms-swift-deepspeed"])
def test_a_reference_is_handed_no_optimizer(target: str) -> None:
    """Programs hand DeepSpeed the reference with the policy's JSON; an optimizer in it fails there at ZeRO-3."""
    files = render(pairs("sigmoid"), target)
    assert "optimizer" not in json.loads(files["ds_config_hf.json"])
    assert "\noptim: adamw_torch_fused\n" in files["train.yaml" if target == "llamafactory" else "config.yaml"]


def test_a_linear_rate_is_refused_where_deepspeed_wraps_trainer_s_optimizer() -> None:
    """`polynomial` asks for `optimizer.defaults`, which DeepSpeed's wrappers lack; ms-swift asks what it has made."""
    plan = pairs("sigmoid", lr_decay_style="linear")
    with pytest.raises(InfeasibleError) as error:
        render(plan, "trl")
    assert [problem.field for problem in error.value.problems] == ["training.lr_decay_style"]
    assert "polynomial" in render(plan, "ms-swift-deepspeed")["config.yaml"]


@pytest.mark.parametrize(("loss", "said"), [("cpo", "cpo"), ("simpo", "simpo"), ("hinge", "dpo")])
def test_a_loss_with_a_type_of_its_own_is_read_back_as_itself(loss: str, said: str) -> None:
    """ms-swift makes CPO with the loss of SimPO out of `simpo`, and leaves `cpo` its own (arguments/rlhf_args.py)."""
    text = render(pairs(loss), "ms-swift-deepspeed")["config.yaml"]
    assert f"\nrlhf_type: {said}\n" in text
    assert ("loss_type" in text) == (said == "dpo")
