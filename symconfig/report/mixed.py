"""The answer of `symconfig plan` on two kinds of GPUs: the ranked candidates, what lies where, and whether it pays."""

from __future__ import annotations

from dataclasses import replace

from symconfig.format import count, gib
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.mixed import MixedCandidate, MixedPlan
from symconfig.render.several import verdict
from symconfig.report.grid import Block, Grid
from symconfig.report.table import compared


def blocks(plan: MixedPlan) -> list[Block]:
    """Return the report of a plan over two kinds of GPUs: headline, ranking, the kinds' shares, and whether mixing
    pays.
    """
    sentences = "\n".join(sentence.replace("**", "") for sentence in verdict(plan))
    return [_headline(plan), _ranking((plan.best, *plan.alternatives)), _kinds(plan.best), sentences]


def _headline(plan: MixedPlan) -> str:
    """Return model, kinds of GPUs, framework and batch in two lines."""
    best, batch = plan.best.candidate, plan.best.candidate.configuration
    kinds = " and ".join(
        f"{count(share.gpus)} x {share.cluster.gpu.product} ({share.cluster.name})" for share in plan.cluster.shares
    )
    return (
        f"{plan.model.name} on {kinds}, for {BACKENDS[best.target.backend].label} {best.target.version}\n"
        f"global batch {count(batch.global_batch)} sequences of {count(batch.seq_length)} tokens, {batch.precision}"
    )


def _ranking(every: tuple[MixedCandidate, ...]) -> Grid:
    """Return the table of candidates, the best first, with a last column for the cluster of the first stages."""
    grid = compared(tuple((str(number), each.candidate) for number, each in enumerate(every, 1)))
    orders = (each.hosts[0].share.cluster.name for each in every)
    return replace(
        grid,
        headers=(*grid.headers, "first stages on"),
        rows=tuple((*row, order) for row, order in zip(grid.rows, orders, strict=True)),
        left=(*grid.left, len(grid.headers)),
    )


def _kinds(best: MixedCandidate) -> Grid:
    """Return the table of the best candidate's kinds of GPUs in the order of its stages."""
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
        for host in best.hosts
    ]
    return Grid.of(rows, "plan 1", words=("kind", "layers of each stage"), fixed=tuple(rows[0]))
