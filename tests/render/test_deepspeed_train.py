"""The rendered folder trains: launch.sh, train.py and ds_config.json as they stand, tiny models, CPU ranks.

One batch is repeated, so the loss must fall; and how the work is split must not change it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.plan import Recompute
from symconfig.render import render
from symconfig.render.files import write
from tests.sample_plans import sample_model, sample_plan

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "norm_topk_prob": True}
ADAPTER = {"r": 4, "lora_alpha": 8.0, "target_modules": ["q_proj", "v_proj"]}
STEP = re.compile(r"^step (\d+) loss (\S+) lr (\S+) time (\S+) s tokens/s/GPU (\S+)", flags=re.MULTILINE)
BUILD = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)"
# bf16 rounding of another order of sums; what a missing all-reduce or a wrong average does is far larger
TOLERANCE = 2e-4


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """For DeepSpeed on CPU, with its shared-memory extension built once, in a folder that outlives this run."""
    folder = Path(request.config.cache.mkdir("deepspeed_extensions"))  # type: ignore[union-attr]
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder), "OMP_NUM_THREADS": "1",
           "HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for lock in list(folder.rglob("lock")):  # a build that was killed: later ones would wait for it for ever
        shutil.rmtree(lock.parent)
    subprocess.run([sys.executable, "-c", BUILD], env=env, check=True, capture_output=True, timeout=300)
    return env


def _model(name: str = "llama2-13b", **fields: Any) -> ModelDescriptor:
    return sample_model(name, **{**TINY, "huggingface_id": None, **fields})


def _train(folder: Path, env: dict[str, str], *arguments: str, model: ModelDescriptor | None = None,
           **fields: Any) -> tuple[list[float], str]:
    """Render, launch, and return the loss of each step with all that was said."""
    plan = sample_plan(model or _model(), backend="deepspeed", **{
        "micro": 2, "global_batch": 4 * fields.get("dp", 1), "seq_length": 32, "grad_bytes": 4,
        "sequence_parallel": False, "training": {"lr": 1e-3, "min_lr": 0.0, "lr_warmup_iters": 0, "train_iters": 3},
        **fields})
    write(render(plan, "deepspeed"), folder, force=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(["bash", "launch.sh", *arguments], cwd=folder, env={**env, "MASTER_PORT": port},
                          capture_output=True, text=True, timeout=240, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    return [float(loss) for _, loss, *_ in STEP.findall(said)], said


def _saved(folder: Path, file: str = "model.safetensors") -> int:
    """Elements in the final weights."""
    load = pytest.importorskip("safetensors.torch").load_file
    return sum(tensor.numel() for tensor in load(folder / "final" / file).values())


def _falls(losses: list[float], steps: int = 3) -> bool:
    """Finite (nan and inf compare false) and falling."""
    return len(losses) == steps and all(0 < b < a < 1e3 for a, b in pairwise(losses))


def test_zero_1_trains(tmp_path: Path, environment: dict[str, str]) -> None:
    losses, said = _train(tmp_path, environment, "--repeat-batch", dp=2, zero_stage=1)
    assert _falls(losses)
    # embedding and head 2 x 256 x 64; two layers of 2 x 64 x 64 + 2 x 32 x 64 + 3 x 64 x 128 + 2 x 64; last norm 64
    assert "106,816 trained parameters" in said


def test_zero_3_trains_with_recompute_and_what_it_saves_trains_on(
        tmp_path: Path, environment: dict[str, str]) -> None:
    saved = tmp_path / "saved"
    losses, _ = _train(tmp_path / "out", environment, "--repeat-batch", f"--save={saved}", dp=2,
                       zero_stage=3, recompute=Recompute("full", method="uniform", num_layers=1))
    assert _falls(losses)
    assert _saved(saved) == 106816
    more, _ = _train(tmp_path / "again", {**environment, "MODEL": str(saved / "final")}, "--repeat-batch",
                     "--train-iters=1", dp=2, zero_stage=2)
    assert more[0] < losses[-1]


def test_splitting_the_work_over_ranks_does_not_change_the_loss(tmp_path: Path, environment: dict[str, str]) -> None:
    """One rank, AutoTP over two, Ulysses over two: the same batch, the same weights, the same three losses."""
    cases: dict[str, dict[str, Any]] = {"one": {}, "tp": {"tp": 2}, "cp": {"cp": 2, "cp_comm": "a2a"}}
    found = {name: _train(tmp_path / name, environment, "--repeat-batch", f"--save={tmp_path / name / 'saved'}",
                          dp=1, zero_stage=2, **fields)[0] for name, fields in cases.items()}
    assert _falls(found["one"])
    assert found["tp"] == pytest.approx(found["one"], rel=TOLERANCE)
    assert found["cp"] == pytest.approx(found["one"], rel=TOLERANCE)
    assert [_saved(tmp_path / name / "saved") for name in cases] == [106816] * 3  # AutoTP: not one rank's part


def test_experts_over_ranks_do_not_change_the_loss(tmp_path: Path, environment: dict[str, str]) -> None:
    model = _model("mixtral-8x7b", experts=EXPERTS)
    whole, _ = _train(tmp_path / "dp", environment, "--repeat-batch", model=model, dp=2, zero_stage=2)
    split, _ = _train(tmp_path / "ep", environment, "--repeat-batch", f"--save={tmp_path / 'saved'}", model=model, dp=2,
                      ep=2, zero_stage=2)
    assert _falls(whole)
    assert split == pytest.approx(whole, rel=TOLERANCE)
    assert _saved(tmp_path / "saved") == 205632  # the experts of both ranks


def test_an_adapter_trains_on_a_file_is_saved_and_resumed(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("peft")
    data, saved = tmp_path / "data.jsonl", tmp_path / "saved"
    data.write_text("".join(json.dumps({"input_ids": [(7 * i + 3 * j) % 250 for j in range(20)]}) + "\n"
                            for i in range(40)))
    arguments = ("--repeat-batch", f"--data={data}", f"--save={saved}")
    fields: dict[str, Any] = {"model": _model("qwen2.5-7b", adapter=ADAPTER), "dp": 2, "zero_stage": 3,
                              "recompute": Recompute("full", method="block", num_layers=1)}
    losses, said = _train(tmp_path / "out", environment, *arguments, **fields)
    assert _falls(losses)
    assert "1,792 trained parameters" in said  # 2 layers x 4 x (64 + 64 + 64 + 32)
    safetensors = pytest.importorskip("safetensors.torch")
    weights = safetensors.load_file(saved / "final" / "adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == 1792
    assert all(bool((tensor != 0).any()) for tensor in weights.values())  # B starts at zero: it was trained
    more, _ = _train(tmp_path / "out", environment, *arguments, f"--load={saved}", "--train-iters=5", **fields)
    assert len(more) == 2
    assert max(more) < losses[-1]
