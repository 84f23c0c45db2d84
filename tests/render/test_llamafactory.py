"""LLaMA-Factory's YAML: what it says of a plan, and what it cannot. For real: `python -m tools verify formats`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.render.tuners import template
from tests.render.bash import bash, shellcheck
from tests.sample_plans import sample_plan


def plan(model: str = "qwen2.5-7b", **fields: Any) -> Plan:
    return sample_plan(load_model(model), backend="deepspeed", **fields)


def said(of: Plan) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(render(of, "llamafactory")["train.yaml"])
    return data


def test_shards_of_fsdp_are_accelerates_and_layers_run_again_by_its_own_switch() -> None:
    """Its checkpointing is its own (model/model_utils/checkpointing.py): Accelerate's would be another around it."""
    again = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}
    files = render(sample_plan(load_model("qwen2.5-7b"), backend="fsdp", tp=1, pp=1, **again), "llamafactory")
    data, config = (yaml.safe_load(files[name]) for name in ("train.yaml", "accelerate_config.yaml"))
    assert data["disable_gradient_checkpointing"] is False
    assert "deepspeed" not in data
    assert (config["distributed_type"], config["fsdp_config"]["fsdp_version"]) == ("FSDP", 2)
    assert config["fsdp_config"]["fsdp_activation_checkpointing"] is False


def test_everything_that_it_has_no_words_for_is_refused_at_once() -> None:
    with pytest.raises(InfeasibleError) as caught:
        render(
            plan("qwen-7b", tp=2, dp=4, zero_stage=2, sequence_parallel=False, training={"lr_decay_iters": 9}),
            "llamafactory",
        )
    assert {problem.field for problem in caught.value.problems} == {"tp", "model_type", "training.lr_decay_iters"}


def test_every_zoo_model_of_a_family_with_a_template_gets_it() -> None:
    families = {name: template(load_model(name)) for name in zoo_models()}
    assert families["llama2-70b-lora"] == "llama2"
    assert families["llama3.1-8b"] == "llama3"
    assert families["gpt3-175b"] is None


@pytest.mark.parametrize("save", [None, "runs/one"])
def test_checkpoints_lie_where_it_was_started_and_not_beside_the_files(tmp_path: Path, save: str | None) -> None:
    """Whose folder may be read-only: a ConfigMap."""
    write(render(plan(training={"save": save}), "llamafactory"), tmp_path / "files")
    (tmp_path / "work").mkdir()
    done = bash(tmp_path / "files" / "launch.sh", cwd=tmp_path / "work", DRY_RUN="1")
    assert done.stdout.decode().split()[2:] == ["train.yaml", f"output_dir={tmp_path}/work/{save or 'checkpoints'}"]
    assert shellcheck(tmp_path / "files" / "launch.sh") == ""
