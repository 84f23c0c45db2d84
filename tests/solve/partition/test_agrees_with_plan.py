"""One strategy takes as long by the tensor solver's prices as by the planner's, on every cluster of the zoo.

The tensor solver's sum knows only gradients and weights beside their own operator; so nothing is hidden in either, and
launches are free.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from symconfig.cost.framework import Hide
from symconfig.cost.machine import machine
from symconfig.cost.partition.costs import Costs, Keep
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.mesh import Axis, of_cluster
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.implementation import Implementation, Kernel
from symconfig.graph.program.of_model import program
from symconfig.resources import data_dir
from symconfig.solve.partition.account import Spent, spent
from symconfig.solve.partition.run import Ask, Case, cases, costs_of
from tests.cost.support import cost, seconds
from tests.sampled import sampled
from tests.solve.partition.strategies import named_rows, way

CLUSTERS = sorted(path.stem for path in (data_dir("model_zoo") / "clusters").glob("*.yaml"))
MODEL, SEQ, TURNS = load_model("llama3.1-8b"), 4096, 16  # turns: enough to outweigh what is once a step
WHOLE = 0.002  # a look-up in a table: the tensor solver alone counts its rows, and a gradient of the whole table
MOVED = 0.0005  # one message's latency once a step
SPLITS = [(8, 1), (2, 4), (4, 4)]  # tp, dp


@cache
def case(tp: int, dp: int, kernel: Kernel = Kernel.FLASH) -> Case:
    how = Implementation().attending(kernel)
    ask = Ask(of_cluster(load_cluster("h100"), tp * dp), load_cluster("h100"), 1e15, turns=(TURNS,),
              keeps=(Keep.SHARDS,))  # fmt: skip
    return next(cases(lambda turns: program(MODEL, TURNS * dp // turns, SEQ, how, vocab_multiple=128 * tp), ask))


def strategy(
    cluster: ClusterDescriptor, precision: str, tp: int, dp: int, kernel: Kernel = Kernel.FLASH
) -> tuple[Costs, tuple[Axis, ...], list[list[int]]]:
    """Megatron's, with its costs."""
    of, ask = (
        case(tp, dp, kernel),
        Ask(of_cluster(cluster, tp * dp), cluster, 1e15, precision=precision, framework=replace(MEGATRON, hide=Hide())),
    )
    axes = ask.mesh.axes()
    rows = named_rows(of.net, axes, "megatron-tp-sp", way(tp=tp, dp=dp, sequence_parallel=tp > 1, zero=1))
    return replace(costs_of(of, ask, axes), machine=machine(cluster, precision)), axes, rows.tolist()


def usual(cluster: ClusterDescriptor) -> Kernel:
    """What a plan attends with: flash attention has no kernels for Volta."""
    return Kernel.FUSED_SOFTMAX if cluster.gpu.architecture == "volta" else Kernel.FLASH


def by_tensors(cluster: ClusterDescriptor, precision: str, tp: int, dp: int, kernel: Kernel = Kernel.FLASH) -> Spent:
    return spent(*strategy(cluster, precision, tp, dp, kernel))


def by_degrees(
    cluster: ClusterDescriptor, precision: str, tp: int, dp: int, attention: str | None = None
) -> dict[str, float]:
    return seconds(
        cost(MODEL, tp=tp, dp=dp, microbatches=TURNS, seq_length=SEQ, zero=1, cluster=cluster, hide=False,
             habits={"host_kernel_s": 0.0}, precision=precision, attention=attention)
    )  # fmt: skip


@pytest.mark.parametrize("name", sampled(CLUSTERS, 4))
def test_a_strategy_takes_as_long_in_both(name: str) -> None:
    cluster = load_cluster(name)
    precision = "bf16" if cluster.gpu.peak_flops.bf16 is not None else "fp16"
    for tp, dp in SPLITS:
        mine, theirs = by_tensors(cluster, precision, tp, dp, usual(cluster)), by_degrees(cluster, precision, tp, dp)
        moved = theirs["layer communication"] + theirs["data-parallel communication"]
        assert mine.communication == pytest.approx(moved, rel=MOVED), (tp, dp)
        assert mine.cost == pytest.approx(sum(theirs.values()) - theirs["overhead"], rel=WHOLE), (tp, dp)


@pytest.mark.parametrize("name", ["h100", "a100-80gb", "mi300x", "v100-16gb"])
def test_attention_in_products_takes_as_long_in_both(name: str) -> None:
    """What `--attention unfused` has instead of one kernel: two products, and a softmax of scores that are kept."""
    cluster = load_cluster(name)
    precision = "bf16" if cluster.gpu.peak_flops.bf16 is not None else "fp16"
    mine = by_tensors(cluster, precision, 2, 4, Kernel.FUSED_SOFTMAX)
    theirs = by_degrees(cluster, precision, 2, 4, "unfused")
    assert mine.cost == pytest.approx(sum(theirs.values()) - theirs["overhead"], rel=WHOLE)
    fused = by_tensors(cluster, precision, 2, 4)
    # a softmaxed score for each head and pair of tokens stays, a statistic of four bytes for each head and token goes
    scores = MODEL.num_hidden_layers * MODEL.num_attention_heads / 2 * SEQ * (2.0 * SEQ - 4.0)
    assert mine.activations_bytes - fused.activations_bytes == pytest.approx(scores, rel=1e-9)
