"""Ways to run the oracle's models: each option alone, then many at random, always the same ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from tests.oracle.given import DENSE, MIXTURE, Model, Run

MODELS = (DENSE, MIXTURE)
RANDOM = 80  # runs of each model


def _only(*names: str) -> frozenset[str]:
    return frozenset(names)


EACH = (
    Run(),
    Run(micro=2),
    Run(sequence=1024),
    Run(tp=8, sp=True),
    Run(tp=16, sp=True, micro=2),
    Run(cp=2),
    Run(cp=16, dp=2),
    Run(cp=4, ulysses=True),
    Run(pp=2, microbatches=4),
    Run(pp=4, microbatches=2),
    Run(pp=2, vpp=2, microbatches=4),
    Run(pp=4, vpp=2, microbatches=4, dp=2, zero=1),
    Run(pp=2, dp=32, microbatches=2, zero=1),
    Run(pp=2, dp=32, microbatches=2),
    *(Run(dp=dp, zero=zero, microbatches=3) for dp in (2, 8, 64) for zero in range(4)),
    Run(tp=2, sp=True, pp=2, cp=2, dp=2, zero=3, microbatches=2),
    Run(tp=2, sp=True, pp=2, cp=2, dp=2, zero=2, microbatches=2),
    Run(dp=4, zero=1, offload=0.5),
    Run(pp=2, microbatches=2, dp=2, zero=1, offload=1.0),
    Run(modules=_only("layer")),
    Run(modules=_only("layer"), tp=8, sp=True, cp=2),
    Run(modules=_only("core_attn"), cp=2),
    Run(modules=_only("core_attn"), cp=2, ulysses=True),
    Run(first=1, pp=2, microbatches=4),
    Run(first=2, pp=2, vpp=2, microbatches=4, tp=4, sp=True),
)
DENSE_ONLY = (
    Run(tp=2),
    Run(tp=8),
    Run(tp=16, cp=2),
    Run(tp=16, sp=True, dp=2, micro=2),
    Run(tp=16, modules=_only("core_attn")),
    Run(tp=4, modules=_only("layer")),
    Run(tp=2, sp=True, modules=_only("mlp")),
)
MIXTURE_ONLY = (
    Run(tp=16, sp=True, ep=8, dp=2, zero=1),
    Run(tp=16, sp=True, ep=4, cp=2, modules=_only("layer")),
    Run(ep=8, dp=8),
    Run(ep=8, dp=32, zero=1),
    Run(ep=4, dp=4, imbalance=1.25),
    Run(tp=4, sp=True, ep=2, etp=2, dp=4, zero=1, imbalance=1.5),
    Run(tp=4, sp=True, ep=8, etp=4, dp=8, cp=2, zero=3, microbatches=2),
    Run(modules=_only("moe"), ep=4, dp=4),
    Run(modules=_only("moe_act"), ep=4, dp=4),
    Run(modules=_only("layernorm")),
    Run(modules=_only("layer"), ep=8, tp=2, sp=True, dp=4),
    Run(ep=4, dp=4, beside=True, micro=2, microbatches=3),
    Run(ep=8, dp=16, beside=True, micro=4, microbatches=3),
    Run(ep=8, dp=16, beside=True, modules=_only("moe_act")),
    Run(ep=4, dp=8, pp=2, vpp=2, beside=True, micro=2, microbatches=4, zero=1),
    Run(ep=8, dp=8, tp=2, sp=True, cp=2, pp=2, vpp=4, beside=True, microbatches=8),
)


@cache
def runs(model: Model) -> tuple[Run, ...]:
    """Those of the lists and of the lattice."""
    some = MIXTURE_ONLY if model.experts else DENSE_ONLY
    lattice, known = _random(model), dict.fromkeys((*EACH, *some))
    while len(known) < len(EACH) + len(some) + RANDOM:
        known[next(lattice)] = None
    return tuple(known)


def _random(model: Model) -> Iterator[Run]:
    draw = random.Random(2104)  # any number: the runs must only stay the same ones
    modules = ("layer", "core_attn", *(("moe", "moe_act", "layernorm") if model.experts else ("mlp",)))
    while True:
        tp, pp, cp = (draw.choice((1, 1, 2, 4, 8)) for _ in range(3))
        run = Run(
            tp=tp,
            sp=tp > 1 and draw.random() < 0.6,
            pp=pp,
            vpp=draw.choice((1, 2)) if pp > 1 else 1,
            cp=cp,
            ulysses=cp > 1 and draw.random() < 0.4,
            ep=draw.choice((1, 2, 4, 8)) if model.experts else 1,
            etp=draw.choice((1, 2)) if model.experts else 1,
            dp=draw.choice((1, 2, 4, 8, 16)),
            micro=draw.choice((1, 1, 2, 3)),
            microbatches=draw.choice((1, 2, 4, 5, 8)),
            zero=draw.randrange(4),
            modules=_only(draw.choice(modules)) if draw.random() < 0.4 else frozenset(),
            imbalance=draw.choice((1.0, 1.3)) if model.experts else 1.0,
            beside=bool(model.experts) and draw.random() < 0.3,
        )
        if _runs(model, run):
            yield run


def _runs(model: Model, run: Run) -> bool:
    """What some framework can run: the judged code says seconds of no other ones."""
    if model.layers % (run.pp * run.vpp) or (run.vpp > 1 and run.microbatches % run.pp):
        return False
    if model.kv_heads % (run.tp * run.cp) and (run.ulysses or (model.kv_heads % run.tp and run.tp % model.kv_heads)):
        return False
    if not model.experts:
        return True
    if run.tp > 1 and not run.sp:
        return False
    if run.etp > run.tp or run.edp % 1:
        return False
    paired = run.ep > 1 and (run.pp == 1 or run.vpp > 1) and not run.modules & {"layer", "moe"}
    return paired or not run.beside
