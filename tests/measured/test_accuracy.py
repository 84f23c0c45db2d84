"""What symconfig says of its own errors is what they are now."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.measured.score import source
from symconfig.report.accuracy import markdown, page, summary
from symconfig.report.validation import to_dict
from tests.measured.support import published

ROOT = Path(__file__).parents[2]
CONSTANTS = ROOT / "docs" / "constants.md"
STALE = "the record of errors is stale: make accuracy"
MOST_LEFT_OUT = 1.3  # times the fitted error, over all runs of a GPU type with at least this many models:
MODELS = 10
FEW_ROWS = {"ascend-910b": 1.4}  # 22 rows of 21 models: a model left out is a length or a size that no other row has


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


@pytest.mark.parametrize(("page", "made"), [("docs/accuracy.md", markdown), ("README.md", summary)])
def test_pages_show_what_is_recorded(record: Any, page: str, made: Callable[[Any], str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.split("<!-- accuracy: written by `make accuracy` -->\n")[1].split("<!-- end of accuracy -->")[0]
    assert shown.strip() == made(record).strip(), STALE


def test_the_page_of_constants_shows_what_is_recorded(record: Any) -> None:
    assert CONSTANTS.exists() == ("constants" in record), STALE
    if CONSTANTS.exists():
        assert CONSTANTS.read_text(encoding="utf-8") == page(record), STALE


def test_what_is_recorded_is_what_the_model_does_now(record: Any) -> None:
    now = dict(figures(to_dict([source(name, content) for name, content in published()])["sources"]))
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


def test_every_constant_of_a_gpu_type_with_runs_is_fitted_by_the_command_that_it_names(record: Any) -> None:
    for found in record["left_out"]:
        constants = load_cluster(found["cluster"]).kernels.model_dump(exclude_none=True)
        assert {name: item["source"] for name, item in constants.items()} == dict.fromkeys(
            constants, "fitted: make accuracy"
        )


def test_every_other_constant_names_its_source() -> None:
    for name in zoo_clusters():
        for constant, item in load_cluster(name).kernels.model_dump(exclude_none=True).items():
            assert len(item["source"]) > len("fitted: "), (name, constant)
            assert item["uncertainty"] > 0, (name, constant)
