"""Strategies with names, held against what the papers say of them, on programs of several kinds."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.program.net import Net, net
from symconfig.solve.partition.baselines import NAMES, Baseline, baseline, random_rows
from symconfig.solve.partition.degrees import Way, way
from symconfig.solve.partition.rows import allowed
from tests.solve.partition.programs import convolutions, transformer

MESH = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6), MeshLevel("rail", 2, 1e10, 1e-5)))
AXES = MESH.axes()
PROGRAMS = {
    "dense": net(transformer(1)),
    "tied": net(transformer(1, tied=True)),
    "experts": net(transformer(1, experts=True)),
    "convolutions": net(convolutions()),
}


def names(of: Net, found: Baseline) -> dict[str, tuple[str, ...]]:
    """The option of every node along every axis; parameters as `weight of …`."""
    return {
        ("weight of " if node.parameter else "") + node.name: tuple(node.options[o].name for o in row)
        for node, row in zip(of.nodes, rows_of(found), strict=True)
    }


def rows_of(found: Baseline) -> Rows:
    assert found.rows is not None, found.why
    return found.rows


def chosen(program: str, name: str, degrees: Way | None = None) -> dict[str, tuple[str, ...]]:
    return names(PROGRAMS[program], baseline(PROGRAMS[program], AXES, name, degrees))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_cut_can_be_cut(program: str, name: str) -> None:
    of = PROGRAMS[program]
    found = baseline(of, AXES, name)
    assert (found.rows is None) == bool(found.why)
    if found.rows is not None:
        assert all(allowed(of, node, row[None], AXES)[0] for node, row in zip(of.nodes, found.rows, strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_data_parallel_cuts_the_batch_of_every_operator_of_any_program(program: str) -> None:
    of = PROGRAMS[program]
    for node, row in zip(of.nodes, rows_of(baseline(of, AXES, "data")), strict=True):
        tokens = node.operator is not None and any(
            {"slots", *of.program.batch} & set(split.loops) for split in node.operator.splits
        )
        assert tokens or not node.operator
        splits = [node.options[o].split for o in row if node.operator]
        assert all(split and {"slots", *of.program.batch} & set(split.loops) for split in splits)
        assert node.parameter is None or not row.any()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_shards_every_parameter_over_all_ranks(stage: int) -> None:
    for weight, row in chosen("experts", f"zero{stage}").items():
        if weight.startswith("weight of "):
            assert row == (f"zero{stage}",) * 3


def test_megatron_cuts_columns_then_rows_and_the_sequence_between() -> None:
    found = chosen("dense", "megatron-tp-sp")  # tp 4 within the node, dp 2 between nodes
    assert found["layers.0.up_proj"] == (d.FFN, d.FFN, d.BATCH) == found["layers.0.down_proj"]
    assert found["layers.0.attention"] == (d.HEADS, d.HEADS, d.BATCH)
    assert found["embed"] == (d.VOCAB, d.VOCAB, d.BATCH) == found["cross_entropy"]
    assert found["layers.0.mlp_norm"] == (d.SEQUENCE, d.SEQUENCE, d.BATCH)
    assert found["copy of layers.0.attention_norm.out"] == ("pending", "pending", d.BATCH)  # gathered once for q, k, v
    assert found["weight of layers.0.down_proj"] == (d.FFN, d.FFN, "whole")
    assert found["weight of layers.0.mlp_norm"] == ("whole",) * 3


def test_without_sequence_parallelism_every_rank_has_what_lies_between() -> None:
    found = chosen("dense", "megatron-tp")
    assert found["layers.0.mlp_norm"] == ("whole", "whole", d.BATCH)
    assert found["layers.0.up_proj"] == (d.FFN, d.FFN, d.BATCH)


def test_a_tied_weight_is_cut_once_for_both_its_readers() -> None:
    found = chosen("tied", "megatron-tp")
    assert found["weight of embedding"] == (d.VOCAB, d.VOCAB, "whole")
    assert found["copy of embedding"] == (d.VOCAB, d.VOCAB, "pending")  # the gradients are summed before they travel


def test_degrees_combine_tp_cp_dp_and_zero() -> None:
    found = chosen("dense", "megatron-tp", way(tp=2, cp=2, dp=2, sequence_parallel=True, zero=1))
    assert found["layers.0.up_proj"] == (d.FFN, d.SEQUENCE, d.BATCH)
    assert found["layers.0.mlp_norm"] == (d.SEQUENCE, d.SEQUENCE, d.BATCH)
    assert found["weight of layers.0.up_proj"] == (d.FFN, "zero1", "zero1")


def test_gshard_cuts_experts_and_leaves_their_tokens_with_the_batch() -> None:
    found = chosen("experts", "gshard")
    assert found["layers.0.up_proj"] == (d.EXPERTS,) * 3 == found["weight of layers.0.up_proj"]
    assert found["layers.0.dispatch"] == (d.BATCH,) * 3 == found["layers.0.combine"]
    assert found["layers.0.q_proj"] == (d.BATCH,) * 3


def test_experts_lie_on_a_grid_of_their_own() -> None:
    degrees = way(tp=2, dp=4, etp=2, ep=2, sequence_parallel=True, zero=1)
    found = chosen("experts", "megatron-tp", degrees)
    assert found["layers.0.up_proj"] == (d.EXPERT_FFN, d.EXPERTS, d.SLOTS)
    assert found["layers.0.dispatch"] == (d.SEQUENCE, d.BATCH, d.BATCH)
    assert found["weight of layers.0.up_proj"] == (d.EXPERT_FFN, d.EXPERTS, "zero1")
    assert found["weight of layers.0.router"] == ("whole", "zero1", "zero1")


def test_ulysses_cuts_heads_inside_attention_and_context_parallel_the_queries() -> None:
    ulysses, ring = chosen("dense", "ulysses"), chosen("dense", "context")
    assert ulysses["layers.0.attention"] == (d.HEADS,) * 3
    assert ring["layers.0.attention"] == (d.SEQUENCE,) * 3
    assert ulysses["layers.0.q_proj"] == ring["layers.0.q_proj"] == (d.SEQUENCE,) * 3


def test_two_dimensional_products_cut_both_dims_of_every_weight() -> None:
    found = chosen("dense", "matmul-2d")
    assert found["weight of layers.0.up_proj"] == (d.FFN, d.FFN, d.HIDDEN)
    assert found["weight of layers.0.down_proj"] == (d.FFN, d.FFN, d.HIDDEN)
    assert found["layers.0.mlp_norm"] == (d.BATCH, d.BATCH, d.HIDDEN)


def test_spatial_cuts_what_the_windows_slide_over_into_squares() -> None:
    found = chosen("convolutions", "spatial")
    assert found["conv1"] == ("i", "j", "i") == found["relu2"]
    assert found["pool"] == ("i", "j", "i")


@pytest.mark.parametrize(
    ("program", "name", "degrees", "words"),
    [
        ("dense", "gshard", None, "no experts"),
        ("dense", "spatial", None, "no operator has a window"),
        ("convolutions", "megatron-tp", None, "no heads"),
        ("convolutions", "context", None, "no sequence"),
        ("dense", "megatron-tp", way(tp=3, dp=4), "are not the 8 ranks"),
        ("experts", "gshard", way(dp=8, ep=3), "does not divide the 8 ranks"),
    ],
)
def test_what_cannot_be_had_says_why(program: str, name: str, degrees: Way | None, words: str) -> None:
    found = baseline(PROGRAMS[program], AXES, name, degrees)
    assert found.rows is None
    assert words in found.why


def test_a_dim_that_does_not_divide_is_named() -> None:
    few = net(transformer(1, batch=4, num_key_value_heads=2))
    assert baseline(few, AXES, "data").why == "batch of embed cannot be cut into 8 parts by dp, only into 4"
    wide = baseline(few, AXES, "megatron-tp", way(tp=4, dp=2))
    assert wide.why == "num_key_value_heads of layers.0.k_proj cannot be cut into 4 parts by tp, only into 2"


def test_without_degrees_a_strategy_goes_as_far_as_its_dims_divide() -> None:
    few = net(transformer(1, experts=True, num_key_value_heads=2, num_experts=4))
    assert baseline(few, AXES, "megatron-tp-sp").way == way(tp=2, dp=4, sequence_parallel=True)
    assert baseline(few, AXES, "ulysses").way == way(cp=2, dp=4, cp_comm="a2a")
    assert baseline(few, AXES, "gshard").way == way(dp=8, ep=4)


def test_random_rows_differ_by_seed_only() -> None:
    of = PROGRAMS["experts"]
    assert np.array_equal(random_rows(of, AXES, 3), random_rows(of, AXES, 3))
    assert not np.array_equal(random_rows(of, AXES, 3), random_rows(of, AXES, 4))


@pytest.mark.parametrize("program", PROGRAMS)
def test_random_rows_take_every_option_of_every_operator(program: str) -> None:
    of = PROGRAMS[program]
    many = np.stack([random_rows(of, AXES, seed) for seed in range(40)])
    for index, node in enumerate(of.nodes):
        if node.operator is not None:
            assert set(many[:, index].flat) == set(range(len(node.options)))


def test_a_folded_net_takes_the_rows_of_the_whole_one() -> None:
    program = transformer(3)
    starts = [index for index, op in enumerate(program.operators) if op.name.endswith(".attention_norm")]
    period = starts[1] - starts[0]
    end = starts[0] + 3 * period
    classes = [
        index if not starts[0] <= index < end else starts[0] + (index - starts[0]) % period
        for index in range(len(program.operators))
    ]
    whole, folded = net(program), net(program, classes, [(starts[0], period, 3)])
    for name in ("zero3", "megatron-tp-sp", "ulysses"):
        a, b = rows_of(baseline(whole, AXES, name)), rows_of(baseline(folded, AXES, name))
        for x, y in zip(whole.node_of, folded.node_of, strict=True):
            assert np.array_equal(a[x], b[y])
        for x, y in zip(whole.parameter_of, folded.parameter_of, strict=True):
            assert np.array_equal(a[x], b[y])
