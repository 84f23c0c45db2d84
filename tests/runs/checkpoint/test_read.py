"""What a folder holds: every kind, whole or not, and nothing in it is unpickled."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.runs.checkpoint.read import read
from tests.runs.checkpoint.folders import OPTIMIZER, SAFETENSORS, archive, by_rank, common, deepspeed, torch_dist


def said(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(folder)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize("optimizer", OPTIMIZER)
@pytest.mark.parametrize("inside", [False, True])
def test_torch_dist(tmp_path: Path, optimizer: str, inside: bool) -> None:
    found = read(torch_dist(tmp_path / "it", optimizer, inside=inside))
    assert found.kind == (f"torch_dist:{optimizer}" if optimizer else "torch_dist")
    assert found.iteration == 200
    assert found.degrees == {"tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 4, "world": 16}
    assert found.says["num_layers"] == 40
    assert found.says["lr"] == 3e-4
    assert found.says["use_distributed_optimizer"] is True
    assert found.says["num_experts"] is None
    assert (found.since, found.until) == (
        ("core_v0.19.0", None)
        if inside
        else {
            "dp_reshardable": ("core_v0.15.0", "core_v0.18.2"),
            "fully_reshardable": ("core_v0.15.0", "core_v0.18.2"),
            "dp_zero_gather_scatter": (None, "core_v0.15.0"),
            "fully_sharded_model_space": (None, "core_v0.15.0"),
            "": (None, "core_v0.18.2"),
        }[optimizer]
    )
    assert found.size_bytes == sum(path.stat().st_size for path in found.data.iterdir())


def test_the_same_names_without_the_distributed_optimizer(tmp_path: Path) -> None:
    root = torch_dist(tmp_path / "it", "fully_sharded_model_space", use_distributed_optimizer=False)
    assert read(root).kind == "torch_dist:whole"


def test_one_iteration_of_it(tmp_path: Path) -> None:
    root = torch_dist(tmp_path / "it")
    assert read(root / "iter_0000200").kind == read(root).kind
    assert read(root / "iter_0000200").iteration == 200


@pytest.mark.parametrize(("tp", "pp", "ep"), [(4, 1, 1), (2, 3, 1), (2, 1, 2), (2, 2, 2)])
def test_files_by_rank(tmp_path: Path, tp: int, pp: int, ep: int) -> None:
    found = read(by_rank(tmp_path / "it", tp, pp, ep))
    assert found.kind == "torch"
    assert {name: found.degrees[name] for name in ("tp", "pp", "ep")} == {"tp": tp, "pp": pp, "ep": ep}


def test_deepspeed(tmp_path: Path) -> None:
    found = read(deepspeed(tmp_path / "it", dp=4, tp=2))
    assert found.kind == "deepspeed"
    assert (found.iteration, found.since, found.degrees) == (30, "0.19.8", {"tp": 2, "dp": 4})


def test_what_lies_beside_is_told_from_it(tmp_path: Path) -> None:
    """train.py's last step also writes a folder for from_pretrained into its root."""
    root = deepspeed(tmp_path / "it")
    model(root / "final")
    assert read(root).kind == "deepspeed"
    assert read(root / "final").kind == "huggingface"
    (root / "latest_universal").write_text("step-30_universal")
    universal(root)
    assert read(root / "step-30_universal").kind == "universal"


def universal(root: Path) -> Path:
    """As ds_to_universal.py leaves it beside the checkpoint that it was made of."""
    data = root / "step-30_universal"
    (data / "zero").mkdir(parents=True)
    (data / "zero" / "optimizer_state.pt").write_bytes(archive({}))
    (data / "mp_rank_00_model_states.pt").write_bytes(archive({"global_steps": 30}))
    return data


def model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    (folder / "model.safetensors").write_bytes(SAFETENSORS)
    return folder


def test_weights_and_adapters(tmp_path: Path) -> None:
    assert read(model(tmp_path / "model")).says == {"model_type": "llama", "hidden_size": 64}
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16}))
    assert "has no weights" in said(adapter)
    (adapter / "adapter_model.safetensors").write_bytes(SAFETENSORS)
    assert (read(adapter).kind, read(adapter).says["r"]) == ("peft", 16)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a tracker that names what is gone": (
        lambda root: (torch_dist(root) / "latest_checkpointed_iteration.txt").write_text("300"),
        "names iter_0000300, which is not there: it was deleted, or its saving did not end (got iter_0000200). "
        "Try: write 200 into it",
    ),
    "a tracker without a number": (
        lambda root: (torch_dist(root) / "latest_checkpointed_iteration.txt").write_text("soon"),
        "names no iteration",
    ),
    "no tracker": (
        lambda root: (torch_dist(root) / "latest_checkpointed_iteration.txt").unlink(),
        "would load nothing and start at random",
    ),
    "an interrupted save": (
        lambda root: (torch_dist(root) / "iter_0000200" / ".metadata").unlink(),
        "its saving did not end",
    ),
    "a file that is gone": (
        lambda root: (torch_dist(root) / "iter_0000200" / "__1_0.distcp").unlink(),
        "files that .metadata names are not there (got no __1_0.distcp)",
    ),
    "metadata that is no JSON": (
        lambda root: (torch_dist(root) / "iter_0000200" / "metadata.json").write_text("{"),
        "is not JSON",
    ),
    "metadata that is too deep": (
        lambda root: (torch_dist(root) / "iter_0000200" / "metadata.json").write_text("[" * 200_000),
        "is not JSON",
    ),
    "a rank's folder that is gone": (
        lambda root: os.rename(by_rank(root, 2, 2) / "iter_0000200/mp_rank_01_001", root / "away"),
        "files of some ranks are missing (got 3 folders mp_rank_*, need 4 folders",
    ),
    "a rank's file that is gone": (
        lambda root: (by_rank(root, 2, 1) / "iter_0000200/mp_rank_01/model_optim_rng.pt").unlink(),
        "no model_optim_rng.pt in mp_rank_01",
    ),
    "a replica's file that is gone": (
        lambda root: (deepspeed(root) / "step-30/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink(),
        "optimizer states of some ranks are missing (got 3 files, need 4 x 1 files)",
    ),
    "the last replica's file that is gone": (
        lambda root: (deepspeed(root) / "step-30/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink(),
        "got 3 files, need 4 x 1 files",
    ),
    "ZeRO without a file of the optimizer's": (
        lambda root: [os.unlink(file) for file in (deepspeed(root) / "step-30").glob("*optim_states.pt")],
        "optimizer states of some ranks are missing (got 0 files, need 4 x 1 files",
    ),
    "a tag that is empty": (
        lambda root: [os.unlink(file) for file in (deepspeed(root) / "step-30").iterdir()],
        "has no model states (got nothing",
    ),
    "a conversion that did not end": (
        lambda root: [
            (universal(root).parent / "latest_universal").write_text("step-30_universal"),
            os.unlink(root / "step-30_universal/zero/optimizer_state.pt"),
        ],
        "the conversion did not end (got no zero/optimizer_state.pt)",
    ),
    "metadata that names no file": (
        lambda root: (torch_dist(root) / "iter_0000200" / ".metadata").write_bytes(pickle.dumps({})),
        ".metadata names no file of tensors",
    ),
    "common state that is gone": (
        lambda root: (torch_dist(root) / "iter_0000200" / "common.pt").unlink(),
        "the state that all ranks share is missing",
    ),
    "a tag that is gone": (
        lambda root: (deepspeed(root) / "latest").write_text("step-40"),
        "names 'step-40', which is not there",
    ),
    "a tag that leads elsewhere": (lambda root: (deepspeed(root) / "latest").write_text("../.."), "names '../..'"),
    "weights that are gone": (lambda root: (model(root) / "model.safetensors").unlink(), "has no weights"),
    "an index of what is gone": (
        lambda root: (model(root) / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": "model-1.safetensors"}})
        ),
        "no model-1.safetensors",
    ),
    "an empty folder": (lambda root: root.mkdir(), "is no checkpoint (got an empty folder, need Megatron-LM's"),
    "other files": (lambda root: (root.mkdir(), (root / "notes.txt").touch()), "is no checkpoint (got notes.txt"),
    "a file": (lambda root: root.touch(), "is a file, a checkpoint is a folder"),
    "nothing": (lambda root: None, "there is no such folder"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_whole_is_said(tmp_path: Path, name: str) -> None:
    make, sentence = BROKEN[name]
    make(tmp_path / "it")
    assert sentence in said(tmp_path / "it")


def test_the_step_is_that_of_the_script_and_not_of_the_engine(tmp_path: Path) -> None:
    """The engine counts on over runs with other batches; train.py's numbers lie behind all others of their names."""
    optimizer = {"param_groups": [{"step": 905}]}
    state = {"optimizer": optimizer, "global_steps": 905, "client": {"step": 230, "sequences": 58880}}
    found = read(deepspeed(tmp_path / "it", tag="step-230", **state))
    assert (found.iteration, found.says["global_steps"], found.says["sequences"]) == (230, 905, 58880)
    assert read(deepspeed(tmp_path / "other", tag="global_step905", global_steps=905)).iteration == 905


@pytest.mark.parametrize("changes", [{"hidden_size": 1 << 16600}, {"data_parallel_size": 10**30}])
def test_numbers_that_no_run_has_are_not_stated(tmp_path: Path, changes: dict[str, Any]) -> None:
    other = read(torch_dist(tmp_path / "it", **changes))
    assert not {"hidden_size", "dp"} & changes.keys() & {*other.says, *other.degrees}


@pytest.mark.parametrize("name", ["../../secrets.safetensors", "/etc/passwd", "a/../../b.safetensors"])
def test_weights_outside_of_the_folder_are_no_part_of_it(tmp_path: Path, name: str) -> None:
    folder = model(tmp_path / "it")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    assert f"names files outside of its folder, which are none of this checkpoint's (got {name}" in said(folder)


CUT: dict[str, tuple[Callable[..., object], str]] = {
    "common.pt": (torch_dist, "iter_0000200/common.pt"),
    ".metadata": (torch_dist, "iter_0000200/.metadata"),
    "a rank's file": (lambda root: by_rank(root, 2, 1), "iter_0000200/mp_rank_01/model_optim_rng.pt"),
    "model states": (deepspeed, "step-30/mp_rank_00_model_states.pt"),
    "optimizer states": (deepspeed, "step-30/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"),
    "weights": (model, "model.safetensors"),
}


@pytest.mark.parametrize("left", [0, 1, 9])
@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, name: str, left: int) -> None:
    make, cut = CUT[name]
    make(tmp_path / "it")
    file = tmp_path / "it" / cut
    file.write_bytes(file.read_bytes()[:left])
    sentence = said(tmp_path / "it")
    assert "is not whole: files are empty or cut off" in sentence
    assert file.name in sentence


def test_tensors_that_are_empty_or_end_before_the_common_state(tmp_path: Path) -> None:
    tensors = torch_dist(tmp_path / "it", inside=True) / "iter_0000200" / "__0_0.distcp"
    tensors.write_bytes(tensors.read_bytes()[:30])
    assert "the state that all ranks share is missing or cut off" in said(tmp_path / "it")
    tensors.write_bytes(b"")
    assert "cut off (got __0_0.distcp" in said(tmp_path / "it")


def test_safetensors_end_where_their_header_says(tmp_path: Path) -> None:
    weights = model(tmp_path / "it") / "model.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(8)
    weights.write_bytes(whole)
    assert read(tmp_path / "it").kind == "huggingface"
    weights.write_bytes(whole[:-1])
    assert "cut off (got model.safetensors" in said(tmp_path / "it")


def test_what_torch_saved_before_it_wrote_zips_is_no_less_whole(tmp_path: Path) -> None:
    root = by_rank(tmp_path / "it", 1, 1)
    (root / "iter_0000200/mp_rank_00/model_optim_rng.pt").write_bytes(
        b"".join(pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {}, common(), []))
        + b"tensors"
    )
    assert read(root).kind == "torch"
