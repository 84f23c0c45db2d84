"""What the optimum of a model is where papers know it: nothing of it is built in."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from symconfig.cost.partition.costs import Objective
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph import dims as d
from symconfig.graph.layout import Kind
from symconfig.graph.program.read import load_program
from symconfig.solve.partition.account import collectives
from symconfig.solve.partition.adaptive import adaptive
from tests.solve.partition.optima import (
    CLUSTER,
    NODE,
    Weighed,
    in_parts,
    model,
    named,
    of,
    optimum,
    weights,
)

RANKS = 8
SHARE = (RANKS - 1) / RANKS


def same(found: Weighed, option: str) -> dict[str, list[str]]:
    return {name: options for name, options in found.products().items() if set(options) == {option}}


@pytest.mark.parametrize(("name", "gate_up"), [("llama2-7b", "gate_up_proj"), ("gpt3-175b", "up_proj")])
def test_one_sequence_on_a_node_is_split_as_megatron_does(name: str, gate_up: str) -> None:
    """Shoeybi et al. (2019), section 3, with Korthikanti et al. (2022): the node one axis, weights as they are used.

    Of 4,096 tokens: with half of them an all-to-all of the logits is faster than the sums of the loss over vocabulary,
    which wait for latencies.
    """
    costs = weights(of(model(name), 1, 4096), flat=False)
    found, megatron = optimum(costs), named(costs, "megatron-tp-sp")
    assert {name: options for name, options in found.products().items() if "lm_head" not in name} == {
        name: options for name, options in megatron.products().items() if "lm_head" not in name
    }
    assert found.options("flash_attention") == [d.HEADS]
    assert found.options(gate_up)[0] in (d.FFN, d.FFN_FUSED)
    assert found.options(".down_proj") == [d.FFN]
    assert found.options("lm_head") == found.options("cross_entropy") == [d.VOCAB]
    for between in ("input_norm", "attention_residual", "mlp_norm", "mlp_residual"):
        assert found.options(f".{between}") == [d.SEQUENCE]
    assert megatron.cost * 0.99 <= found.cost <= megatron.cost
    assert found.cost < named(costs, "megatron-tp").cost


def test_a_table_that_is_tied_to_the_head_is_split_by_vocabulary() -> None:
    """One that is not is split along its width: an all-to-all of looked up rows moves less than a reduce-scatter."""
    small = {"num_hidden_layers": 4}
    tied = optimum(weights(of(model("llama2-7b", tie_word_embeddings=True, **small), 1, 2048), flat=False))
    apart = optimum(weights(of(model("llama2-7b", **small), 1, 2048), flat=False))
    assert (
        tied.options("word_embedding.weight") == tied.options("word_embedding") == tied.options("lm_head") == [d.VOCAB]
    )
    assert apart.options("word_embedding") == [d.HIDDEN]


def test_a_node_of_three_axes_gains_by_splitting_in_two_dims() -> None:
    axes = NODE.axes()
    costs = weights(of(model("llama2-7b"), 1, 4096), axes, flat=False)
    found, megatron = optimum(costs, axes), named(costs, "megatron-tp-sp", axes)
    assert 0.90 * megatron.cost < found.cost < 0.98 * megatron.cost
    assert any(len(set(options)) > 1 for options in found.products().values())


def _layer(hidden: int, width: int, seq: int, batch: int) -> tuple[float, float, float]:
    """Elements that column-row and ZeRO-3 move for one more layer, and its parameters."""
    moved: dict[str, list[float]] = {"megatron-tp-sp": [], "zero3": []}
    parameters = []
    for layers in (2, 3):
        heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), hidden // 128)
        described = model("llama2-7b", hidden_size=hidden, intermediate_size=width, num_hidden_layers=layers, **heads)
        costs = weights(of(described, batch, seq), objective=Objective.SYMTENSOR)
        for strategy, costs_so_far in moved.items():
            costs_so_far.append(named(costs, strategy).cost)
        parameters.append(sum(node.times * prod(node.ports[0].sizes) for node in costs.net.nodes if node.parameter))
    megatron, zero = (after - before for before, after in moved.values())
    return megatron, zero, parameters[1] - parameters[0]


@pytest.mark.parametrize(("hidden", "width", "seq"), [(4096, 11008, 512), (4096, 11008, 1024), (2048, 8192, 256)])
def test_flat_sharding_moves_less_from_the_batch_of_the_closed_form_on(hidden: int, width: int, seq: int) -> None:
    """Of a layer, in units of (N - 1) / N elements: ZeRO-3 gathers weights twice and reduces gradients once, 3 P.
    Column-row gathers and scatters b s h elements twice forward and twice backward, 8 b s h in all, and reduces the
    gradients of two norms, 2 x 2 h. So flat sharding moves less where b > (3 P - 4 h) / (8 s h).
    """
    first = None
    for batch in range(8, 129, 8):
        megatron, zero, parameters = _layer(hidden, width, seq, batch)
        assert parameters == 4 * hidden**2 + 3 * hidden * width + 2 * hidden
        assert zero == pytest.approx(3 * parameters * SHARE, rel=1e-12)
        assert megatron == pytest.approx((8 * batch * seq * hidden + 4 * hidden) * SHARE, rel=1e-12)
        first = batch if first is None and zero < megatron else first
    closed = (3 * (4 * hidden**2 + 3 * hidden * width + 2 * hidden) - 4 * hidden) / (8 * seq * hidden)
    assert first == 8 * (int(closed // 8) + 1)


def test_the_optimum_goes_from_column_row_to_flat_as_the_batch_grows() -> None:
    """Every weight with its states in eighths; the batch of the closed form is 36.2 sequences."""
    small = model("llama2-7b", num_hidden_layers=8)
    found = {}
    for batch in (8, 32, 40, 56):
        costs = weights(of(small, batch, 512), objective=Objective.SYMTENSOR)
        found[batch] = optimum(costs, among=in_parts)
        assert found[batch].cost <= min(named(costs, name).cost for name in ("megatron-tp-sp", "zero3"))
    layer = {name for name in found[8].products() if name.startswith("layers.")}
    flat = {batch: layer & set(same(one, d.BATCH)) for batch, one in found.items()}
    assert not flat[8]
    assert 0 < len(flat[32]) < len(layer)  # attention is flat before the MLP
    assert flat[56] == layer


def test_with_memory_to_spare_a_part_lies_flat_and_the_rest_does_not() -> None:
    """Shi et al., TAP (2023): where memory allows, a plan that shards a part of the model beats those that shard all of
    it or none. 60 % of what one copy with its states takes, beside activations."""
    costs = weights(of(model("llama2-7b", num_hidden_layers=8), 64, 512), objective=Objective.SYMTENSOR)
    data, zero1, zero3 = (named(costs, name) for name in ("data", "zero1", "zero3"))
    limit = 0.6 * (data.memory - zero3.memory) + zero3.memory
    found = optimum(costs, memory_limit=limit)
    assert zero1.memory <= limit < data.memory
    assert found.cost < min(one.cost for one in (zero1, zero3, named(costs, "megatron-tp-sp")))
    stored = {found.options(node.name)[0] for node in costs.net.nodes if node.parameter is not None and node.times > 1}
    assert stored <= {"zero1", "zero2"} or len(stored) > 1  # ZeRO-2 alone costs as little as any mixture


def _partitioned(program: str, gpus: int, **dims: int) -> Weighed:
    mesh = of_cluster(CLUSTER, gpus)
    axes = mesh.axes(tuple((level.size,) if level.size < 8 else (2, level.size // 2) for level in mesh.levels))
    costs = weights(load_program(program, dims), axes, mesh)
    found = adaptive(costs, axes, np.inf).best
    return Weighed(costs, axes, found.rows, found.cost, found.memory)


SIDES = {"": 224, "0": 112, "1": 56, "2": 28, "3": 14, "4": 7}


def test_large_images_are_split_by_examples_and_by_rows() -> None:
    """Four images of 1,792 x 1,792 on eight GPUs: more GPUs than examples, and rows enough."""
    sides = {axis + stage: 8 * size for axis in "ij" for stage, size in SIDES.items()}
    found = _partitioned("wide-resnet-50-2", 8, n=4, **sides)
    convolutions = [set(options) for name, options in found.products().items() if name != "l0"]
    assert all("n" in options for options in convolutions)
    assert sum(any(option[0] in "ij" for option in options) for options in convolutions) > len(convolutions) / 2
    assert any(move.kind is Kind.SEND for move in collectives(found.costs, found.axes, found.rows))


def test_wide_convolutions_are_split_by_examples_first_and_by_channels_later() -> None:
    """Zheng et al., Alpa (2022), section 8.5: Wide-ResNet's early layers by examples, its last ones by channels too."""
    found = _partitioned("wide-resnet-50-2", 16, n=8)
    early, late = found.products()["stage1.0.d"], found.products()["stage4.0.d"]
    assert set(early) <= {"n", "whole"}
    assert set(late) & {"p4", "q4"}
    assert "n" in early


@pytest.mark.parametrize(("name", "gpus"), [("mixtral-8x7b", 8), ("qwen3-30b-a3b", 16)])
def test_experts_are_split_and_tokens_travel_to_them(name: str, gpus: int) -> None:
    """One sequence for each GPU, and the node one axis. Lepikhin et al., GShard (2020), section 3.2."""
    mesh = of_cluster(CLUSTER, gpus)
    axes = mesh.axes(tuple((level.size,) for level in mesh.levels))
    costs = weights(of(model(name), gpus, 4096), axes, mesh)
    found = optimum(costs, axes)
    products = {n: options for n, options in found.products().items() if "expert" in n}
    assert len(products) == 2
    assert all(d.EXPERTS in options for options in products.values())
    kinds = {move.kind for move in collectives(costs, axes, found.rows) if d.EXPERTS in _dims(found, move.link)}
    assert Kind.ALL_TO_ALL in kinds


def _dims(found: Weighed, link: int) -> tuple[str, ...]:
    one = found.net.links[link]
    return found.net.nodes[one.producer].ports[one.given].tensor.dims if link >= 0 else ()
