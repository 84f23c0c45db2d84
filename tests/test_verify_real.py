"""The table of real ranks: every model has a job, and differences are neither hidden nor rounded away."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from symconfig.descriptor.load import zoo_clusters, zoo_models
from symconfig.verify.checks import Compared
from tests.sample_plans import sample_plan
from tools.verify import real as verify_real
from tools.verify.real import Judged, in_page, jobs, markdown

PLAN = sample_plan("llama2-13b")


def judged(*compared: Compared) -> Judged:
    return Judged({"model": "llama2-13b", "cluster": "h100", "gpus": 1024}, PLAN, 0, (), 3, compared, 12.3, 1.5 * 2**30)


def test_every_model_of_the_zoo_has_one_job() -> None:
    found = jobs()
    assert sorted(job["model"] for job in found) == zoo_models()
    assert {job["cluster"] for job in found} <= set(zoo_clusters())


def test_equal_numbers_are_said_to_be_equal() -> None:
    table = markdown(
        [judged(Compared("parameters", 2_271_543_296, 2_271_543_296, "count"), Compared("parameters", 7, 7, "count"))]
    )
    assert "| 2,271,543,296 (equal) |" in table
    assert "| 1,024 x h100 |" in table
    assert "| 3 | 2,271" in table
    assert "12 s, 1.50 GiB |" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((1.02 * 2**30, 2**30), "(+0 to +2 %)"),
        ((0.5 * 2**30, 1.5 * 2**30), "(-50 to +50 %)"),
    ],
)
def test_a_difference_shows_however_small(ours: tuple[float, float], said: str) -> None:
    table = markdown([judged(*(Compared("optimizer shard", value, 2**30, "bytes") for value in ours))])
    assert said in table
    assert "equal" not in table


def test_a_check_that_failed_says_so_though_every_number_shown_is_equal() -> None:
    assert "| failed, 12 s" in markdown([replace(judged(Compared("parameters", 7, 7, "count")), code=1)])


def test_what_was_not_compared_is_a_dash() -> None:
    assert markdown([judged()]).splitlines()[-1].count(" - |") == 4


def test_the_readmes_table_is_replaced_and_nothing_else() -> None:
    text = "a\n<!-- real: written by `python -m tools verify real` -->\nold\n<!-- end of real -->\nb\n"
    assert in_page(text, "| new |") == text.replace("old\n", "\n| new |\n\n")
    with pytest.raises(SystemExit, match="no place"):
        in_page("nothing here", "| new |")


def test_a_job_is_planned_written_and_verified_by_the_commands_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_real, "CHECKS", {"megatron": ("--megatron", str(tmp_path / "absent"))})
    found = verify_real.judge(
        {"model": "llama2-7b", "cluster": "a100-80gb", "gpus": 8, "global_batch_size": 64}, tmp_path / "out"
    )
    assert (found.code, found.ranks, found.compared) == (2, 0, ())
    assert found.failures  # bad input is said, not shown as a row of dashes
    assert found.plan.best.configuration.world_size == 8
    own = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # which a child is a copy of before it runs
    assert 2**24 < found.peak_bytes < 2**31 + own
