"""The answer of `symconfig plan` on two kinds of GPUs: the ranked candidates, what lies where, and whether it pays."""

from __future__ import annotations

from dataclasses import replace

from symconfig.format import count, gib
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.mixed import MixedPlan
from symconfig.render.several import verdict
from symconfig.report.grid import Block, Grid
from symconfig.report.table import compared


def blocks(plan: MixedPlan) -> list[Block]:
    """Return the report of a plan over two kinds of GPUs: a head of two lines, the ranking with the cluster of the
    first stages in a last column, a table of the kinds in the order of the best candidate's stages, and whether mixing
    pays.
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
    sentences = "\n".join(sentence.replace("**", "") for sentence in verdict(plan))
    return [headline, ranking, shares, sentences]
