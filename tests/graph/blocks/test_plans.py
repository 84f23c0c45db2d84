"""Models of nothing but one kind of block: split, timed and refused. descriptor/test_hybrid.py plans them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import machine
from symconfig.cost.work import work_seconds
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InfeasibleError, InputError
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph import dims as d
from symconfig.graph.derive import derive
from symconfig.graph.derived import Phase
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks
from symconfig.graph.program.of_model import program
from symconfig.solve.interval import interval
from symconfig.solve.search import search
from tests.graph.blocks.modules import CASES, DELTA, SSD
from tests.graph.program.check import problems
from tests.graph.support import PLAIN, numbers
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny

BLOCKS = ["mamba2", "qwen3 next", "kimi", "lfm2"]


def test_a_search_splits_no_group_over_ranks() -> None:
    """There are two groups of heads, so tp is at most 2; pinned to 4 nothing is left, and the reason is said."""
    model = CASES["mamba2"].descriptor
    with pytest.raises(InfeasibleError, match="heads and groups of a block in attention's place must divide over tp"):
        search(model, sample_cluster(), job(8, 16, pins={"tp": "4"}))


def test_times_of_such_models_are_less_sure() -> None:
    cluster = sample_cluster()
    plain, scanned = (interval("time", cluster, model) for model in (tiny(), CASES["mamba2"].descriptor))
    assert scanned.low < plain.low
    assert scanned.high > plain.high
    assert "of none with such blocks" in scanned.basis
    assert interval("memory", cluster, tiny()) == interval("memory", cluster, CASES["mamba2"].descriptor)


# Milliseconds of flash-linear-attention 0.5's gated delta rule, heads of 128 channels, 32,768 tokens (QwenLM/FlashQLA,
# benchmark/benchmark_results_H200.txt and _GB200.txt): key heads, value heads, forward, and backward where it is given.
MEASURED = [
    ("h200", 16, 32, 1.890, 5.697),
    ("h200", 16, 64, 3.331, None),
    ("h200", 8, 16, 1.241, 3.701),
    ("gb200-nvl72", 16, 32, 1.839, 6.171),
    ("gb200-nvl72", 16, 64, 2.997, None),
]


@pytest.mark.parametrize(("gpu", "keys", "values", "forward", "backward"), MEASURED)
def test_the_delta_rule_takes_what_was_measured(
    gpu: str, keys: int, values: int, forward: float, backward: float | None
) -> None:
    """Within 45 % forward and 20 % of both passes, with the norms of queries and keys that the measured call makes."""
    sizes = DELTA | {"linear_num_key_heads": keys, "linear_num_value_heads": values}
    sizes |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    model = tiny(mixers=({"block": "gated_delta_net", "sizes": sizes},))
    (built,) = (block for kind, block in blocks(model, DEEPSPEED.implementation).items() if "delta" in kind)
    lattice = Lattice(numbers(model, seq_length=32768) | {"keys_full": 1.0}, 1)
    seconds = work_seconds(derive(built, PLAIN), lattice, machine(load_cluster(gpu), "bf16"), DEEPSPEED)
    ahead, back = (
        1e3 * float(np.sum([seconds[op, phase] for op in ("normalise", "delta_rule")]))
        for phase in (Phase.FORWARD, Phase.INPUT)
    )
    assert ahead == pytest.approx(forward, rel=0.45)
    if backward is not None:
        assert ahead + back == pytest.approx(forward + backward, rel=0.2)


@pytest.mark.parametrize(
    ("mixer", "sentence"),
    [
        ({"block": "mamba2", "sizes": SSD | {"chunk_size": 0}}, "needs chunk_size under sizes"),
        ({"block": "mamba2", "sizes": SSD | {"n_groups": 3}}, "mamba_num_heads 8 is not divisible by n_groups 3"),
        (
            {"block": "mamba2", "sizes": SSD | {"state_size": 4}},
            "has no size state_size; its sizes are mamba_num_heads",
        ),
        ({"block": "mamba2", "sizes": SSD, "switches": ("bias",)}, "has no switch bias; it knows conv_bias"),
        ({"block": "gated_delta_net", "sizes": {}}, "needs linear_num_key_heads, linear_num_value_heads"),
    ],
)
def test_a_wrong_size_is_a_sentence(mixer: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        blocks(tiny(mixers=(mixer,)))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("how", [MEGATRON.implementation, DEEPSPEED.implementation])
def test_programs_of_such_models_are_sound(name: str, how: Implementation) -> None:
    """Every tensor has one size wherever it is used, and a scan is split over whole heads or whole sequences only."""
    found = program(CASES[name].descriptor, 8, 2048, how)
    assert not list(problems(found))
    for op in found.operators:
        if op.name.endswith((".scan", ".delta_rule")):
            assert d.SEQUENCE not in {loop for split in op.splits for loop in split.loops}
            assert op.traffic[1] > 1.0


def test_groups_go_with_their_heads() -> None:
    found = program(CASES["mamba2"].descriptor, 8, 2048)
    scan = next(op for op in found.operators if op.name.endswith(".scan"))
    assert {split.loops for split in scan.splits} == {("batch",), ("mamba_num_heads", "n_groups")}
