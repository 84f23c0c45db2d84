"""What is alive only while one block runs backward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.cost.blocks import KEPT, PASSES, TRANSIENT, Policies
from symconfig.cost.stages import Setting, Stages, stages
from symconfig.cost.step import host_bytes
from symconfig.cost.weights import WEIGHTS
from symconfig.frameworks.behaviour import changed
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derive import derive
from symconfig.graph.derived import recompute_policy
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.solve.costed import Costed
from tests.cost.support import cost
from tests.graph.support import PLAIN, held_bytes, numbers
from tests.sample_models import sample_model
from tests.solve.naive import tiny


def test_what_waits_in_host_memory_is_back_while_its_block_runs_backward() -> None:
    here, away = cost(tiny()), cost(tiny(), offload=frozenset({"flash_attention"}))
    layer = here.table.kinds.index("dense")
    less = here.table.passes[KEPT, 0, layer] - away.table.passes[KEPT, 0, layer]
    more = away.table.passes[TRANSIENT, 0, layer] - here.table.passes[TRANSIENT, 0, layer]
    assert less > 0
    assert more == pytest.approx(less)


@pytest.mark.parametrize(("attention", "squares"), [("fused_softmax", 1), ("torch", 2)])
def test_the_fused_softmax_writes_its_gradient_over_the_one_it_reads(attention: str, squares: int) -> None:
    model = sample_model("llama2-13b")
    derived = derive(blocks(model, changed(Implementation(), attention=attention))["dense"], PLAIN)  # type: ignore[arg-type]
    (softmax,) = [space for space in derived.workspaces if space.op == "softmax"]
    values = numbers(model, seq_length=1024)
    square = model.num_attention_heads * 1024**2
    assert sum(size.value(values) for size, _ in softmax.moved) == squares * square


@pytest.mark.parametrize("name", ["head", "mtp"])
def test_deferred_gradients_of_the_logits_wait_with_the_heads_input(name: str) -> None:
    """Megatron-LM, --defer-embedding-wgrad-compute: so many microbatches' logits gradients and inputs, in bf16."""
    model = sample_model("deepseek-v3")
    values = numbers(model, seq_length=1024, tp=2)
    size = {}
    for waiting in (0, 3):
        derived = derive(blocks(model, changed(Implementation(), deferred_gradients=waiting))[name], PLAIN)
        size[waiting] = held_bytes(derived, recompute_policy(derived, frozenset()), values)
    each = 2 * 1024 * (model.vocab_size / 2 + model.hidden_size)
    assert size[3] - size[0] == pytest.approx(3 * each)


@pytest.mark.parametrize(("name", "streams"), [("mixtral-8x7b", 4), ("llama2-13b", 0)])
def test_grouped_products_keep_a_workspace_for_each_stream(name: str, streams: int) -> None:
    plain = cost(tiny(name))
    each = plain.setting.machine.engine_workspace_bytes
    assert each > 0
    assert plain.table.weights[WEIGHTS.index("workspaces")].max() == pytest.approx(streams * each)
    without = replace(plain.table, weights=plain.table.weights * (np.array(WEIGHTS) != "workspaces")[:, None, None])
    kept, bare = (stages(table, plain.setting.pipelines, np.array([0]), tied=False) for table in (plain.table, without))
    assert (kept.transient - bare.transient).max() == pytest.approx(streams * each)


def test_what_is_offloaded_fills_host_memory_for_every_microbatch_in_flight() -> None:
    model, moved = tiny(), frozenset({"flash_attention"})
    first, last = (cost(model, pp=pp, microbatches=8, offload=moved) for pp in (1, 4))
    held = [float(host_bytes(*_host(parts)).item()) for parts in (first, last)]
    layer = first.table.kinds.index("dense")
    each = float(first.table.passes[PASSES.index("away"), 0, layer, 0])
    assert each > 0
    # Of one stage one microbatch; of four the first holds four, of a quarter of the layers.
    assert held == pytest.approx([model.num_hidden_layers * each] * 2)
    assert float(host_bytes(*_host(cost(model, microbatches=8))).item()) == 0.0


def _host(parts: Costed) -> tuple[Stages, ConfigurationSet, Setting]:
    return parts.sums, parts.points, parts.setting


def test_each_offloaded_tensor_takes_the_host_as_long_as_an_operator() -> None:
    """Where it has no lead over the GPU, that shows."""
    moved, layer = frozenset({"flash_attention"}), "dense"
    slow, far = replace(MEGATRON, host_kernel_s=0.01), 1e30  # bytes/s, so that no copy shows

    def seconds(offload: frozenset[str]) -> float:
        parts = cost(tiny())
        block = next(block for block in parts.table.blocks if block.derived.name == layer)
        host = {key: np.full_like(t, 0.01) for key, t in block.host_s.items()}
        policy = recompute_policy(block.derived, frozenset(), offload)
        result = replace(block, host_s=host).passes(Policies([policy]), far, slow)
        return float(result[PASSES.index("forward"), 0, 0])

    held = cost(tiny()).table.blocks[cost(tiny()).table.kinds.index(layer)].derived
    tensors = sum(recompute_policy(held, frozenset(), moved).offloaded)
    assert tensors > 1
    assert seconds(moved) - seconds(frozenset()) == pytest.approx(tensors * 0.01)
