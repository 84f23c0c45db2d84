"""What symconfig says of its own errors on published runs is what they are now, and what was reached is not lost.

The runs lie beside the checkout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.cluster import SHARES
from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.measured.score import Source, source
from symconfig.report.validation import to_dict
from tests.measured.support import published
from tools.accuracy_tables import markdown, summary
from tools.accuracy_tables import page as constants_page

ROOT = Path(__file__).parents[2]
CONSTANTS = ROOT / "docs" / "evidence" / "constants.md"
STALE = "the record of errors is stale: make accuracy"
MOST_LEFT_OUT = 1.3  # times the fitted error, over all runs of a GPU type with at least this many models:
MODELS = 10
FEW_ROWS = {"ascend-910b": 1.4}  # 22 rows of 21 models: a model left out is a length or a size that no other row has


@cache
def scored(name: str) -> Source:
    """Predict the runs of a source, once."""
    ((_, content),) = published(name)
    return source(name, content)


@pytest.fixture(scope="module")
def record() -> Any:
    return json.loads((files("symconfig.solve") / "data" / "accuracy.json").read_text(encoding="utf-8"))


def figures(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every number, text and null with its place."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from figures(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from figures(item, (*path, str(index)))
    else:
        yield path, value


@pytest.mark.parametrize(("page", "made"), [("docs/evidence/accuracy.md", markdown), ("README.md", summary)])
def test_pages_show_what_is_recorded(record: Any, page: str, made: Callable[[Any], str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.split("<!-- accuracy: written by `make accuracy` -->\n")[1].split("<!-- end of accuracy -->")[0]
    assert shown.strip() == made(record).strip(), STALE


def test_the_page_of_constants_shows_what_is_recorded(record: Any) -> None:
    assert CONSTANTS.exists() == ("constants" in record), STALE
    if CONSTANTS.exists():
        assert CONSTANTS.read_text(encoding="utf-8") == constants_page(record), STALE


def test_what_is_recorded_is_what_the_model_does_now(record: Any) -> None:
    now = dict(figures(to_dict([scored(name) for name, _ in published()])["sources"]))
    then = dict(figures([{**each, "about": None} for each in record["sources"]]))
    then = {place: value for place, value in then.items() if "about" not in place}
    assert now.keys() == then.keys(), STALE
    for place, value in now.items():
        if isinstance(value, float) and then[place] is not None:
            assert math.isclose(value, then[place], abs_tol=5e-4), f"{place}: {STALE}"
        else:
            assert value == then[place], f"{place}: {STALE}"


def test_at_most_a_twentieth_of_the_rows_is_skipped(record: Any) -> None:
    rows = sum(each["rows"] for each in record["sources"])
    assert sum(each["skipped"] for each in record["sources"]) <= 0.05 * rows


def test_a_model_that_was_left_out_is_predicted_nearly_as_well(record: Any) -> None:
    """Of the GPU types on which many models ran; where few did, what is left has no such model."""
    many = [found for found in record["left_out"] if found["models"] >= MODELS]
    assert {found["cluster"] for found in many} >= {"a100-80gb", "h100"}
    for found in many:
        assert found["left_out"] <= FEW_ROWS.get(found["cluster"], MOST_LEFT_OUT) * found["fitted"], found


def test_every_share_of_a_peak_of_a_gpu_type_with_runs_is_fitted_by_the_command_that_it_names(record: Any) -> None:
    for found in record["left_out"]:
        kernels = load_cluster(found["cluster"]).kernels
        sources = {each.source for name in SHARES if (each := getattr(kernels, name))}
        assert sources == {"fitted: make accuracy"}


def test_every_other_constant_names_its_source() -> None:
    for name in zoo_clusters():
        for constant, item in load_cluster(name).kernels.model_dump(exclude_none=True).items():
            assert len(item["source"]) > len("fitted: "), (name, constant)
            assert item["uncertainty"] > 0, (name, constant)


# Source -> (time, memory) as mean absolute error; what was measured, rounded up. A change that does worse says why.
# habits: what had been chosen by the source's own error is gone, and what its code does is predicted.
# Since constants are fitted to both collections together, and all GPUs of a step wait for the slowest, those at the
# end are what they were or up to a point more, but for these:
REACHED = {
    # 0.03: its error grows from 22 B on 8 GPUs to 1 T on 512, which no spread of GPUs explains; and BLOOM's runs are on
    # the same GPUs, with a cost of tp 8 that nothing explains.
    "korthikanti2022": (0.056, None),  # 0.053: habits
    # 0.03: fp8 with experts in turn is 7 to 15 % too fast since padded slots wait for no count of tokens.
    "dgxc_benchmarking": (0.046, None),
    # 0.05: deterministic mode is slower than its attention alone; GB200 has few other runs in bf16.
    "megatron_golden": (0.16, 0.062),
    "megatron_readme_h100": (0.036, None),  # 0.03: the slowest of 1,024 GPUs
    "megatron_sc21": (0.051, None),  # 0.025: of its first rows; three of ZeRO 3 are 6 to 16 % too fast
    # 0.055: habits; its matrix products are a quarter slower than other tables'. 0.003: now with mixtures of experts.
    "simumax_b200": (0.205, 0.009),
    "aleph_alpha": (0.07, None),  # 0.055: habits
    "zero_bubble": (0.031, 0.05),  # 0.02: habits
    "memory_pr482": (None, 0.008),
    "megatron_golden_toy": (None, 0.033),
    "galvatron_profile": (None, 0.35),  # 0.19: habits
    "llm_foundry_mpt": (0.043, None),  # 0.03: habits
    "nemo_2407": (0.088, None),  # 0.04: habits; the attention kernel of its time is not known
    "torchtitan": (0.09, 0.03),
    "megatron_bridge": (0.072, None),
    "moe_parallel_folding": (0.052, None),  # 0.05: habits
    "moe_modelzoo_recipes": (0.06, None),
    "ascend_modellink": (0.116, None),
    "bigscience_bloom": (0.104, 0.106),  # 0.075, 0.09: habits
    "fms_fsdp": (0.085, None),
    "internevo": (0.035, None),
    "megascale": (0.04, None),
    "mlperf_v30_gpt3": (0.035, None),
    "mlperf_v31_gpt3": (0.025, None),
    "mlperf_v40_llama2_70b_lora": (0.077, None),
    "mlperf_v40_llama2_70b_lora_l40s": (0.01, None),
    "mlperf_v41_llama2_70b_lora": (0.052, None),
    "mlperf_v50_llama2_70b_lora": (0.04, 0.025),
    "mlperf_v50_llama2_70b_lora_amd": (0.075, None),
    "mlperf_v51_llama31_8b": (0.072, 0.057),
    "mlperf_v51_llama31_8b_amd": (0.029, None),  # 0.025: habits
    "nemo_automodel": (0.12, None),
}


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
    assert all("does not state" in reason or "are not of the GPUs" in reason for _, reason in found.skipped)
    assert len(found.skipped) <= 0.05 * len(found.rows)


def test_plans_that_ran_out_of_memory_are_found_and_the_best_8k_plans_too() -> None:
    found = scored("aleph_alpha")
    assert found.oom is not None
    assert found.oom.caught >= 0.9 * found.oom.ran_out  # 0.945 with habits that these very runs had chosen
    assert found.oom.alarms <= 0.03 * found.oom.ran
    for sweep in found.sweeps:
        if "-8k-" in sweep.name:
            assert sweep.tau >= 0.88  # 0.89 with habits; 0.9 before constants were fitted to both collections
            assert sweep.regret == pytest.approx(0.0)


# Sources without a run that ran out of memory -> share of their runs that are predicted to, at most; the others: none.
FALSE_ALARMS = {"megatron_bridge": 0.03, "mlperf_v50_llama2_70b_lora": 0.07}
ALL_RAN = set(REACHED) - {"aleph_alpha", "bigscience_bloom", "galvatron_profile", "memory_pr482"}


@pytest.mark.parametrize("name", sorted(ALL_RAN))
def test_runs_that_ran_are_not_called_out_of_memory(name: str) -> None:
    found = scored(name).oom
    assert found is not None
    assert found.alarms <= FALSE_ALARMS.get(name, 0.0) * found.ran
