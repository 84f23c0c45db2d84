"""One way in for every format: what a file is, what it leads to, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.existing.launch.read import read
from tests.existing.launch.summary import options, places_hold, unread

DS = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}


def write(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return str(path)


def refusal(source: str) -> str:
    with pytest.raises(InputError) as caught:
        read(source)
    return str(caught.value)


def test_a_line_of_arguments() -> None:
    reading = read("--num-layers 12 --lr 1e-4 --sequence-parallel")
    assert (reading.format, reading.program) == ("bash", None)
    assert options(reading) == ["--num-layers 12", "--lr 1e-4", "--sequence-parallel"]
    assert places_hold(reading)


def test_a_line_of_overrides() -> None:
    reading = read("model.tensor_model_parallel_size=4 trainer.num_nodes=2 trainer.devices=8 ~model.num_layers")
    assert (reading.format, reading.world.gpus) == ("overrides", 16)
    assert options(reading) == ["--tensor-model-parallel-size 4"]
    assert places_hold(reading)


def test_a_whole_command() -> None:
    reading = read("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4")
    assert (reading.world.gpus, options(reading)) == (8, ["--num-layers 4"])


def test_variables_that_no_file_names_are_said(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "model_name_or_path: x\nlearning_rate: 1\nbf16: true\ndataset_name: ${DATA}/x\n")
    said = unread(read(file, variables={"DATA": "/d", "OTHER": "1"}), matters=False)
    assert said == ["1 OTHER: is given from outside, and nothing in the file names it"]


def test_a_deepspeed_json_by_itself(tmp_path: Path) -> None:
    reading = read(write(tmp_path, "ds.json", json.dumps(DS)))
    assert reading.format == "deepspeed"
    assert reading.deepspeed.get("zero_optimization", "stage") == 3


@pytest.mark.parametrize("name", ["job.yaml", "job.conf", "job"])
def test_what_a_file_is_stands_in_it(tmp_path: Path, name: str) -> None:
    reading = read(write(tmp_path, name, "model:\n  num_layers: 3\n"))
    assert (reading.format, options(reading)) == ("overrides", ["--num-layers 3"])


@pytest.mark.parametrize(
    "option",
    [
        "--deepspeed_config ds.json",
        "--deepspeed ds.json",
        "--deepspeed-config=ds.json",
        "--deepspeed --deepspeed_config ds.json",
    ],
)
def test_the_json_that_a_script_names(tmp_path: Path, option: str) -> None:
    write(tmp_path, "ds.json", json.dumps(DS))
    reading = read(write(tmp_path, "run.sh", f"deepspeed --num_gpus 4 train.py {option} --bf16\n"))
    assert reading.deepspeed.data == DS
    assert [Path(text.file).name for text in reading.texts] == ["run.sh", "ds.json"]
    assert unread(reading, matters=True) == []


def test_a_json_that_is_named_from_a_folder_above(tmp_path: Path) -> None:
    write(tmp_path, "scripts/ds.json", json.dumps(DS))
    line = "deepspeed train.py --deepspeed ./scripts/ds.json\n"
    reading = read(write(tmp_path, "scripts/v2/run.sh", line))
    assert reading.deepspeed is not None
    assert reading.complete


def test_a_json_behind_a_link_that_leads_out_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/ds.json", json.dumps(DS))
    script = write(tmp_path, "here/run.sh", "deepspeed train.py --deepspeed ds.json\n")
    (tmp_path / "here" / "ds.json").symlink_to(tmp_path / "elsewhere" / "ds.json")
    reading = read(script)
    assert reading.deepspeed is None
    assert "lies outside of" in unread(reading, matters=True)[0]


def test_deepspeed_s_json_is_known_by_its_own_keys(tmp_path: Path) -> None:
    sections = {"fp16": {"enabled": True}, "bf16": {"enabled": False}, "optimizer": {"type": "AdamW"}}
    for data in (sections, {**sections, "steps_per_print": 1, "lr": 1, "seed": 2, "num_layers": 3}):
        assert read(write(tmp_path, "ds.json", json.dumps(data))).deepspeed is not None


def test_a_json_that_the_script_writes_is_read(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "run.sh",
        """\
ZERO=2
CONFIG=ds_auto.json
cat <<EOT > $CONFIG
{
  "train_batch_size": 32,
  "zero_optimization": {"stage": $ZERO}
}
EOT
deepspeed --num_gpus 8 train.py --deepspeed_config $CONFIG
""",
    )
    reading = read(script)
    tree = reading.deepspeed
    assert tree.data == {"train_batch_size": 32, "zero_optimization": {"stage": 2}}
    assert tree.text.file == f"ds_auto.json (written by {script})"


def test_a_json_that_a_script_of_the_script_writes_is_read(tmp_path: Path) -> None:
    write(tmp_path, "make.sh", f"echo '{json.dumps(DS)}' > ds.json\n")
    reading = read(write(tmp_path, "run.sh", "bash make.sh\ndeepspeed train.py --deepspeed_config ds.json\n"))
    assert (reading.deepspeed.data, reading.complete) == (DS, True)


def test_hydra_s_file_under_its_overrides(tmp_path: Path) -> None:
    write(
        tmp_path, "own/conf/gpt.yaml", "model:\n  num_layers: 6\ndata: {micro_batch_size: 2}\ntrainer: {devices: 8}\n"
    )
    reading = read(
        write(
            tmp_path,
            "run.sh",
            """\
python own/pretrain.py --config-path=conf --config-name gpt \\
    trainer.num_nodes=4 ++data.micro_batch_size=1
""",
        )
    )
    assert reading.format == "overrides"
    assert sorted(options(reading)) == [
        "--config-name gpt",
        "--config-path conf",
        "--micro-batch-size 1",
        "--num-layers 6",
    ]
    assert reading.world.gpus == 32
    assert places_hold(reading)


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("run_recipe.py --recipe otter_3b_pretrain_config train.train_iters=5", "otter_3b_pretrain_config"),
        ("scripts/run_recipe.py --model otter_3b -tp 2 model.num_layers=5", "otter_3b"),
        ("recipes/pretrain_otter_3b.py model.num_layers=5", "recipes/pretrain_otter_3b.py"),
        ("pretrain_llama3_8b.py", "pretrain_llama3_8b.py"),
    ],
)
def test_a_recipe_is_named(tmp_path: Path, line: str, recipe: str) -> None:
    reading = read(write(tmp_path, "run.sh", f"torchrun --nproc-per-node=8 {line}\n"))
    assert reading.format == "overrides"
    assert reading.recipe.text == recipe


def test_short_options_are_those_of_a_recipe_runner_only(tmp_path: Path) -> None:
    line = "torchrun {} --recipe x -tp 2 --seq_length 64 model.tensor_model_parallel_size=4\n"
    runner = read(write(tmp_path, "a.sh", line.format("run_recipe.py")))
    assert "--tensor-model-parallel-size 4" in options(runner)
    assert "--seq-length 64" in options(runner)


def test_a_model_s_config_beside_the_script(tmp_path: Path) -> None:
    write(tmp_path, "otter/config.json", "{}")
    script = "deepspeed train.py --model_name_or_path {} --deepspeed\n"
    here = read(write(tmp_path, "a.sh", script.format("./otter")))
    hub = read(write(tmp_path, "b.sh", script.format("some/otter")))
    assert here.model_config == str(tmp_path / "otter" / "config.json")
    assert hub.model_config is None
    assert hub.unread == ()


def test_a_trainer_s_yaml_and_the_json_that_it_names(tmp_path: Path) -> None:
    write(tmp_path, "ds.json", json.dumps(DS))
    job = "model_name_or_path: some/otter\nper_device_train_batch_size: 2\ndeepspeed: ds.json\nbf16: true\n"
    for source in (write(tmp_path, "sft.yaml", job), write(tmp_path, "run.sh", "torchrun cli.py train sft.yaml\n")):
        reading = read(source)
        assert reading.format == "deepspeed"
        assert reading.deepspeed is not None
        assert "--per_device_train_batch_size 2" in options(reading)


def test_variables_and_arguments_reach_the_script(tmp_path: Path) -> None:
    script = write(tmp_path, "run.sh", 'torchrun pretrain_gpt.py --num-layers $LAYERS "$@"\n')
    reading = read(script, variables={"LAYERS": "7"}, extra=["--lr", "1"])
    assert options(reading) == ["--num-layers 7", "--lr 1"]


def test_a_script_that_starts_a_script(tmp_path: Path) -> None:
    write(tmp_path, "launch.sh", "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --lr $1\n")
    line = "#SBATCH --nodes=4\nexport LAYERS=6\nsrun --ntasks-per-node=1 bash ./launch.sh 1e-4\n"
    reading = read(write(tmp_path, "job.sbatch", line))
    assert options(reading) == ["--num-layers 6", "--lr 1e-4"]
    assert (reading.world.nodes, reading.world.gpus_per_node, reading.world.gpus) == (4, 8, 32)
    assert [Path(text.file).name for text in reading.texts] == ["job.sbatch", "launch.sh"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("deepspeed train.py --deepspeed_config gone.json", "names a file that is not there"),
        ("xtuner train --deepspeed zero2 --learning_rate 1", "it is a preset of the program itself"),
        ("srun --nodes=2 bash ./gone.sh --fast", "is a script that is not there"),
        ("accelerate launch --config_file zero3.yaml train.py --learning_rate 1", "configuration of Accelerate"),
        ("python pretrain_gpt.py $OPTIONS", "$OPTIONS"),
        ("python pretrain_gpt.py --config-file list.yaml", "holds no keys at its top level"),
        ("python main.py --config-path . --config-name list", "holds no keys at its top level"),
        ("python examples/run_grpo_math.py --config list.yaml", "holds no keys at its top level"),
        ("accelerate launch --config_file list.yaml train.py --learning_rate 1", "configuration of Accelerate"),
    ],
)
def test_what_was_not_read_matters(tmp_path: Path, line: str, why: str) -> None:
    write(tmp_path, "list.yaml", "- a: 1\n")
    reading = read(write(tmp_path, "run.sh", f"{line}\n"))
    assert not reading.complete
    assert any(why in item for item in unread(reading, matters=True)), reading.unread


SILENT = "starts no training program whose options say what is trained"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", '{"model_type": "llama", "hidden_size": 8}', "describes a model and not how it is trained"),
        ("plan.json", '{"schema": "symconfig.plan/1"}', "is a file that symconfig wrote"),
        ("list.json", "[1]", "holds no keys"),
        (
            "job.yaml",
            "model: llama2-7b\ncluster: h100",
            "is a job of symconfig and no launch configuration. Try: symconf",
        ),
        ("compose.yaml", "services: {a: b}", "is no launch configuration that symconfig knows"),
        ("empty.yaml", "", "empty"),
        ("bad.yaml", "a: [1", "not YAML"),
        ("bad.json", '{"a": }', "Expecting value"),
        ("notes.txt", "hello there\n", "no training program|recognised"),
        ("train.py", "import os", "is a Python program, whose code is not read"),
        ("job.toml", "[training]\nsteps = 1", "is TOML, as torchtitan has it, which is not read"),
        ("a.sh", "torchrun train.py", SILENT),
        ("a.sh", "python text_generation.py", SILENT),
        ("a.sh", "uv run launcher.py out=1 n=2", SILENT),
    ],
)
def test_what_is_no_launch_configuration_is_refused(tmp_path: Path, name: str, content: str, says: str) -> None:
    said = refusal(write(tmp_path, name, content))
    assert any(part in said for part in says.split("|")), said
    assert name in said
    write(tmp_path, "a.sh", "x")
    assert "one of its files: a.sh" in refusal(str(tmp_path))
    assert "there is no such file" in refusal(str(tmp_path / "none"))


def test_arguments_for_a_file_that_takes_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes no arguments"):
        read(write(tmp_path, "ds.json", json.dumps(DS)), extra=["--x"])


@pytest.mark.parametrize("source", ["--x " * 5000, "a\0b", "", "model.x=" + "9" * 10_000])
def test_strange_sources_are_read_or_refused(source: str) -> None:
    with suppress(InputError):
        assert read(source).format in ("bash", "overrides")


def test_an_override_without_a_dot_right_after_the_recipe_is_no_second_recipe(tmp_path: Path) -> None:
    line = "python run_recipe.py --recipe llama3_8b mixed_precision=bf16_mixed model.tensor_model_parallel_size=2\n"
    reading = read(write(tmp_path, "run.sh", line))
    assert {setting.name for setting in reading.settings} >= {"--bf16", "--tensor-model-parallel-size"}
    assert reading.recipe.text == "llama3_8b"


@pytest.mark.parametrize("named", ["inside", "by its folder", "whole"])
def test_a_script_finds_the_files_beside_it_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    script = write(
        folder,
        "run.sh",
        'source "$(dirname "$0")/a.sh"\n. ${BASH_SOURCE%/*}/b.sh\n'
        'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nsource $HERE/c.sh\n'
        "torchrun pretrain_gpt.py --num-layers $A --hidden-size $B --num-attention-heads $C\n",
    )
    for name in "abc":
        write(folder, f"{name}.sh", f"{name.upper()}=8\n")
    monkeypatch.chdir(folder if named == "inside" else tmp_path)
    reading = read({"inside": "run.sh", "by its folder": "jobs/run.sh", "whole": str(script)}[named])
    assert reading.complete
    assert [setting.values[0].text for setting in reading.settings] == ["8", "8", "8"]
