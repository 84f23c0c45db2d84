"""The rendered folder trains: launch.sh, train.py and ds_config.json as they stand, tiny models, CPU ranks.

One batch is repeated, so the loss must fall; how the work is split must not change it; and every run's ranks hold the
bytes that symconfig says, to the last one (`train` checks that).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processor import unbuilt
from tests.render.deepspeed_support import Launcher, falls, start_ranks, stop, tiny, train
from tests.sampled import sampled

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")
pytest.importorskip("peft")

# bf16 rounding of another order of sums; what a missing all-reduce or a wrong average does is far larger
TOLERANCE = 2e-4
ZERO = {stage: {"zero_stage": stage} for stage in range(4)}
OFFLOAD = {"optimizer_offload": 1.0}
TP = {"tp": 2, "model": tiny("llama")}
CP = {"cp": 2, "cp_comm": "a2a"}
EP = {"ep": 2, "model": tiny("mixtral")}

# Every family with every stage, and each of both on two ranks and on four: what a rank holds is a sum over tensors of
# shares, in which no term knows all three.
CASES: dict[str, dict[str, Any]] = {
    f"{family}, ZeRO {stage}, {ranks} ranks": {"model": tiny(family), "dp": ranks, **ZERO[stage]}
    for place, family in enumerate(("llama", "mixtral", "qwen lora")) for stage in range(4)
    for ranks in (2 + 2 * ((place + stage) % 2),)
} | {
    "16-bit gradients, ZeRO 1": {"dp": 2, "grad_bytes": 2, **ZERO[1]},
    "16-bit gradients, ZeRO 2": {"dp": 4, "grad_bytes": 2, **ZERO[2]},
    "16-bit gradients, ZeRO 3": {"dp": 2, "grad_bytes": 2, **ZERO[3]},
    "fp16, ZeRO 0": {"dp": 2, "precision": "fp16", **ZERO[0]},
    "fp16, ZeRO 1": {"dp": 2, "precision": "fp16", **ZERO[1]},
    "fp16, ZeRO 2": {"dp": 2, "precision": "fp16", **ZERO[2]},
    "optimizer offload, ZeRO 1": {"dp": 2, **OFFLOAD, **ZERO[1]},
    "optimizer offload, ZeRO 1, 16-bit gradients": {"dp": 4, "grad_bytes": 2, **OFFLOAD, **ZERO[1]},
    "optimizer offload, ZeRO 2": {"dp": 4, **OFFLOAD, **ZERO[2]},
    "optimizer offload, ZeRO 2, 16-bit gradients": {"dp": 4, "grad_bytes": 2, **OFFLOAD, **ZERO[2]},
    "optimizer offload, ZeRO 2, one microbatch": {"dp": 2, "grad_bytes": 2, "global_batch": 4, **OFFLOAD, **ZERO[2]},
    "optimizer offload, ZeRO 2, experts": {"dp": 2, "model": tiny("mixtral"), **OFFLOAD, **ZERO[2]},
    "optimizer offload, ZeRO 3": {"dp": 2, **OFFLOAD, **ZERO[3]},
    "parameter offload, ZeRO 3": {"dp": 2, "param_offload": True, **ZERO[3]},
    "both offloads, ZeRO 3": {"dp": 2, "param_offload": True, **OFFLOAD, **ZERO[3]},
    "both offloads, ZeRO 3, adapter": {"dp": 4, "model": tiny("qwen lora"), "param_offload": True, **OFFLOAD,
                                       **ZERO[3]},
    "AutoTP, ZeRO 0": {"dp": 1, **TP, **ZERO[0]},
    "AutoTP, ZeRO 1": {"dp": 2, **TP, **ZERO[1]},
    "AutoTP, ZeRO 2, tied head": {"dp": 1, "tp": 2, "model": tiny("llama", tie_word_embeddings=True), **ZERO[2]},
    "AutoTP, ZeRO 3": {"dp": 2, **TP, **ZERO[3]},
    "Ulysses, ZeRO 0": {"dp": 1, **CP, **ZERO[0]},
    "Ulysses, ZeRO 2, adapter": {"dp": 1, "model": tiny("qwen lora"), **CP, **ZERO[2]},
    "Ulysses, ZeRO 3": {"dp": 2, **CP, **ZERO[3]},
    "AutoEP, ZeRO 0": {"dp": 2, **EP, **ZERO[0]},
    "AutoEP, ZeRO 1": {"dp": 2, **EP, **ZERO[1]},
    "AutoEP, ZeRO 2": {"dp": 4, **EP, **ZERO[2]},
    "AutoEP, ZeRO 3": {"dp": 4, **EP, **ZERO[3]},
}  # fmt: skip


@pytest.fixture(scope="session")
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """For DeepSpeed on CPU, with its extensions built once, in a folder that outlives this run."""
    if why := unbuilt():
        pytest.skip(why)
    folder = Path(request.config.cache.mkdir("deepspeed_extensions"))  # type: ignore[union-attr]
    for lock in list(folder.rglob("lock")):  # a build that was killed: later ones would wait for it for ever
        shutil.rmtree(lock.parent)
    found, server = start_ranks(folder, tmp_path_factory.mktemp("ranks"))
    yield found
    stop(server)


def _saved(folder: Path, file: str = "model.safetensors") -> int:
    """Elements in the final weights."""
    load = pytest.importorskip("safetensors.torch").load_file
    return sum(tensor.numel() for tensor in load(folder / "final" / file).values())


# Every third one has each family, stage, precision, offload and degree.
@pytest.mark.parametrize("case", sampled(CASES, 3))
def test_the_rendered_folder_trains_and_ranks_hold_the_bytes_that_were_predicted(
    case: str, tmp_path: Path, launcher: Launcher
) -> None:
    losses, _ = train(tmp_path, launcher.quick, **CASES[case])
    assert falls(losses)


# Each rank imports the frameworks for itself here: one of them is enough to see that torchrun takes the script's words.
@pytest.mark.parametrize("ranks", sampled((1, 2), 2))
def test_the_real_torchrun_trains(ranks: int, tmp_path: Path, launcher: Launcher) -> None:
    losses, said = train(tmp_path, launcher.environment, dp=ranks, zero_stage=1)
    assert falls(losses)
    # embedding and head 2 x 249 x 66; two layers of 2 x 66 x 96 + 2 x 66 x 32 + 3 x 66 x 122 + 2 x 66; last norm 66
    assert "115,302 trained parameters" in said


def test_zero_3_trains_with_recompute_and_what_it_saves_trains_on(tmp_path: Path, launcher: Launcher) -> None:
    saved = tmp_path / "saved"
    losses, _ = train(
        tmp_path / "out",
        launcher.quick,
        f"--save={saved}",
        dp=2,
        zero_stage=3,
        recompute="full",
        recompute_method="uniform",
        recompute_layers=1,
    )
    assert falls(losses)
    assert _saved(saved) == 115302
    more, _ = train(
        tmp_path / "again", {**launcher.quick, "MODEL": str(saved / "final")}, "--train-iters=1", dp=2, zero_stage=2
    )
    assert more[0] < losses[-1]


def test_splitting_the_work_over_ranks_does_not_change_the_loss(tmp_path: Path, launcher: Launcher) -> None:
    """One rank, AutoTP over two, Ulysses over two: the same batch, the same weights, the same three losses."""
    cases: dict[str, dict[str, Any]] = {"one": {}, "tp": {"tp": 2}, "cp": CP}
    found = {
        name: train(
            tmp_path / name, launcher.quick, f"--save={tmp_path / name / 'saved'}", dp=1, zero_stage=2, **fields
        )[0]
        for name, fields in cases.items()
    }
    assert falls(found["one"])
    assert found["tp"] == pytest.approx(found["one"], rel=TOLERANCE)
    assert found["cp"] == pytest.approx(found["one"], rel=TOLERANCE)
    assert [_saved(tmp_path / name / "saved") for name in cases] == [115302] * 3  # AutoTP: not one rank's part


def test_an_adapter_trains_on_a_file_is_saved_and_resumed(tmp_path: Path, launcher: Launcher) -> None:
    data, saved = tmp_path / "data.jsonl", tmp_path / "saved"
    data.write_text(
        "".join(json.dumps({"input_ids": [(7 * i + 3 * j) % 249 for j in range(20)]}) + "\n" for i in range(40))
    )
    arguments = (f"--data={data}", f"--save={saved}")
    fields: dict[str, Any] = {
        "model": tiny("qwen lora"),
        "dp": 2,
        "zero_stage": 3,
        "recompute": "full",
        "recompute_method": "block",
        "recompute_layers": 1,
    }
    losses, said = train(tmp_path / "out", launcher.quick, *arguments, **fields)
    assert falls(losses)
    assert "1,560 trained parameters" in said  # 2 layers x 3 x (66 + 96 + 66 + 32)
    safetensors = pytest.importorskip("safetensors.torch")
    weights = safetensors.load_file(saved / "final" / "adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == 1560
    assert all(bool((tensor != 0).any()) for tensor in weights.values())  # B starts at zero: it was trained
    more, _ = train(tmp_path / "out", launcher.quick, *arguments, f"--load={saved}", "--train-iters=5", **fields)
    assert len(more) == 2
    assert max(more) < losses[-1]


def test_a_run_goes_on_with_another_batch_where_it_was(tmp_path: Path, launcher: Launcher) -> None:
    """Four steps of 4 sequences are two of 8: steps and learning rates are those of a run that always had 8."""
    saved = f"{tmp_path / 'saved'}"
    lasting: dict[str, Any] = {"lr": 1e-3, "min_lr": 0.0, "lr_warmup_iters": 0, "lr_decay_style": "linear"}
    fields: dict[str, Any] = {"dp": 1, "zero_stage": 1}
    before, _ = train(
        tmp_path / "four",
        launcher.quick,
        f"--save={saved}",
        global_batch=4,
        training={**lasting, "train_iters": 4, "lr_decay_iters": 8},
        **fields,
    )
    more, said = train(
        tmp_path / "eight",
        launcher.quick,
        f"--load={saved}",
        global_batch=8,
        training={**lasting, "train_iters": 4},
        **fields,
    )
    assert "resumed after 16 sequences, at step 2 of 8 sequences each" in said
    assert "step 3 loss" in said
    assert "lr 5.000e-04" in said
    assert "lr 2.500e-04" in said
    assert len(more) == 2
    assert max(more) < before[0]
    again, said = train(
        tmp_path / "longer",
        launcher.quick,
        f"--load={saved}",
        "--consumed-sequences=24",
        global_batch=8,
        training={**lasting, "train_iters": 4},
        **fields,
    )
    assert "at step 3 of 8" in said
    assert len(again) == 1
