"""The cost model against published runs: what it has reached must not be lost. The runs lie beside the checkout."""

from __future__ import annotations

import pytest

from symconfig.measured.score import Source, source
from tests.measured.support import published

# Source -> (time, memory) as mean absolute error; what was measured, rounded up. A change that does worse says why.
REACHED = {
    "korthikanti2022": (0.03, None),
    "megatron_sc21": (0.025, None),
    "zero_bubble": (0.02, 0.05),
    "simumax_b200": (0.05, 0.003),
    "memory_pr482": (None, 0.008),
    # 0.056 while two errors made up for each other: the look-up table that the last stage holds for multi-token
    # prediction was missing, and models of GPT-2's vocabulary were given DeepSeek-V3's, whose states would not have
    # fitted.
    "megatron_golden": (None, 0.062),
    "megatron_golden_toy": (None, 0.033),
    "galvatron_profile": (None, 0.19),
    "aleph_alpha": (0.05, None),
    "dgxc_benchmarking": (0.03, None),
    "llm_foundry_mpt": (0.035, None),
    "nemo_2407": (0.04, None),
    "megatron_readme_h100": (0.03, None),
    "torchtitan": (0.09, 0.07),
    "megatron_bridge": (0.1, None),
    "moe_parallel_folding": (0.07, None),
    "moe_modelzoo_recipes": (0.1, None),
}


def scored(name: str) -> Source:
    ((_, content),) = published(name)
    return source(name, content)


@pytest.mark.parametrize("name", REACHED)
def test_errors_on_published_runs_stay_where_they_are(name: str) -> None:
    found = scored(name)
    time, memory = REACHED[name]
    if time is not None:
        assert found.time is not None
        assert found.time.mape <= time
    if memory is not None:
        assert found.memory is not None
        assert found.memory.mape <= memory
    assert all("does not state" in reason for _, reason in found.skipped)
    assert len(found.skipped) <= 0.05 * len(found.rows)


def test_plans_that_ran_out_of_memory_are_found_and_the_best_8k_plans_too() -> None:
    found = scored("aleph_alpha")
    assert found.oom is not None
    assert found.oom.found >= 0.945 * found.oom.ran_out
    assert found.oom.alarms <= 0.03 * found.oom.ran
    for sweep in found.sweeps:
        if "-8k-" in sweep.name:
            assert sweep.tau >= 0.9
            assert sweep.regret == pytest.approx(0.0)


# Sources without a run that ran out of memory -> share of their runs that are predicted to, at most.
FALSE_ALARMS = {
    "dgxc_benchmarking": 0.0,
    "llm_foundry_mpt": 0.0,
    "megatron_bridge": 0.03,
    "megatron_readme_h100": 0.0,
    "moe_modelzoo_recipes": 0.0,
    "nemo_2407": 0.0,
    "torchtitan": 0.0,
}


@pytest.mark.parametrize("name", FALSE_ALARMS)
def test_runs_that_ran_are_not_called_out_of_memory(name: str) -> None:
    rows = scored(name).rows
    assert sum(item.oom for item in rows) <= FALSE_ALARMS[name] * len(rows)
