"""Over how many context-parallel ranks heads and groups of Mamba-2 go, as Megatron-LM's own class decides."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest

import symconfig
from symconfig.frameworks.megatron.constraints import MIXER_CONTEXT, MIXER_HEADS

HEADS = 96
DEGREES = (1, 2, 3, 4, 8, 16, 32)


@pytest.mark.parametrize(("groups", "tp"), [(g, t) for g, t in product((1, 2, 6, 8, 16), DEGREES) if g % t == 0])
def test_what_the_class_takes_is_not_refused(groups: int, tp: int) -> None:
    context = pytest.importorskip("megatron.core.ssm.mamba_context_parallel")
    for cp in DEGREES:
        group = SimpleNamespace(size=lambda cp=cp: cp, rank=lambda: 0)
        parts = dict.fromkeys(("conv1d_cp1", "dt_bias_cp1", "A_log_cp1", "D_cp1"))
        try:
            context.MambaContextParallel(
                group, 64 * HEADS // tp, HEADS // tp, groups // tp, 128, **parts, D_has_hdim=False
            )
            built = True
        except AssertionError:
            built = False
        facts, point = SimpleNamespace(mixer_pieces=groups, exchanged_pieces=HEADS), SimpleNamespace(tp=tp, cp=cp)
        assert built != bool(MIXER_CONTEXT.predicate(facts, point) or MIXER_HEADS.predicate(facts, point)), (tp, cp)


def test_few_groups_over_many_ranks_are_planned() -> None:
    pins = {"tp": 2, "cp": 32, "ep": 64, "pp": 2}
    plan = symconfig.plan(
        model="nemotron-3-super-120b-a12b",
        cluster="h100",
        gpus=128,
        global_batch_size=16,
        seq_length=262144,
        task="sft",
        pins=pins,
    )
    assert plan.best.configuration.cp == 32
