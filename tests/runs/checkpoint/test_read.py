"""What a folder holds: every kind, whole or not, and nothing in it is unpickled."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.runs.checkpoint import read
from symconfig.runs.checkpoint.pickle_names import Names, NotWholeError
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
    assert "step-30_universal" in read(root).notes[0]


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
        "optimizer states of some ranks are missing (got none of rank 2 of dp, 0 of tp, need 4 x 1 files)",
    ),
    "the last replica's file that is gone": (
        lambda root: (deepspeed(root) / "step-30/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink(),
        "got none of rank 3 of dp, 0 of tp, need 4 x 1 files",
    ),
    "ZeRO without a file of the optimizer's": (
        lambda root: [os.unlink(file) for file in (deepspeed(root) / "step-30").glob("*optim_states.pt")],
        "optimizer states of some ranks are missing (got none of rank 0 of dp, 0 of tp; rank 1",
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


NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "tp 0": ({"tensor_model_parallel_size": 0}, "tp: says of its run what none can have (got 0"),
    "a negative count": ({"consumed_train_samples": -1_000_000}, "got -1000000, need a whole number from 0"),
    "a length of -5": ({"seq_length": -5}, "seq_length"),
    "no batch": ({"global_batch_size": 0}, "global_batch_size"),
    "a number of thousands of digits": ({"hidden_size": 1 << 16600}, "got a number of 16601 bits"),
    "a rate without end": ({"lr": float("inf")}, "got inf, need a finite learning rate"),
    "yes as a number": ({"num_layers": True}, "got True"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_numbers_that_no_run_has_are_no_facts(tmp_path: Path, name: str) -> None:
    changes, sentence = NONSENSE[name]
    assert sentence in said(torch_dist(tmp_path / "it", **changes))


@pytest.mark.parametrize("changes", [{"dp_world_size": 10**30}, {"mp_world_size": 0}, {"sequences": -1, "step": 3}])
def test_nor_are_deepspeeds(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert "says of its run what none can have" in said(deepspeed(tmp_path / "it", **changes))


def test_every_number_that_none_can_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(torch_dist(tmp_path / "it", seq_length=0, num_layers=-3))
    assert [problem.field for problem in caught.value.problems] == ["num_layers", "seq_length"]


def test_the_step_is_that_of_the_script_and_not_of_the_engine(tmp_path: Path) -> None:
    """The engine counts on over runs with other batches; train.py's numbers lie behind all others of their names."""
    optimizer = {"param_groups": [{"step": 905}]}
    state = {"optimizer": optimizer, "global_steps": 905, "client": {"step": 230, "sequences": 58880}}
    found = read(deepspeed(tmp_path / "it", tag="step-230", **state))
    assert (found.iteration, found.says["global_steps"], found.says["sequences"]) == (230, 905, 58880)
    assert read(deepspeed(tmp_path / "other", tag="global_step905", global_steps=905)).iteration == 905


def test_later_iterations_than_the_tracker_says(tmp_path: Path) -> None:
    torch_dist(tmp_path / "it")
    (tmp_path / "it" / "iter_0000300").mkdir()
    assert "iter_0000300: later than the tracker says" in read(tmp_path / "it").notes[0]


class Trap:
    """A pickle that would write a file if it were loaded."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", ["common.pt", ".metadata", "inside", "rank", "optimizer", "weights", "legacy"])
def test_a_pickle_that_calls_something_is_named_and_not_unpickled(tmp_path: Path, place: str, protocol: int) -> None:
    victim, root = tmp_path / "victim", tmp_path / "it"
    bad = pickle.dumps({"args": argparse.Namespace(a=1), "trap": Trap(victim)}, protocol=protocol)
    if place in ("common.pt", ".metadata", "inside"):
        torch_dist(root, inside=place == "inside")
    else:
        {"weights": model, "optimizer": deepspeed}.get(place, lambda folder: by_rank(folder, 2, 1))(root)
    data = root / "iter_0000200"
    if place == ".metadata":
        (data / ".metadata").write_bytes(bad)
    elif place == "inside":
        packed = archived(bad)
        index = {"fqn": "common_state/shard_0_1", "relative_path": "__0_0.distcp", "offset": 0, "length": len(packed)}
        (data / ".metadata").write_bytes(pickle.dumps([index, "__1_0.distcp"]))
        (data / "__0_0.distcp").write_bytes(packed)
    elif place == "weights":
        (root / "model.safetensors").unlink()
        (root / "pytorch_model.bin").write_bytes(archived(bad))
    elif place == "legacy":
        head = b"".join(pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {}))
        (data / "mp_rank_01" / "model_optim_rng.pt").write_bytes(head + bad + pickle.dumps([], protocol=2))
    else:
        files = {"rank": data / "mp_rank_01" / "model_optim_rng.pt", "common.pt": data / "common.pt"}
        other = root / "step-30" / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
        files.get(place, other).write_bytes(archived(bad))
    assert f"to load it is to run them (got {os.mkdir.__module__}.mkdir)" in said(root)
    assert not victim.exists()
    pickle.loads(bad)
    assert victim.exists()  # the trap is one


@pytest.mark.parametrize(
    "code",
    [
        b"\x80\x04\x8c\x02os\x8c\x06system\x8c\x08argparse\x8c\x09Namespace00\x93.",  # other texts than the stack's
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93.",  # from the memo
        b"\x82\x07.",  # a number of the registry of extensions
        b"(S'x'\nios\nsystem\n.",
        b"\x80\x04\x8c\x08argparse\x8c\x12Namespace.__init__\x93.",
    ],
)
def test_a_name_that_is_put_together_is_none_of_a_checkpoint(code: bytes) -> None:
    names = Names()
    assert names.read(code) == len(code)
    assert names.foreign
    assert not names.foreign & {"argparse.Namespace"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_stream_that_does_not_end_is_found(protocol: int) -> None:
    value = {"a": argparse.Namespace(x=1.5, y=(None, True, 2**70, b"b", "t" * 300)), "o": OrderedDict(a={1}), "l": []}
    code = pickle.dumps(value, protocol=protocol)
    names = Names()
    assert names.read(code + b"tensors") == len(code)
    assert names.foreign == set()
    for end in range(len(code)):
        with pytest.raises(NotWholeError):
            Names().read(code[:end])


def test_a_small_file_of_many_instructions_is_refused_soon(tmp_path: Path) -> None:
    root = by_rank(tmp_path / "it", 1, 1)
    with zipfile.ZipFile(root / "iter_0000200/mp_rank_00/model_optim_rng.pt", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", b"N0" * (25 << 20) + b"N.")
    started = time.process_time()
    assert "has a longer pickle than any checkpoint's" in said(tmp_path / "it")
    assert time.process_time() - started < 20  # it takes less than 2; read to its end it would be minutes


@pytest.mark.parametrize("name", ["../../secrets.safetensors", "/etc/passwd", "a/../../b.safetensors"])
def test_weights_outside_of_the_folder_are_no_part_of_it(tmp_path: Path, name: str) -> None:
    folder = model(tmp_path / "it")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    assert f"names files outside of its folder, which are none of this checkpoint's (got {name}" in said(folder)


def archived(code: bytes) -> bytes:
    """As torch.save keeps a pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("archive/data.pkl", code)
    return stream.getvalue()


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
