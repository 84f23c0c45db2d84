"""ZeRO's collectives, derived from layouts: the papers' volumes, and the calls that frameworks really make."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.fsdp.behaviour import FSDP
from symconfig.graph.dims import ONE
from symconfig.graph.layout import FLAT, GTP, INSTANCES, PARTIAL, Layout, Sharding, moves, over_replicas

PAPER = [Sharding.of(stage, whole_gradients=False, over_tensor=False, instances=False) for stage in range(4)]


def test_sums_over_axes_of_no_data_follow_once_a_step() -> None:
    """A norm's weight between tensor-parallel regions: Megatron sums its gradient over tp when dp is done."""
    ways = PAPER[2].ways(Layout(), ("dp", "tp"))
    between = next(way.given for way in ways if way.phase.once)
    assert (between.axes_on(FLAT), between.partial) == (("dp",), ("tp",))
    assert [way.taken for way in ways if way.gradient][-1] == Layout.of({"dp": FLAT})


def test_a_frozen_weight_is_gathered_and_nothing_else() -> None:
    assert {way.phase.value for way in PAPER[3].ways(Layout(), ("dp",), trained=False)} == {
        "forward", "backward, gathered again"
    }  # fmt: skip


def test_stage_3_of_deepspeed_cuts_what_tensor_parallel_ranks_have_alike() -> None:
    whole, cut = (DEEPSPEED.sharding(3).layouts(used, ("dp",)).stored for used in (Layout(), Layout.of({"tp": "ffn"})))
    assert whole.axes_on(FLAT) == ("tp", "dp")
    assert (cut.axes_on(FLAT), cut.axes_on("ffn")) == (("dp",), ("tp",))
    produced = DEEPSPEED.sharding(3).layouts(Layout(), ("dp",)).produced
    assert produced.axes_on(PARTIAL) == ("dp",)


def test_weight_shards_are_gathered_and_summed_with_every_microbatch() -> None:
    """Megatron-LM, docs/api-guide/core/generalized_tensor_parallel.md, section 3.2: a linear weight's gradient is
    reduce-scattered over gtp after each backward, a norm's all-reduced once the replicas' are; both over dp once."""

    def collectives(over_gtp: bool) -> list[tuple[str, str, tuple[str, ...]]]:
        ways = PAPER[1].ways(Layout(), ("dp", GTP), over_gtp=over_gtp)
        return [(w.phase.value, m.kind.value, m.axes) for w in ways for m in moves(w.given, w.taken, ONE)]

    once = [("gradient reduction", "reduce-scatter", ("dp",)), ("updated weights", "all-gather", ("dp",))]
    assert collectives(over_gtp=True) == [
        ("forward", "all-gather", (GTP,)),
        ("backward, gathered again", "all-gather", (GTP,)),
        ("backward", "reduce-scatter", (GTP,)),
        *once,
    ]
    assert collectives(over_gtp=False) == [once[0], ("gradient reduction", "all-reduce", (GTP,)), once[1]]


@dataclass(frozen=True)
class Called:
    """Of a model of so many parameters on so many ranks, by case: when, which kind, elements of the larger buffer."""

    ranks: int
    elements: int
    calls: dict[str, list[tuple[str, str, int]]]


CASES = {
    "DDP": FSDP.sharding(0),
    "FSDP2": FSDP.sharding(3),
    "FSDP2 on two instances": replace(FSDP, optimizer_instances=2).sharding(3),
    **{f"DeepSpeed {stage}": DEEPSPEED.sharding(stage) for stage in range(4)},
}


@pytest.fixture(scope="module")
def called() -> Called:
    """What PyTorch and DeepSpeed call."""
    pytest.importorskip("torch")
    pytest.importorskip("deepspeed")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.graph.sharding_calls"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Called(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("case", CASES)
def test_frameworks_call_what_the_layouts_say(called: Called, case: str) -> None:
    """Kinds, elements of the larger buffer, and whether with every microbatch; a framework may cut one into several."""
    sharding, expected, found = CASES[case], Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    numbers = {"dp": called.ranks / 2, INSTANCES: 2} if sharding.instances else {"dp": called.ranks}
    for way, some in over_replicas(sharding):
        for move in some:
            elements = called.elements * prod(numbers[axis] ** power for axis, power in move.elements.powers)
            expected["step" if way.phase.once else "microbatch", move.kind.value] += int(elements)
    for place, kind, size in called.calls[case]:
        found[place, kind] += size
    assert found == expected
