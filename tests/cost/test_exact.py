"""Where a bound or a sum must be exact: one policy, one stage more, one kind of weight more."""

from __future__ import annotations

import operator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from symconfig.cost import optimizer
from symconfig.cost import stages as of_stages
from symconfig.cost.lattice import Uneven
from symconfig.cost.machine import machine
from symconfig.cost.pipeline import overlap
from symconfig.cost.stages import stages
from symconfig.cost.step import Extremes, bound_bytes, bound_s, evaluate, evaluate_block, prefixed, states, total
from symconfig.cost.table import Choice, bound_table, resolve, table
from symconfig.cost.tape import Tape
from symconfig.cost.weights import WEIGHTS
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.frameworks.behaviour import changed
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.block import LAYER, Place
from symconfig.schedule.timeline import Start
from tests.cost.support import cost
from tests.graph.support import numbers
from tests.sample_models import sample_model
from tests.solve.naive import tiny


@pytest.mark.parametrize("asked", [{}, {"tp": 2, "pp": 2, "microbatches": 4}, {"pp": 2, "vpp": 2, "microbatches": 4}])
def test_bounds_are_reached_where_there_is_one_policy_and_no_exchange(asked: dict[str, Any]) -> None:
    found = cost(tiny(num_hidden_layers=4), **asked)
    table = bound_table(
        found.table.blocks, resolve({b.derived.name: b.derived for b in found.table.blocks}, [Choice()])
    )
    low = stages(table, found.setting.pipelines, np.array([0]), found.setting.tied).divisible()
    passes = {name: t for name, t in found.cost.time.items() if name not in ("optimizer", "overhead")}
    passes.pop("data-parallel communication")
    assert bound_s(low, found.points, found.setting) == pytest.approx(total(passes)[0, 0])
    assert bound_bytes(low, found.points, found.setting)[0] == pytest.approx(found.cost.peak_bytes[0, 0])


def test_the_largest_block_counts_what_is_frozen_too() -> None:
    adapter = {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj"]}
    model = sample_model("mixtral-8x7b", adapter=adapter)
    found = cost(model, dp=8, zero=3, backend="fsdp")
    symbols = numbers(model)
    counts = [sum(w.elements.value(symbols) for w in block.derived.weights) for block in found.table.blocks]
    assert found.sums.largest.max() == pytest.approx(max(counts))
    assert sum(w.frozen and w.expert for block in found.table.blocks for w in block.derived.weights) > 0


def test_a_rank_with_more_tokens_keeps_more_of_what_grows_with_them() -> None:
    uneven = Uneven(np.array([0.0, 1.0]), np.array([1.5]), np.array([0.1]))
    held = np.array([[10.0], [10.0]])
    assert uneven.busiest(held).tolist() == [[10.0], [15.0]]
    assert uneven.beyond(held) == pytest.approx(np.array([[0.0], [1.0]]))


def test_layers_that_run_again_together_keep_the_inputs_of_all_but_the_first() -> None:
    """Workspace 5, of 20 alive for one layer alone, 2 of input for each: 5 + 3 x 15 + 2 x 2."""
    passes = np.zeros((len(of_stages.PASSES), 1, 2, 1))
    passes[of_stages.KEPT] = 2.0
    spaces = (SimpleNamespace(workspace_bytes=np.array([5.0])),) * 2
    table: Any = SimpleNamespace(blocks=spaces, passes=passes, places=(Place.LAYER, Place.LAST))
    found = of_stages._transient_together(table, 3, np.array([0]), np.full((1, 2, 1), 20.0))
    assert found[0, :, 0].tolist() == [5 + 3 * 15 + 2 * 2, 20.0]


def test_hybridep_has_a_place_for_every_token_of_every_rank() -> None:
    asked: dict[str, Any] = {"ep": 4, "dp": 4, "cluster": load_cluster("h100"), "seq_length": 1024}
    model = tiny("mixtral-8x7b")
    hybrid = {"implementation": changed(MEGATRON.implementation, dispatcher="hybridep")}
    kept = [
        max(float(block.weights[WEIGHTS.index("workspaces"), 0]) for block in found.table.blocks)
        for found in (cost(model, **asked, habits=hybrid), cost(model, **asked))
    ]
    assert kept[0] - kept[1] == pytest.approx(2 * 1024 * model.hidden_size * 4)


@pytest.mark.parametrize(
    ("gathers", "vpp", "start"),
    [
        (Start.AHEAD, 1, Start.APART),
        (Start.ON_DEMAND, 1, Start.ON_DEMAND),
        (Start.AHEAD, 2, Start.AHEAD),
        (Start.ON_DEMAND, 2, Start.AHEAD),
        (Start.APART, 2, Start.APART),
    ],
)
def test_when_stages_gather_and_what_of_a_pass_is_beside_it(gathers: Start, vpp: int, start: Start) -> None:
    setting = cost(tiny(num_hidden_layers=4), pp=2, vpp=vpp, microbatches=4, dp=2, zero=1).setting
    found, reduces, share = overlap(replace(setting, framework=replace(setting.framework, gathers=gathers)))
    assert (found, reduces) == (start, Start.AHEAD)
    assert share.tolist() == ([[0.8], [0.0]] if vpp == 1 else [[0.0, 0.0]] * 2)


@pytest.mark.parametrize("does", [operator.mod, operator.floordiv, operator.sub, operator.truediv, operator.pow])
def test_a_term_behind_a_number_is_as_the_number(does: Any) -> None:
    found, meant = does(7.0, Tape().symbol("x", 2.0)), does(7.0, 2.0)
    assert (-Tape().symbol("x", 2.0)).value == -2.0
    pairs = zip(found, meant, strict=True) if isinstance(meant, tuple) else [(found, meant)]
    assert all(getattr(one, "value", one) == other for one, other in pairs)


def test_frozen_weights_rest_wider_in_shards_than_they_are_gathered() -> None:
    adapter = {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj"]}
    found = cost(sample_model("llama2-13b", adapter=adapter), dp=8, zero=3, backend="fsdp")
    sizes = found.setting.bytes
    wide, plain = (
        states(found.sums, found.points, replace(found.setting, bytes=replace(sizes, frozen_rest=rest)))["weights"]
        for rest in (2.0, 0.0)
    )
    assert (wide - plain).max() == pytest.approx(2.0 * found.sums.frozen.max() / 8)


def test_as_few_first_layers_run_again_as_fit() -> None:
    found = cost(tiny(num_hidden_layers=6), micro=4)
    setting, points, blocks = found.setting, found.points, found.table.blocks
    choices = [Choice(), Choice(frozenset({LAYER}))]
    policies = resolve({block.derived.name: block.derived for block in blocks}, choices)
    both = table(blocks, choices, policies, setting.machine, setting.framework)
    sums = stages(both, setting.pipelines, np.array([0]), setting.tied)
    plain, again = (evaluate(sums.policy(row), points, setting) for row in (0, 1))
    extremes = Extremes(keep=0, rerun=1, table=both, chosen=np.array([0]), sums=sums, plain=plain)
    first = tuple(tuple(n * (kind == "dense") for kind in both.kinds) for n in range(7))
    prefix = prefixed([[first]], None, 1)
    most, least = (float(cost.peak_bytes.max()) for cost in (plain, again))
    layers = []
    for share in (0.05, 0.4, 0.8):
        budget = least + share * (most - least)
        chosen = evaluate_block(extremes, points, setting, prefix, budget)
        assert chosen.cost.peak_bytes.max() <= budget
        layers.append(int(chosen.layers.max()))
    assert 6 >= layers[0] > layers[1] > layers[2] > 0


@pytest.mark.parametrize(("gradient", "zero", "more"), [(4.0, 1, 2.0), (2.0, 1, 0.0), (4.0, 2, 0.0)])
def test_deepspeed_keeps_the_last_gradients_beside_a_wider_sum(gradient: float, zero: int, more: float) -> None:
    found = cost(tiny(), dp=2, zero=zero, backend="deepspeed")
    setting = replace(found.setting, bytes=replace(found.setting.bytes, gradient=gradient))
    without = replace(setting, framework=replace(setting.framework, added_gradients_at=frozenset()))
    kept, bare = (states(found.sums, found.points, one)["gradients"].max() for one in (setting, without))
    assert kept - bare == pytest.approx(more * found.sums.dense.max())


def test_masks_are_alive_with_each_block() -> None:
    kept = [cost(tiny(), habits={"mask_bytes": mask}).peaks[0] for mask in (0.0, 1000.0)]
    assert kept[1] - kept[0] == pytest.approx(1000.0)


def test_a_precision_that_a_gpu_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(InputError, match="one of bf16, fp16"):
        machine(load_cluster("a100-80gb"), "fp8")


def test_a_share_of_nothing_is_nothing() -> None:
    assert optimizer._ratio(np.array([1.0, 0.0]), np.array([2.0, 0.0])).tolist() == [0.5, 0.0]


def test_prefixes_of_pipelines_end_in_their_last_layers() -> None:
    short, long = ((0,), (1,)), ((0,), (1,), (2,))
    found = prefixed([[short], [long, short]], np.array([0, 1]), 2)
    assert found[:, :, 0].transpose(2, 0, 1).tolist() == [[[0, 1, 1]] * 2, [[0, 1, 2], [0, 1, 1]]]
