"""Only a small regular text file that stays in its folder is opened; programs that are not read are refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from symconfig.api.existing import audit
from symconfig.cli.main import main
from symconfig.errors import InputError
from symconfig.existing.launch.read import PROGRAMS, read
from symconfig.existing.launch.text import LIMIT_BYTES, below, instead, open_text


def refusal(path: Path, root: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_text(path, root=root)
    return str(caught.value)


def test_a_text_file_comes_as_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes("écho\r\n".encode())
    text = open_text(tmp_path / "a.sh", root=tmp_path)
    assert (text.file, text.data) == (str(tmp_path / "a.sh"), "écho\r\n".encode())


def test_what_is_no_small_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").write_bytes(b"a\0b")
    (tmp_path / "latin").write_bytes(b"ok\n\xe9t\xe9\n")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(50 << 20)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to("round")
    assert "binary" in refusal(tmp_path / "zero", tmp_path)
    assert "latin:2" in refusal(tmp_path / "latin", tmp_path)
    large = refusal(tmp_path / "large", tmp_path)
    assert "52,428,800 bytes" in large
    assert f"{LIMIT_BYTES:,}" in large
    assert "pipe" in refusal(tmp_path / "pipe", tmp_path)
    assert "folder" in refusal(tmp_path, tmp_path)
    assert "there is no such file" in refusal(tmp_path / "none", tmp_path)
    assert "cannot be read" in refusal(tmp_path / "round", tmp_path)
    assert "device" in refusal(Path("/dev/zero"), Path("/dev"))


def test_links_may_not_lead_out(tmp_path: Path) -> None:
    inside = tmp_path / "job"
    inside.mkdir()
    (tmp_path / "outside.sh").write_text("A=1\n")
    (inside / "real.sh").write_text("B=1\n")
    (inside / "good.sh").symlink_to("real.sh")
    (inside / "bad.sh").symlink_to(tmp_path / "outside.sh")
    (inside / "folder").symlink_to(tmp_path)
    assert open_text(inside / "good.sh", root=inside).data == b"B=1\n"
    assert f"lies outside of {inside}" in refusal(inside / ".." / "outside.sh", inside)
    with below(tmp_path):
        assert open_text(inside / ".." / "outside.sh", root=inside).data == b"A=1\n"
        assert open_text(inside / "bad.sh", root=inside).data == b"A=1\n"
    assert "lies outside of" in refusal(inside / "bad.sh", inside)
    assert "lies outside of" in refusal(inside / "folder" / "outside.sh", inside)


def test_other_bytes_can_stand_for_a_files_own(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("A=1\n")
    with instead({str(path): b"A=2\n"}):
        assert open_text(path, root=tmp_path).data == b"A=2\n"
    assert open_text(path, root=tmp_path).data == b"A=1\n"


MODEL = "--num-layers 2 --hidden-size 64 --num-attention-heads 4"
SCRIPTS = {
    "NeMo 1.x": (
        "python megatron_gpt_finetuning.py --config-path=conf --config-name gpt",
        "python own.py --config-name gpt trainer.devices=8 ++model.encoder_seq_length=4096",
        "python own.py --config-path conf --config-name gpt",
    ),
    "NeMo-Framework-Launcher": (
        "python3 /opt/launcher_scripts/main.py training=llama/llama2_13b",
        "python3 main.py training=llama/llama2_13b training.trainer.num_nodes=2",
    ),
    "GPT-NeoX": ("python deepy.py train.py -d conf 20b.yml", "deepspeed train.py --deepspeed_config 20b.yml"),
    "verl's fine-tuning": (
        "torchrun -m verl.trainer.sft_trainer data.train_batch_size=128 model.path=Qwen/Qwen3-8B optim.lr=1e-5",
        "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=a",
    ),
    "Megatron-LM's --yaml-cfg": ("torchrun pretrain_gpt.py --yaml-cfg gpt.yaml --micro-batch-size 1",),
    "Megatron-DeepSpeed": (
        f"deepspeed pretrain_gpt.py {MODEL} --deepspeed --deepspeed_config missing.json",
        f"deepspeed pretrain_gpt.py {MODEL} --ds_config ds.json",
    ),
}
FILES = {
    "conf/gpt.yaml": "exp_manager: {name: x}\nmodel: {num_layers: 6}\ntrainer: {devices: 8}\n",
    "gpt.yml": "language_model: {num_layers: 6}\nmicro_batch_size: 2\n",
    "20b.yml": "'pipe-parallel-size': 1\ntrain_micro_batch_size_per_gpu: 4\nzero_optimization: {stage: 1}\n",
    "ds.json": '{"train_micro_batch_size_per_gpu": 4}',
}
CASES = [(name, line) for name, lines in SCRIPTS.items() for line in lines]


def test_every_program_is_tried() -> None:
    assert SCRIPTS.keys() == {each.name for each in PROGRAMS}


@pytest.mark.parametrize(("name", "line"), CASES)
def test_a_script_is_refused_with_the_program_s_name(name: str, line: str, tmp_path: Path) -> None:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "run.sh").write_text(f"{line}\n")
    with pytest.raises(InputError) as caught:
        read(str(tmp_path / "run.sh"))
    assert f"is a configuration of {name}, which symconfig does not read" in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("name", ["conf/gpt.yaml", "gpt.yml", "20b.yml"])
def test_so_is_a_file_by_itself(name: str, tmp_path: Path) -> None:
    path = tmp_path / Path(name).name
    path.write_text(FILES[name])
    with pytest.raises(InputError, match="which symconfig does not read"):
        audit(path, "h100", 8)


def test_what_is_proposed_works(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError) as caught:
        read(f"deepspeed pretrain_gpt.py {MODEL} --deepspeed")
    hint = caught.value.problems[0].hint
    filled = {"M": "llama2-7b", "C": "h100", "N": "8", "B": "32"}
    assert main([filled.get(word, word) for word in hint.split()[1:]]) == 0
    assert "tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        f"torchrun pretrain_gpt.py {MODEL}",
        "torchrun run_recipe.py --recipe otter_3b_pretrain_config model.num_layers=5 train.micro_batch_size=1",
        "nemo llm pretrain --factory llama3_8b trainer.devices=8 trainer.strategy.tensor_model_parallel_size=2",
        "deepspeed train.py --deepspeed ds.json --num_layers 2",
    ],
)
def test_their_neighbours_are_read(line: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(FILES["ds.json"])
    (tmp_path / "run.sh").write_text(f"{line}\n")
    assert read(str(tmp_path / "run.sh")).settings
