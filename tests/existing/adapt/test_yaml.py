"""YAML of the functional tests, and of Megatron-LM itself with a plan's values in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from symconfig.existing.adapt.files import adapted
from symconfig.existing.adapt.outcome import Adapted
from symconfig.existing.launch.read import read
from symconfig.existing.recover.namespace import Namespace
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan, Recompute
from symconfig.render import megatron
from tests.sample_plans import sample_plan

FULL = Recompute("full", method="uniform", num_layers=1)


def plan(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", **{"tp": 4, "pp": 2, "dp": 2, "global_batch": 32, **fields})


def model_args(mine: Plan) -> str:
    lines = []
    for group in megatron.groups(mine):
        for name, *values in group.options:
            said = "true" if not values else values[0] if len(values) == 1 else f"[{', '.join(values)}]"
            lines.append(f"  {name}: {said}\n")
    head = "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1  # see arguments.py\nMODEL_ARGS:\n"
    return f"{head}{''.join(lines)}TEST_TYPE: regular\n"


def destinations(mine: Plan) -> str:
    """As --yaml-cfg has them, in one section of the model and one for the rest."""
    words = [option for group in megatron.groups(mine) for option in group.options]
    table = flags.flags(megatron.version(mine))
    names = {
        table.flags[name].dest: table.flags[name].kind == "true" if not values else values[0] for name, *values in words
    }
    lines = [f"{dest}: {str(value).lower() if isinstance(value, bool) else value}\n" for dest, value in names.items()]
    half = len(lines) // 2
    return f"language_model:\n  {'  '.join(lines[:half])}\nmodel_parallel:\n  {'  '.join(lines[half:])}"


def adapt(folder: Path, content: str, goal: Plan) -> Adapted:
    path = folder / "config.yaml"
    path.write_bytes(content.encode())
    return adapted(str(path), goal, {})


def lines(outcome: Adapted) -> list[str]:
    return [line for line in outcome.diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]


@pytest.mark.parametrize("style", [model_args, destinations])
def test_a_file_that_says_the_plan_already_is_left_as_it_is(tmp_path: Path, style: Any) -> None:
    mine = plan()
    outcome = adapt(tmp_path, style(mine), mine)
    assert (outcome.files, outcome.unplaced) == ({}, ())


def test_keys_change_come_and_go(tmp_path: Path) -> None:
    outcome = adapt(
        tmp_path, model_args(plan()), plan(tp=2, dp=4, zero_stage=0, recompute=FULL, overlap_param_gather=False)
    )
    assert not outcome.unplaced
    assert lines(outcome) == [
        "-  --tensor-model-parallel-size: 4",
        "+  --tensor-model-parallel-size: 2",
        "-  --use-distributed-optimizer: true",
        "-  --overlap-param-gather: true",
        "+  --recompute-granularity: full",
        "+  --recompute-method: uniform",
        "+  --recompute-num-layers: 1",
    ]


def test_a_key_that_says_no_is_told_to_say_yes(tmp_path: Path) -> None:
    mine = plan(zero_stage=0, overlap_param_gather=False)
    source = destinations(mine) + "  use_distributed_optimizer: false  # not yet\n"
    outcome = adapt(tmp_path, source, plan(overlap_param_gather=False))
    assert lines(outcome) == [
        "-  use_distributed_optimizer: false  # not yet",
        "+  use_distributed_optimizer: true  # not yet",
    ]


@pytest.mark.parametrize("style", [model_args, destinations])
def test_what_is_written_is_read_as_the_plan(tmp_path: Path, style: Any) -> None:
    goal = plan(tp=2, pp=4, vpp=5, micro=2, recompute=Recompute("selective", ("core_attn", "mlp")))
    outcome = adapt(tmp_path, style(plan(pp=4, vpp=2)), goal)
    assert not outcome.unplaced
    (tmp_path / "config.yaml").write_bytes(outcome.files[outcome.reading.file])
    table = flags.flags(megatron.version(goal))
    names = Namespace(read(outcome.reading.file).settings, table)
    assert [
        names[dest]
        for dest in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "micro_batch_size",
            "num_virtual_stages_per_pipeline_rank",
        )
    ] == [2, 4, 2, 5]
    assert set(names["recompute_modules"] or ()) == {"core_attn", "mlp"}  # type: ignore[arg-type]


def test_what_megatron_s_own_yaml_has_no_key_for_is_left_to_a_person(tmp_path: Path) -> None:
    outcome = adapt(tmp_path, destinations(plan(pp=4)), plan(pp=4, vpp=5))
    assert {item.option: item.now for item in outcome.unplaced} == {"--num-virtual-stages-per-pipeline-rank": "5"}


def test_what_is_off_is_said_where_nothing_else_would_say_it(tmp_path: Path) -> None:
    mine, goal = plan(recompute=FULL), plan(zero_stage=0, overlap_param_gather=False, overlap_grad_reduce=False)
    outcome = adapt(tmp_path, destinations(mine), goal)
    assert not outcome.unplaced
    new = {line.strip().lstrip("+ ") for line in lines(outcome) if line[0] == "+"}
    assert new >= {
        "use_distributed_optimizer: false",
        "overlap_grad_reduce: false",
        "recompute_granularity: null",
        "recompute_method: null",
    }
    assert len(lines(outcome)) == 2 * len(new)


def test_overrides_of_a_recipe_are_put_in_the_section_that_has_them(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nnodes 2 --nproc_per_node 8 run_recipe.py --recipe llama2_13b_pretrain_config "
        "model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=2 model.seq_length=4096 "
        "train.global_batch_size=32 train.micro_batch_size=1 ddp.overlap_grad_reduce=true\n"
    )
    outcome = adapted(str(script), plan(tp=2, dp=4, recompute=FULL), {})
    new = outcome.files[str(script)].decode()
    assert "model.tensor_model_parallel_size=2 " in new
    assert "model.recompute_granularity=full model.recompute_method=uniform model.recompute_num_layers=1" in new
    assert "ddp.use_distributed_optimizer=true" in new
    assert {item.option for item in outcome.unplaced} == {"--bf16"}  # one of the names of mixed_precision
    assert "up to the recipe" in outcome.unplaced[0].why


def test_a_recipe_s_switch_is_said_to_be_off_and_what_it_may_have_on_is_told(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    source = (
        "torchrun --nnodes 2 --nproc_per_node 8 run_recipe.py --recipe llama2_13b_pretrain_config "
        "model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=2 model.seq_length=4096 "
        "train.global_batch_size=32 train.micro_batch_size=1 '++ddp.overlap_grad_reduce=true' "
        "model.recompute_granularity=full\n"
    )
    script.write_text(source)
    outcome = adapted(str(script), plan(overlap_grad_reduce=False, overlap_param_gather=False, zero_stage=0), {})
    new = outcome.files[str(script)].decode()
    assert "'++ddp.overlap_grad_reduce=false' model.recompute_granularity=null" in new
    assert any("--use-distributed-optimizer" in note and "without" in note for note in outcome.notes)


def test_an_override_whose_variable_serves_others_is_changed_where_it_stands(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    source = (
        "TP=4\ntorchrun --nnodes 2 --nproc_per_node 8 run_recipe.py --recipe llama2_13b_pretrain_config "
        "model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=2 model.seq_length=4096 "
        "train.global_batch_size=32 train.micro_batch_size=1 checkpoint.save=/x/tp$TP\n"
    )
    script.write_text(source)
    new = adapted(str(script), plan(tp=2, dp=4), {}).files[str(script)].decode()
    assert "TP=4\n" in new
    assert "model.tensor_model_parallel_size=2 " in new
