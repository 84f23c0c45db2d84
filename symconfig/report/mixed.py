"""The answer of `symconfig plan` on two kinds of GPUs: the ranked candidates, what lies where, and whether it pays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.format import count, gib, seconds
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.mixed import MixedPlan
from symconfig.report.explanation import stages
from symconfig.report.grid import Block, Grid
from symconfig.report.table import compared, parts


def blocks(plan: MixedPlan) -> list[Block]:
    """Return the report of a plan over two kinds of GPUs: a head of two lines, the ranking with the cluster of the
    first stages in a last column; of the best candidate the kinds in the order of its stages, the stages, and where
    time and the memory of the fullest kind's GPUs go; and whether mixing pays.
    """
    best, batch = plan.best.candidate, plan.best.candidate.configuration
    kinds = " and ".join(
        f"{count(share.gpus)} x {share.cluster.gpu.product} ({share.cluster.name})" for share in plan.cluster.shares
    )
    headline = (
        f"{plan.model.name} on {kinds}, for {BACKENDS[best.target.backend].label} {best.target.version}\n"
        f"global batch {count(batch.global_batch)} sequences of {count(batch.seq_length)} tokens, {batch.precision}"
    )
    every = (plan.best, *plan.alternatives)
    ranking = compared(tuple((str(number), each.candidate) for number, each in enumerate(every, 1)))
    ranking = replace(
        ranking,
        headers=(*ranking.headers, "first stages on"),
        rows=tuple((*row, each.hosts[0].share.cluster.name) for row, each in zip(ranking.rows, every, strict=True)),
        left=(*ranking.left, len(ranking.headers)),
    )
    rows = [
        {
            "kind": host.share.cluster.name,
            "GPUs": count(host.share.gpus),
            "nodes": host.nodes.text,
            "stages": host.stages.text,
            "layers of each stage": " ".join(map(str, host.layers)),
            "GPU GiB": gib(host.predicted.device_bytes),
            "usable GiB": gib(host.usable_bytes),
        }
        for host in plan.best.hosts
    ]
    shares = Grid.of(rows, "plan 1", words=("kind", "layers of each stage"), fixed=tuple(rows[0]))
    fullest = max(plan.best.hosts, key=lambda host: host.predicted.device_bytes / host.usable_bytes)
    spent = parts(plan.of(fullest), f"Where plan 1 spends, memory on {fullest.share.cluster.name}")
    return [headline, ranking, shares, stages(plan.of(fullest)), spent, "\n".join(verdict(plan))]


def verdict(plan: MixedPlan) -> Iterator[str]:
    """Yield three sentences: each kind by itself (its step, or why it has no plan); how many times as fast both are as
    the faster kind, that they do not pay, or that only both run the job; and how many candidates were searched, without
    a proof of the optimum.
    """
    yield " ".join(
        f"{each.share.cluster.name} alone ({count(each.share.gpus)} GPUs) "
        + (f"has no plan: {each.why}." if each.best is None else f"takes {seconds(each.best.predicted.step_s)} s.")
        for each in plan.alone
    )
    faster, gain = plan.faster, plan.gain
    if gain is None or faster is None:
        yield "Only both kinds together run it."
    elif plan.pays:
        yield f"Both kinds together are {gain:.2f} times as fast as {faster.share.cluster.name} alone."
    else:
        yield f"It does not pay: {faster.share.cluster.name} alone is {1 / gain:.2f} times as fast as both kinds."
    yield (
        f"Searched: {count(plan.candidates)} candidates, of which {count(plan.feasible)} fit, weighed on a machine of "
        f"both kinds' mean rates; the best were mapped to both kinds in either order, {count(plan.laid)} times. "
        "A candidate that was not mapped may be faster: the result is not proved optimal."
    )
