"""What FSDP's workers have on each rank, against four real ranks of PyTorch's FSDP 2 on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.cost.framework import Stepping
from symconfig.runs.rl.logits import VERL_FSDP
from symconfig.runs.rl.trained import GRADIENTS, STATES, WEIGHTS, Trained
from tests.sample_plans import sample_plan
from tests.solve.naive import tiny

pytest.importorskip("transformers")
WORKER = Path(__file__).with_name("shards_worker.py")
RANKS, TOKENS = 4, 32
GROUPS = [1, 2, RANKS]  # of shards; the last one: each rank has all
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Bytes of a rank by what they are, of one group of shards and of several, on a mesh of two dims."""
    meet = tmp_path_factory.mktemp("shards") / "store"
    request = json.dumps({"config": SHAPE, "tokens": TOKENS, "sizes": [RANKS // groups for groups in GROUPS]})
    command = [sys.executable, str(WORKER), str(RANKS), str(meet)]
    ended = subprocess.run(command, input=request, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, dict[str, int]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def actor(copies: int) -> Trained:
    model = tiny(**SHAPE, head_dim=16)
    shape: dict[str, Any] = {"dp": RANKS, "zero_stage": 3, "seq_length": TOKENS, "global_batch": RANKS}
    plan = sample_plan(model, backend="fsdp", tp=1, pp=1, instances=copies, **shape)
    return Trained(
        plan, plan.best, 1.0, VERL_FSDP, point=Trained(plan, plan.best, 1.0, VERL_FSDP).prospect, frozen=True
    )


@pytest.mark.parametrize("copies", GROUPS)
def test_shards_take_what_is_predicted_to_the_byte(copies: int, counted: dict[str, dict[str, int]]) -> None:
    real, own = counted[str(RANKS // copies)], actor(copies)
    assert {name: own.memory[name] for name in (WEIGHTS, GRADIENTS, STATES)} == {
        name: real[name] for name in (WEIGHTS, GRADIENTS, STATES)
    }


@pytest.mark.parametrize("stepping", Stepping)
def test_a_step_has_what_is_predicted_beside_its_state(stepping: Stepping, counted: dict[str, dict[str, int]]) -> None:
    """But for a few numbers of the tensor that is stepped."""
    own = actor(1)
    point = own.prospect
    framework = replace(point.request.framework, stepping=stepping)
    stepped = replace(own, point=replace(point, request=replace(point.request, framework=framework)))
    assert 0 <= counted[str(RANKS)][stepping.value] - stepped.stepping_bytes < 512


def test_no_more_weights_are_whole_at_once_than_predicted(counted: dict[str, dict[str, int]]) -> None:
    """The head, and the buffer that it came in; they are there while it makes logits."""
    own = actor(1)
    assert 0.99 * own._gathered < own._gathered_at_head <= counted[str(RANKS)]["gathered"] <= own._gathered
