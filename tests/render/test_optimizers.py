"""What each target is told of an optimizer, and what refuses it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.load import load_model
from symconfig.descriptor.training import KNOWN_OPTIMIZERS, Optimizer
from symconfig.descriptor.tuning import Preference
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import render
from tests.sample_plans import sample_plan, with_optimizer

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
