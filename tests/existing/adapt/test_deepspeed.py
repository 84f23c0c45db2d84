"""DeepSpeed's JSON, and the words that a Trainer's script has for it, with a plan's values in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.existing.adapt.draft import MADE, Adapted
from symconfig.existing.adapt.files import adapted
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.read import read
from symconfig.existing.recover.deepspeed import run
from symconfig.existing.recover.run import Run, Supplied
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, render
from tests.existing.adapt.scripts import lines
from tests.sample_plans import sample_plan

COMMENTED = """{
    // a batch of 128 sequences
    "train_batch_size": 128,
    "train_micro_batch_size_per_gpu": 1,   // per GPU
    "zero_optimization": {
        "stage": 2,
        "overlap_comm": true,
        "reduce_bucket_size": 500000000
    },
    "bf16": {"enabled": true},
    "data_types": {"grad_accum_dtype": "fp32"},
    "gradient_clipping": 1.0
}
"""


def plan(**fields: Any) -> Plan:
    return sample_plan(
        "llama2-13b",
        backend="deepspeed",
        **{"dp": 16, "global_batch": 128, "zero_stage": 2, "overlap_param_gather": False, **fields},
    )


def adapt(folder: Path, content: str, goal: Plan) -> Adapted:
    path = folder / "ds_config.json"
    path.write_bytes(content.encode())
    return adapted(str(path), goal, {})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"zero_stage": 3, "optimizer_offload": 1.0, "param_offload": True, "overlap_param_gather": True},
        {"tp": 2, "dp": 8, "zero_stage": 1, "sequence_parallel": False},
        {"cp": 2, "dp": 8, "cp_comm": "a2a"},
        {"precision": "fp16", "zero_stage": 1},
    ],
)
def test_what_was_rendered_from_the_plan_is_left_as_it_is(tmp_path: Path, fields: dict[str, Any]) -> None:
    mine = plan(**fields)
    for path, text in ((item.path, item.text) for item in render(mine, "deepspeed")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    outcome = adapted(str(tmp_path / "ds_config.json"), mine, {})
    assert (outcome.files, outcome.unplaced) == ({}, ())
    outcome = adapted(str(tmp_path / "launch.sh"), mine, {})
    assert (outcome.files, outcome.unplaced) == ({}, ())


def test_a_file_of_another_hand_with_the_same_meaning_is_left_as_it_is(tmp_path: Path) -> None:
    outcome = adapt(tmp_path, COMMENTED, plan())
    assert (outcome.files, outcome.unplaced) == ({}, ())


def _script_with_json(folder: Path, stage: str) -> Path:
    """Return a script that writes its JSON, with this text as the ZeRO stage."""
    body = COMMENTED.replace("    // a batch of 128 sequences\n", "").replace('"stage": 2', f'"stage": {stage}')
    start = "deepspeed --num_gpus 16 train.py --deepspeed_config ds.json\n"
    (path := folder / "train.sh").write_text(f"Z=2\ncat > ds.json <<EOF\n{body}EOF\n{start}")
    return path


def test_a_json_that_the_script_writes_is_changed_in_the_script(tmp_path: Path) -> None:
    path = _script_with_json(tmp_path, "2")
    outcome = adapted(str(path), plan(zero_stage=3), {})
    change = next(each for each in outcome.changes if each.option == "zero_optimization.stage")
    assert (change.was, change.now, str(change.place).rpartition("/")[2]) == ("2", "3", "train.sh:7:9")
    assert not outcome.unplaced
    assert outcome.files.keys() == {str(path)}
    path.write_bytes(outcome.files[str(path)])
    again = adapted(str(path), plan(zero_stage=3), {})
    assert (again.changes, again.unplaced) == ((), ())


def test_a_json_that_the_script_writes_out_of_variables_is_left_to_a_person(tmp_path: Path) -> None:
    outcome = adapted(str(_script_with_json(tmp_path, "$Z")), plan(zero_stage=3), {})
    item = next(each for each in outcome.unplaced if each.option == "zero_optimization.stage")
    assert (item.now, item.why) == ("3", MADE)
    assert str(item.place).endswith("train.sh):5:9")
    assert not outcome.files


PLAIN = '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 2}}\n'
START = "deepspeed --num_gpus 16 train.py --deepspeed_config ds.json\n"


@pytest.mark.parametrize("first", ["ds", "other"])
def test_of_two_equal_texts_in_a_script_that_of_the_file_in_use_is_changed(tmp_path: Path, first: str) -> None:
    names = (first, "other" if first == "ds" else "ds")
    body = "".join(f"cat > {name}.json <<'EOF'\n{PLAIN}EOF\n" for name in names)
    (path := tmp_path / "train.sh").write_text(body + START)
    outcome = adapted(str(path), plan(zero_stage=3), {})
    stages = re.findall(r"> (\w+).json.*\n.*\"stage\": (\d)", outcome.files[str(path)].decode())
    assert dict(stages) == {"ds": "3", "other": "2"}
    assert not outcome.unplaced
    assert {each.place.file for each in outcome.changes} == {str(path)}


@pytest.mark.parametrize("other", ["eval.json", "$OUT/eval.json"])
def test_a_text_that_a_script_writes_into_two_files_is_left_to_a_person(tmp_path: Path, other: str) -> None:
    body = f"OUT=.\nwrite() {{\ncat > $1 <<'EOF'\n{PLAIN}EOF\n}}\nwrite {other}\nwrite ds.json\n{START}"
    (path := tmp_path / "train.sh").write_text(f"{body}python serve.py {other}\n")
    outcome = adapted(str(path), plan(zero_stage=3), {})
    assert not outcome.files
    assert "zero_optimization.stage" in {item.option for item in outcome.unplaced}


@pytest.mark.parametrize("section", ["3", "null", "true"])
def test_a_section_that_is_no_object_is_left_to_a_person(tmp_path: Path, section: str) -> None:
    sizes = '"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8'
    outcome = adapt(
        tmp_path, f'{{{sizes}, "bf16": {{"enabled": true}}, "zero_optimization": {section}}}', plan(zero_stage=2)
    )
    item = next(each for each in outcome.unplaced if each.option == "zero_optimization.stage")
    assert (item.now, item.why) == ("2", "zero_optimization is no object there")


def test_an_auto_in_a_json_that_the_script_writes_names_the_argument_that_fills_it(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    start = "deepspeed --num_gpus 16 train.py --deepspeed ds.json\n"
    body = '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": "auto", "bf16": {"enabled": true}}\n'
    path.write_text(f"cat > ds.json <<EOF\n{body}EOF\n{start}")
    outcome = adapted(str(path), plan(zero_stage=2), {})
    item = next(each for each in outcome.unplaced if each.option == "gradient_accumulation_steps")
    assert "--gradient_accumulation_steps" in item.why
    assert str(item.place).endswith("train.sh:2:39")


def test_values_change_sections_come_and_comments_stay(tmp_path: Path) -> None:
    goal = plan(zero_stage=3, micro=2, optimizer_offload=1.0, overlap_param_gather=True)
    outcome = adapt(tmp_path, COMMENTED, goal)
    assert not outcome.unplaced
    assert lines(outcome) == [
        '-    "train_micro_batch_size_per_gpu": 1,   // per GPU',
        '+    "train_micro_batch_size_per_gpu": 2,   // per GPU',
        '-        "stage": 2,',
        '+        "stage": 3,',
        '-        "reduce_bucket_size": 500000000',
        '+        "reduce_bucket_size": 500000000,',
        '+        "offload_optimizer": {"device": "cpu", "pin_memory": true}',
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"micro": 2},
        {"precision": "fp16"},
        {"zero_stage": 1},
        {"zero_stage": 3, "overlap_param_gather": True, "param_offload": True, "optimizer_offload": 1.0},
        {"zero_stage": 3, "overlap_param_gather": True, "optimizer_offload": 0.5},
        {"overlap_grad_reduce": False},
        {"grad_bytes": 2},
        {"tp": 2, "dp": 8, "sequence_parallel": False},
        {"cp": 2, "dp": 8, "cp_comm": "a2a"},
    ],
    ids=str,
)
def test_what_differs_of_a_plan_is_changed_and_changed_back(tmp_path: Path, fields: dict[str, Any]) -> None:
    base, other = plan(), plan(**fields)
    texts = {id(goal): json.dumps(deepspeed.config(goal), indent=2) for goal in (base, other)}
    for mine, goal in ((base, other), (other, base)):
        outcome = adapt(tmp_path, texts[id(mine)], goal)
        assert not outcome.unplaced
        (content,) = outcome.files.values()
        again, wanted = (meaning(tmp_path, text, goal) for text in (content.decode(), texts[id(goal)]))
        assert again.configuration == wanted.configuration


def meaning(folder: Path, content: str, goal: Plan) -> Run:
    (folder / "ds.json").write_text(content)
    known = Supplied(goal.model, goal.best.configuration.world_size, goal.best.configuration.seq_length)
    return run(read(str(folder / "ds.json")), goal.cluster, known)


def test_what_is_auto_is_said_by_the_program_s_arguments(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        COMMENTED.replace('_size": 128', '_size": "auto"').replace('_per_gpu": 1', '_per_gpu": "auto"')
    )
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nnodes 2 --nproc_per_node 8 train.py --deepspeed ds.json --bf16 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --max_seq_length 4096\n"
    )
    outcome = adapted(str(script), plan(micro=2), {})
    assert not outcome.unplaced
    assert outcome.files[str(script)].decode() == script.read_text().replace("batch_size 1", "batch_size 2").replace(
        "steps 8", "steps 4"
    )


def test_another_model_length_or_framework_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(COMMENTED)
    script = tmp_path / "train.sh"
    script.write_text(
        "deepspeed train.py --deepspeed ds.json --max_seq_length 2048 --model_name_or_path Qwen/Qwen2.5-7B\n"
    )
    with pytest.raises(InputError, match="sequence length"):
        adapted(str(script), plan(), {})
    path = tmp_path / "megatron.sh"
    path.write_text("torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64\n")
    with pytest.raises(InputError, match="no DeepSpeed JSON was read"):
        adapted(str(path), plan(), {})


def test_recompute_is_said_by_the_program(tmp_path: Path) -> None:
    goal = plan(recompute="full", recompute_method="uniform", recompute_layers=1)
    alone = adapt(tmp_path, COMMENTED, goal)
    assert not alone.unplaced
    assert "every layer" in alone.notes[0]
    script = tmp_path / "train.sh"
    for argument, left in (("--recompute-layers 0", []), ("--lr 1", ["the recomputed layers"])):
        script.write_text(f"deepspeed --num_gpus 8 --num_nodes 2 train.py --deepspeed ds_config.json {argument}\n")
        outcome = adapted(str(script), goal, {})
        assert [item.option for item in outcome.unplaced] == left
        assert [change.now for change in outcome.changes] == ([] if left else ["-1"])


FULL: dict[str, Any] = {"recompute": "full", "recompute_method": "uniform"}
NONE: dict[str, Any] = {"recompute": "none", "recompute_method": None}
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


def trained(**fields: Any) -> Plan:
    return plan(**{"cluster": "h100", "grad_bytes": 2, **FULL, **fields})


def adapt_script(folder: Path, more: str, goal: Plan, config: str = JSON) -> Adapted:
    (folder / "ds.json").write_text(config)
    (folder / "train.sh").write_text(SCRIPT.format(more=more))
    return adapted(str(folder / "train.sh"), goal, {})


def changes(outcome: Adapted) -> dict[str, tuple[str | None, str | None]]:
    assert not outcome.unplaced
    return {change.option: (change.was, change.now) for change in outcome.changes}


@pytest.mark.parametrize(
    ("more", "recompute", "option", "change"),
    [
        ("--gradient_checkpointing True ", NONE, "--gradient_checkpointing", ("True", "False")),
        ("--gradient_checkpointing true ", NONE, "--gradient_checkpointing", ("true", "false")),
        ("--gradient_checkpointing ", NONE, "--gradient_checkpointing", ("", None)),
        ("--gradient_checkpointing False ", FULL, "--gradient_checkpointing", ("False", "True")),
        ("--use_gradient_checkpointing False ", FULL, "--use_gradient_checkpointing", ("False", "True")),
        ("", FULL, "--gradient_checkpointing", (None, "True")),
    ],
)
def test_recompute_is_the_trainer_s_own_switch(
    tmp_path: Path, more: str, recompute: dict[str, Any], option: str, change: tuple[str | None, str | None]
) -> None:
    outcome = adapt_script(tmp_path, BATCH + more, trained(**recompute))
    assert changes(outcome) == {option: change}
    (tmp_path / "train.sh").write_bytes(outcome.files[str(tmp_path / "train.sh")])
    assert adapted(str(tmp_path / "train.sh"), trained(**recompute), {}).files == {}


def test_a_batch_that_no_argument_says_is_said_beside_the_others(tmp_path: Path) -> None:
    outcome = adapt_script(tmp_path, "--gradient_checkpointing True --gradient_accumulation_steps 8 ", trained())
    assert changes(outcome) == {"--per_device_train_batch_size": (None, "1")}
    assert "--gradient_accumulation_steps 8 --per_device_train_batch_size 1" in "\n".join(lines(outcome))


def test_numbers_that_stand_in_both_files_change_in_both(tmp_path: Path) -> None:
    config = JSON.replace('per_gpu": "auto"', 'per_gpu": 1').replace('steps": "auto"', 'steps": 8')
    goal = trained(micro=2)
    outcome = adapt_script(tmp_path, BATCH + "--gradient_checkpointing True ", goal, config)
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
    outcome = adapted(str(tmp_path / "train.sh"), trained(micro=2, **NONE), {})
    assert not outcome.unplaced
    assert lines(outcome) == [
        "-gradient_checkpointing: true",
        "+gradient_checkpointing: false",
        "-per_device_train_batch_size: 1",
        "-gradient_accumulation_steps: 8",
        "+per_device_train_batch_size: 2",
        "+gradient_accumulation_steps: 4",
    ]
