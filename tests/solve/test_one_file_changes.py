"""Adding a model, a cluster or a building block touches one file: each is added here, and planned with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from symconfig.cost.blocks import evaluate
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import machine
from symconfig.descriptor import load
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters, zoo_models
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph import dims as d
from symconfig.graph.blocks import layer
from symconfig.graph.blocks.common import Context, linear
from symconfig.graph.count import parameters
from symconfig.graph.derive import derive
from symconfig.graph.model import blocks
from symconfig.graph.operator import Tensor, Use
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


def test_a_cluster_is_one_yaml_file(zoo: Path) -> None:
    text = (zoo / "clusters" / "h100.yaml").read_text(encoding="utf-8")
    name = load_cluster("h100").name
    (zoo / "clusters" / "h900.yaml").write_text(text.replace(f"name: {name}", "name: h900", 1), encoding="utf-8")
    assert "h900" in zoo_clusters()
    new, old = (search(tiny(), load_cluster(cluster), job(8, 16)) for cluster in ("h900", "h100"))
    assert new.cluster.name == "h900"
    assert new.best.predicted == old.best.predicted


def gated_memory(ctx: Context, x: Tensor, window: bool) -> Tensor:
    """A new building block: a gate over heads and a running memory of them, in place of attention."""
    heads = (*x.dims[:-1], d.HEADS, d.HEAD_DIM)
    value, gate, state = Tensor("value", heads), Tensor("gate_in", heads), Tensor("state", heads)
    linear(ctx, "value_proj", x, (d.HIDDEN,), (d.HEADS, d.HEAD_DIM), [Use(value)])
    linear(ctx, "gate_in_proj", x, (d.HIDDEN,), (d.HEADS, d.HEAD_DIM), [Use(gate)])
    with ctx.build.module("core_attn"):
        ctx.build.elementwise("scan", [value, gate], state, saves=[value, gate])
    out = Tensor("attention_out", x.dims)
    linear(ctx, "o_proj", state, (d.HEADS, d.HEAD_DIM), (d.HIDDEN,), [Use(out)])
    return out


def test_a_building_block_lists_operators_and_everything_else_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "attention", gated_memory)
    model = tiny(name="gated-memory")  # a name of its own: derived blocks are remembered by model
    derived = derive(blocks(model)["dense"], Scheme(True))

    talk = [(c.tensor, str(c.kind)) for c in derived.collectives if c.axes == ("tp",) and str(c.phase) == "forward"]
    assert talk == [
        ("input_norm", "all-gather"),
        ("attention_out", "reduce-scatter"),
        ("mlp_norm", "all-gather"),
        ("mlp_out", "reduce-scatter"),
    ]
    values = numbers(model, tp=2)
    shards = {weight.name: weight.elements.value(values) for weight in derived.weights}
    assert shards["value_proj.weight"] == shards["o_proj.weight"] == 512 * 512 / 2
    assert {"value", "gate_in", "state"} <= {held.tensor for held in derived.held if held.needed_by}

    priced = evaluate(derived, Lattice({**values, "keys_full": 1.0}, 1), machine(sample_cluster(), "bf16"), MEGATRON)
    assert all(float(seconds.sum()) > 0 for seconds in priced.work_s.values())

    plan = search(model, sample_cluster(), job(8, 16))
    assert plan.best.predicted.step_s > 0
    per_layer = 3 * 512 * 512 + 3 * 512 * 1536 + 2 * 512
    assert parameters(model).total == 4 * per_layer + 2 * 32000 * 512 + 512
