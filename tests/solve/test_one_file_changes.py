"""Adding a model, a cluster or a building block touches one file: each is added here, and planned with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor import load
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InputError
from symconfig.graph import blocks as building_blocks
from symconfig.graph.derive import derive
from symconfig.graph.derived import Phase
from symconfig.graph.model import blocks, parameters, sequence
from symconfig.graph.parts import parts
from symconfig.graph.scheme import Scheme
from symconfig.resources import data_dir
from symconfig.solve.search import search
from tests.graph.support import numbers
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny

MODEL = """schema: symconfig.model/1
name: newcomer
source: a test
model_type: llama
hidden_size: 1024
intermediate_size: 2816
num_hidden_layers: 6
num_attention_heads: 16
num_key_value_heads: 4
head_dim: 64
vocab_size: 32000
max_position_embeddings: 4096
"""


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the zoo that a test may add to."""
    copy = tmp_path / "model_zoo"
    shutil.copytree(data_dir("model_zoo"), copy)
    monkeypatch.setattr(load, "data_dir", lambda name: copy)
    return copy


def test_a_model_is_one_yaml_file(zoo: Path) -> None:
    (zoo / "models" / "newcomer.yaml").write_text(MODEL, encoding="utf-8")
    assert "newcomer" in zoo_models()
    plan = search(load_model("newcomer"), sample_cluster(), job(8, 16))
    attention, mlp = 1024 * (1024 * 2 + 256 * 2), 3 * 1024 * 2816
    assert parameters(plan.model).total == 6 * (attention + mlp + 2 * 1024) + 2 * 32000 * 1024 + 1024
    assert plan.best.predicted.step_s > 0


HIDDEN, FFN, LAYERS, KERNEL = 512, 1536, 4, 3
CONV: dict[str, Any] = {"block": "own_conv", "sizes": {"own_conv_kernel": KERNEL}}
CONV_WEIGHTS = 3 * HIDDEN * HIDDEN + HIDDEN * HIDDEN + HIDDEN * KERNEL


@pytest.fixture
def own_conv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more file in graph/blocks, and nothing else."""
    shutil.copy(Path(__file__).parent / "own_conv.py", tmp_path)
    monkeypatch.setattr(building_blocks, "__path__", [*building_blocks.__path__, str(tmp_path)])
    parts.cache_clear()
    yield
    sys.modules.pop(f"{building_blocks.__name__}.own_conv", None)
    parts.cache_clear()


@pytest.mark.usefixtures("own_conv")
def test_a_building_block_is_one_file() -> None:
    model = tiny(mixers=[CONV])
    assert set(model.layer_kinds) == {"dense_own_conv"}
    assert sequence(model) == ("embedding", *("dense_own_conv",) * LAYERS, "head")
    per_layer = CONV_WEIGHTS + 3 * HIDDEN * FFN + 2 * HIDDEN
    assert parameters(model).total == LAYERS * per_layer + 2 * 32000 * HIDDEN + HIDDEN

    plan = search(model, sample_cluster(), job(8, 16))
    assert plan.best.predicted.step_s > 0
    partly = tiny(mixers=[CONV | {"layers": (True, True, False, True)}])
    assert set(partly.layer_kinds) == {"dense", "dense_own_conv"}
    mixed = search(partly, sample_cluster(), job(8, 16))
    assert mixed.best.predicted.step_s > 0


@pytest.mark.usefixtures("own_conv")
def test_collectives_and_weights_of_a_building_block_follow_from_its_dims() -> None:
    model = tiny(mixers=[CONV])
    block = derive(blocks(model)["dense_own_conv"], Scheme(True))
    talk = [(c.tensor, str(c.kind)) for c in block.collectives if c.axes == ("tp",) and c.phase is Phase.FORWARD]
    assert talk == [
        ("input_norm", "all-gather"),
        ("attention_out", "reduce-scatter"),
        ("mlp_norm", "all-gather"),
        ("mlp_out", "reduce-scatter"),
    ]
    # What mixes a whole sequence gathers its parts over cp, and hands each rank its own again.
    assert [(c.tensor, str(c.kind)) for c in block.collectives if c.axes == ("cp",) and c.phase is Phase.FORWARD] == [
        ("conv_product", "all-gather")
    ]
    values = numbers(model, tp=2)
    shards = {weight.name: weight.elements.value(values) for weight in block.weights}
    assert shards["conv_in_proj.weight"] == 3 * HIDDEN * HIDDEN / 2
    assert shards["own_conv.weight"] == HIDDEN * KERNEL / 2
    assert shards["conv_out_proj.weight"] == HIDDEN * HIDDEN / 2


@pytest.mark.usefixtures("own_conv")
def test_a_block_that_is_no_file_is_refused() -> None:
    with pytest.raises(InputError, match=r"no building block long_conv \(need .*own_conv"):
        blocks(tiny(mixers=[{"block": "long_conv"}]))
