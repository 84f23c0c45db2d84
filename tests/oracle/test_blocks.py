"""Every block of both models, one microbatch on one rank: FLOPs, seconds of operators, collectives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.oracle import judged
from tests.oracle.given import SEQUENCE, Model, Run
from tests.oracle.grid import MODELS, runs
from tests.oracle.plan import plan
from tests.oracle.records import Block

CASES = [(model, kind) for model in MODELS for kind in ("embedding", "moe" if model.experts else "dense", "head")]
KINDS = pytest.mark.parametrize(("model", "kind"), CASES, ids=[f"{model.name}, {kind}" for model, kind in CASES])


def block(model: Model, run: Run, kind: str) -> Block:
    return next(block for block in plan(model, run).blocks if block.name == kind)


def of_blocks(model: Model) -> list[Run]:
    """One run for each choice that a block depends on."""
    known = {}
    for run in runs(model):
        known.setdefault(
            (run.tp, run.sp, run.cp, run.ulysses, run.ep, run.etp, run.micro, run.imbalance, run.beside), run
        )
    return list(known.values())


@KINDS
def test_flops_of_every_product(model: Model, kind: str) -> None:
    for run in of_blocks(model):
        wanted = {(op.name, phase): n for op in block(model, run, kind).operators for phase, n in op.flops.items()}
        assert judged.flops(model, run, kind) == pytest.approx(wanted, rel=1e-9), run


@KINDS
def test_seconds_of_every_operator(model: Model, kind: str) -> None:
    for run in of_blocks(model):
        wanted = {(op.name, phase): t for op in block(model, run, kind).operators for phase, t in op.seconds.items()}
        assert judged.judged(model, run).work(kind) == pytest.approx(wanted, rel=1e-9), run


@KINDS
def test_seconds_of_every_collective_and_what_of_them_shows(model: Model, kind: str) -> None:
    for run in of_blocks(model):
        wanted = [(m.kind, m.axis, m.phase, m.seconds, m.shown) for m in block(model, run, kind).messages if m.seconds]
        assert _counted(judged.judged(model, run).messages(kind)) == _counted(wanted), run


def _counted(messages: list[tuple[str, str, str, float, float]]) -> Counter[tuple[str, ...]]:
    """Nine digits: sums are in another order."""
    return Counter((kind, axis, phase, f"{whole:.9g}", f"{shown:.9g}") for kind, axis, phase, whole, shown in messages)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(
    "run",
    [
        Run(),
        Run(tp=2, sp=True, cp=2, dp=4, micro=3, modules=frozenset({"layer"})),
        Run(tp=2, sp=True, cp=4, ulysses=True),
        Run(tp=4, sp=True, ep=2, etp=2, dp=4, imbalance=1.5),
    ],
)
def test_flops_of_the_model_are_the_same_however_it_runs(model: Model, run: Run) -> None:
    """Of a token: 6 for each weight that it meets, and of attention 12 a head's channel and key, of which half are
    masked. No recompute, no padding, no imbalance."""
    if not model.experts:
        run = replace(run, ep=1, etp=1)
    h, width = model.hidden, model.heads * model.channels
    layer = 2 * h * width + 2 * h * model.kv_heads * model.channels
    layer += model.chosen * 3 * h * model.width + (h * model.experts if model.experts else 0)
    attention = 12 * width * SEQUENCE / 2
    wanted = model.layers * (6 * layer + attention) + 6 * h * model.vocabulary
    assert judged.model_flops(model, run) == pytest.approx(wanted, rel=1e-12)
