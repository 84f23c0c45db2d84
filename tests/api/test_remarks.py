"""Where a plan can be run, and where it runs faster: said beside the table, which is shown all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import symconfig
from symconfig.errors import InfeasibleError
from tests.cli.support import Run

OLMO = ("--model", "olmo2-32b", "--cluster", "h100", "--gpus", "64", "--global-batch-size", "64", "--top", "1")


def test_a_model_that_no_target_of_the_framework_expresses_has_no_files(run: Run, tmp_path: Path) -> None:
    told = run.done("plan", *OLMO, "--backend", "megatron")
    assert "olmo2-32b on 64 x" in told.out
    assert "megatron does not support this model's qk_norm_of, " in told.err
    assert "no files. Try: --target accelerate or axolotl or deepspeed or " in told.err
    ended = run("plan", *OLMO, "--backend", "megatron", "--out", tmp_path / "out")
    assert (ended.code, ended.out, (tmp_path / "out").exists()) == (1, told.out, False)
    assert "error: qk_norm_of: " in ended.err
    run.done("plan", *OLMO, "--target", "deepspeed", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "launch.sh").exists()


def test_a_target_that_is_named_is_refused_as_before() -> None:
    with pytest.raises(InfeasibleError, match=r"no plan of this job can be written for it .*--target accelerate or "):
        symconfig.plan("olmo2-32b", "h200", 64, 64, target="megatron")


@pytest.mark.parametrize(("task", "other"), [("lora", "Megatron-LM"), ("sft", "DeepSpeed")])
def test_fine_tuning_says_what_the_other_framework_takes(task: str, other: str, run: Run) -> None:
    words = ("plan", "--model", "llama3.1-8b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "64")
    ended = run(*words, "--task", task, "--top", "1", "--json")
    (said,) = (one for one in ended.json()["warnings"] if "the best plan with" in one)
    backend = said.rpartition(" ")[2]
    there = symconfig.plan("llama3.1-8b", "h100", 8, 64, task=task, backend=backend, top=1).best.predicted.step_s
    here = ended.json()["best"]["predicted"]["step_s"]
    change = f"{abs(there / here - 1):.1%}".replace("%", " %")
    assert said.startswith(f"the best plan with {other} takes {there:.3f} s, {change} ")
    assert ("more" in said) == (there > here)
    assert "the best plan with" not in run(*words, "--task", task, "--top", "1", "--backend", backend, "--json").err


@pytest.mark.parametrize("backend", ["fsdp", "deepspeed"])
def test_layers_that_transformers_does_not_build_are_left_out_and_said(backend: str, tmp_path: Path) -> None:
    result = symconfig.plan("glm-4.5-air", "h200", 256, 256, backend=backend, top=1)
    assert result.plan.model.num_nextn_predict_layers == 0
    assert any("multi-token prediction" in note for note in result.plan.model.left_out)
    result.write(tmp_path / "out")
    if backend == "deepspeed":  # the other one's script, which names the model, is the user's
        judged = symconfig.audit(tmp_path / "out" / "launch.sh", "h200", plan=False).judged
        assert judged.plan.best.predicted == result.best.predicted


def test_write_with_force_warns_of_edited_files(tmp_path: Path) -> None:
    result = symconfig.plan("llama2-7b", "a100-80gb", 8, 8)
    (launch,) = (path for path in result.write(tmp_path / "out") if path.name == "launch.sh")
    launch.write_text("echo mine\n")
    with pytest.warns(UserWarning, match="replaced what was not as symconfig had written it: launch.sh"):
        result.write(tmp_path / "out", force=True)
