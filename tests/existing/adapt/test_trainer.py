"""The Trainer's own switches are used where a script has them: in the words, and the place, that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.existing.adapt.draft import Adapted
from symconfig.existing.adapt.files import adapted
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.read import read
from symconfig.existing.recover.run import Supplied
from symconfig.plans.plan import Plan
from tests.existing.adapt.test_deepspeed import lines
from tests.sample_plans import sample_plan

FULL: dict[str, Any] = {"recompute": "full", "recompute_method": "uniform"}
JSON = """{
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 2, "overlap_comm": true},
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto"
}
"""
SCRIPT = """torchrun --nnodes 2 --nproc_per_node 8 train.py \\
    --deepspeed ds.json --bf16 True \\
    --output_dir out --learning_rate 1e-5 \\
    {more}--max_seq_length 4096
"""
BATCH = "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 "
YAML = """model_name_or_path: somewhere
deepspeed: ds.json  # zero
max_seq_length: 4096
gradient_checkpointing: true
output_dir: saves
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-5
bf16: true
"""


def plan(**fields: Any) -> Plan:
    return sample_plan(
        "llama2-13b",
        "h100",
        backend="deepspeed",
        **{
            "dp": 16,
            "global_batch": 128,
            "zero_stage": 2,
            "overlap_param_gather": False,
            "grad_bytes": 2,
            **FULL,
            **fields,
        },
    )


def adapt(folder: Path, more: str, goal: Plan, config: str = JSON) -> Adapted:
    (folder / "ds.json").write_text(config)
    (folder / "train.sh").write_text(SCRIPT.format(more=more))
    return adapted(str(folder / "train.sh"), goal, {})


def changes(outcome: Adapted) -> dict[str, tuple[str | None, str | None]]:
    assert not outcome.unplaced
    return {change.option: (change.was, change.now) for change in outcome.changes}


@pytest.mark.parametrize(
    ("more", "recompute", "option", "change"),
    [
        (
            "--gradient_checkpointing True ",
            {"recompute": "none", "recompute_method": None},
            "--gradient_checkpointing",
            ("True", "False"),
        ),
        (
            "--gradient_checkpointing true ",
            {"recompute": "none", "recompute_method": None},
            "--gradient_checkpointing",
            ("true", "false"),
        ),
        (
            "--gradient_checkpointing ",
            {"recompute": "none", "recompute_method": None},
            "--gradient_checkpointing",
            ("", None),
        ),
        ("--gradient_checkpointing False ", FULL, "--gradient_checkpointing", ("False", "True")),
        ("--use_gradient_checkpointing False ", FULL, "--use_gradient_checkpointing", ("False", "True")),
        ("", FULL, "--gradient_checkpointing", (None, "True")),
    ],
)
def test_recompute_is_the_trainer_s_own_switch(
    tmp_path: Path, more: str, recompute: dict[str, Any], option: str, change: tuple[str | None, str | None]
) -> None:
    outcome = adapt(tmp_path, BATCH + more, plan(**recompute))
    assert changes(outcome) == {option: change}
    (tmp_path / "train.sh").write_bytes(outcome.files[str(tmp_path / "train.sh")])
    assert adapted(str(tmp_path / "train.sh"), plan(**recompute), {}).files == {}


def test_a_batch_that_no_argument_says_is_said_beside_the_others(tmp_path: Path) -> None:
    outcome = adapt(tmp_path, "--gradient_checkpointing True --gradient_accumulation_steps 8 ", plan())
    assert changes(outcome) == {"--per_device_train_batch_size": (None, "1")}
    assert "--gradient_accumulation_steps 8 --per_device_train_batch_size 1" in "\n".join(lines(outcome))


def test_numbers_that_stand_in_both_files_change_in_both(tmp_path: Path) -> None:
    config = JSON.replace('per_gpu": "auto"', 'per_gpu": 1').replace('steps": "auto"', 'steps": 8')
    goal = plan(micro=2)
    outcome = adapt(tmp_path, BATCH + "--gradient_checkpointing True ", goal, config)
    assert changes(outcome) == {
        "train_micro_batch_size_per_gpu": ("1", "2"),
        "gradient_accumulation_steps": ("8", "4"),
        "--per_device_train_batch_size": ("1", "2"),
        "--gradient_accumulation_steps": ("8", "4"),
    }
    for file, data in outcome.files.items():
        Path(file).write_bytes(data)
    done = audit(read(str(tmp_path / "train.sh")), Supplied(goal.model), goal.cluster, goal.job.limits, plan=False)
    assert [finding.rule for finding in done.findings if finding.severity == "error"] == []


def test_values_of_yaml_change_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(JSON)
    (tmp_path / "job.yaml").write_text(YAML)
    (tmp_path / "train.sh").write_text("torchrun --nnodes 2 --nproc_per_node 8 train.py job.yaml\n")
    outcome = adapted(str(tmp_path / "train.sh"), plan(micro=2, recompute="none", recompute_method=None), {})
    assert not outcome.unplaced
    assert lines(outcome) == [
        "-gradient_checkpointing: true",
        "+gradient_checkpointing: false",
        "-per_device_train_batch_size: 1",
        "-gradient_accumulation_steps: 8",
        "+per_device_train_batch_size: 2",
        "+gradient_accumulation_steps: 4",
    ]


def test_a_configuration_of_accelerate_is_named_where_it_stands(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("accelerate launch --config_file acc.yaml train.py --learning_rate 1e-5\n")
    said = r"train.sh:1:19: --config_file: names a configuration of Accelerate.*--target accelerate"
    with pytest.raises(InputError, match=said):
        adapted(str(script), plan(), {})
