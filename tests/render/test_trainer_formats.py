"""Accelerate and Transformers read what is rendered for them as the plan; what they have no words for is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import render, trainer
from symconfig.render.files import write
from tests.render.bash import shellcheck
from tests.sample_plans import sample_plan
from tools.verify.formats import judge, read_format

pytest.importorskip("accelerate")
pytest.importorskip("deepspeed")

PLANS = {
    "zero3": {"model": "llama2-13b", "zero_stage": 3, "training": {"lr": 1e-4, "lr_decay_style": "linear"}},
    "ulysses": {
        "model": "llama2-13b",
        "cp": 4,
        "dp": 4,
        "zero_stage": 3,
        "cp_comm": "a2a",
        "recompute": "full",
        "recompute_method": "uniform",
        "recompute_layers": 1,
    },
    "autotp": {"model": "llama2-13b", "tp": 4, "dp": 4, "zero_stage": 2, "sequence_parallel": False},
    "lora": {"model": load_model("qwen2.5-7b-lora"), "training": {"lr_decay_style": "WSD", "save": "it's saved here"}},
}


def plans() -> dict[str, Plan]:
    return {name: sample_plan(backend="deepspeed", **fields) for name, fields in PLANS.items()}


@pytest.mark.parametrize("name", ["accelerate", "transformers"])
def test_the_real_parser_understands_the_plan(name: str, tmp_path: Path) -> None:
    outcomes = judge(read_format(name), sys.executable, plans(), tmp_path)
    assert [item for item in outcomes if not item.accepted] == []
    assert all(item.compared > 10 for item in outcomes)


def of_fsdp(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", backend="fsdp", dp=16, zero_stage=3, **fields)


def test_the_real_parser_understands_a_plan_for_fsdp(tmp_path: Path) -> None:
    again = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}
    wanted = {"whole": of_fsdp(training={"lr_decay_style": "linear"}), "groups": of_fsdp(instances=2, **again)}
    outcomes = judge(read_format("transformers"), sys.executable, wanted, tmp_path)
    assert [item for item in outcomes if not item.accepted] == []
    assert all(item.compared > 10 for item in outcomes)
    write(render(wanted["groups"], "transformers"), tmp_path / "written")
    assert shellcheck(tmp_path / "written" / "launch.sh") == ""


def test_everything_that_cannot_be_said_is_said_at_once() -> None:
    plan = sample_plan(
        "mixtral-8x7b",
        backend="deepspeed",
        ep=8,
        zero_stage=2,
        recompute="full",
        recompute_method="block",
        recompute_layers=3,
        training={"lr_decay_iters": 10, "train_iters": 100},
    )
    with pytest.raises(InfeasibleError) as caught:
        render(plan, "transformers")
    assert {problem.field for problem in caught.value.problems} == {"ep", "recompute", "training.lr_decay_iters"}


def test_a_plan_of_megatron_is_rendered_where_deepspeed_can_run_it_and_says_whose_times_these_are() -> None:
    plan = sample_plan("llama2-13b", tp=1, pp=1, dp=8, sequence_parallel=False, overlap_pp_p2p=False)
    assert "other framework" in render(plan, "accelerate")["REPORT.md"]


@pytest.mark.parametrize(
    ("training", "field"),
    [
        ({"lr_decay_style": "inverse-square-root", "lr_warmup_iters": 1, "train_iters": 10**6}, "training.min_lr"),
        ({"lr_decay_style": "inverse-square-root", "lr_warmup_iters": 0, "min_lr": 0.0}, "training.lr_warmup_iters"),
    ],
)
def test_schedules_that_trainer_has_none_of(training: dict[str, object], field: str) -> None:
    plan = sample_plan("llama2-13b", backend="deepspeed", training=training)
    assert [problem.field for problem in trainer.schedule_problems(plan)] == [field]


@pytest.mark.parametrize("name", ["transformers", "llamafactory"])
def test_trainer_goes_on_from_one_checkpoint_or_from_its_own(name: str) -> None:
    def said(**training: str) -> str:
        files = render(sample_plan("llama2-13b", backend="deepspeed", zero_stage=3, training=training), name)
        return files["train.yaml" if name == "llamafactory" else "training_args.json"] + files["REPORT.md"]

    own = said(save="out", load="out/")
    assert 'resume_from_checkpoint"' not in own
    assert "resume_from_checkpoint:" not in own
    assert name == "llamafactory" or "get_last_checkpoint(output_dir)" in own
    assert "/b/checkpoint-20" in said(save="out", load="/b/checkpoint-20")
    with pytest.raises(InfeasibleError, match=r"training\.load: Trainer goes on from one checkpoint"):
        said(save="out", load="/b")
